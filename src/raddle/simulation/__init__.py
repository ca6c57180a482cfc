"""Simulation: a program on a described cluster, event by event."""
