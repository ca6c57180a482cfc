"""What an experiment has found, and its faces: a table for a terminal, Markdown for READMEs."""
