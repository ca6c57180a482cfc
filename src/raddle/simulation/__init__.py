"""Simulates a program on a described cluster, event by event: a timeline of tasks, and memory over time."""
