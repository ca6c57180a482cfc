"""Plans as arrays: the simulation of one step, for thousands of plans a second."""
