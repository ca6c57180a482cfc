"""Programs: what each device does, in order; lowered from a graph and a plan, and checked."""
