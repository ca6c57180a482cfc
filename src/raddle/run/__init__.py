"""Running programs for real."""
