"""Plans: tiles of operators on devices, a pipeline schedule, and a sync kind for parameters."""
