"""What raddle offers to its command line, to experiments and to scripts."""
