"""Graphs: capture of modules, the operator algebra, boxes."""
