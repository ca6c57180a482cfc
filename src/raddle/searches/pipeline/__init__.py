"""Pipelines: which layers make a stage, on how many devices, over convex cuts of the graph of layers."""
