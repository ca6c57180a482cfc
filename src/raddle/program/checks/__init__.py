"""Checks of a lowered program: an incorrect one is refused, with the reason, before anything runs."""
