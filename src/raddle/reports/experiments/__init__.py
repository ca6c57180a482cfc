"""Holds results of experiments (`raddle reproduce`) and writes them as terminal tables and as Markdown."""
