"""Plans: tiles of operators on devices, a schedule, and a way to synchronise parameters."""
