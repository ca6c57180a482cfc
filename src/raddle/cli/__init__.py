"""The command line: one file for each verb; options, output and preparation are shared; main starts it."""
