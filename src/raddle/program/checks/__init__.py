"""Refuses programs that must not run: each check says why, before anything runs."""
