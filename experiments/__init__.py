"""Repeats the experiments of the papers that raddle builds on: `raddle reproduce NAME`.

In all files, "printed" means: a number that the paper or thesis prints. A *part* is one of the sections of
an experiment (`raddle reproduce NAME --part PART`). The variable `on` is the cluster that plans are for.
"""
