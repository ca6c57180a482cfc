"""Whether a plan trains as the plain module does, and sends what was simulated: tried on the runtime."""
