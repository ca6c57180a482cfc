"""Bytes on devices over time: what a timeline keeps, layout by layout, and the largest of it."""
