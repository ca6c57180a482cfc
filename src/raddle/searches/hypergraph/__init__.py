"""Partitions of filters and channels: a network of layers, its hypergraphs, solvers, and plans from parts.

A thesis's model: vertices are filters (coarse) or channels of filters (fine), a net joins what needs a map,
and the volume of communication is the sum of (parts in a net - 1) x cost over all nets.
"""
