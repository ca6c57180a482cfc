"""Calibration: fits a few named numbers of a cluster to measured throughputs of training steps.

measurements      reads the table of measurements
named_numbers     the numbers that can be fitted; makes a cluster with other values of them
prediction        simulates the step of a measurement on such a cluster
least_squares     fits the numbers, and says which of them the measurements do not determine
calibrate         fits the numbers of a cluster to a table of measurements
description       the result as plain data, and the fitted cluster file
"""
