"""Calibration: fits a few named numbers of a cluster to measured throughputs of training steps.

measurements      reads the table of measurements
named_numbers     the numbers that can be fitted, and how a cluster with other values is made
prediction        the simulated step of a measurement on any such cluster
least_squares     fits the numbers, and says which of them the measurements do not determine
calibrate         all of it, and the fitted cluster file
"""
