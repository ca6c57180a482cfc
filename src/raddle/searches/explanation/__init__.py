"""Explains plans: where the time of a step goes, and what other splits of one operator would cost."""
