"""Simulated memory: the bytes that are alive on each device over the time of a timeline, and their peak."""
