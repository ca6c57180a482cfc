"""Searches: methods that give every operator its tiles, from the named baselines on."""
