"""Repeats the experiments of the papers that raddle builds on: `raddle reproduce NAME`.

In all files, "printed" means: a number that the paper or thesis prints.
"""
