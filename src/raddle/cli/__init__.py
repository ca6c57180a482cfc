"""Verbs of the command line that take a file of their own, and what all verbs share."""
