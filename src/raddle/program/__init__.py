"""Programs: the instructions of all devices, lowered from a graph and a plan, and checked."""
