"""FlexFlow (arXiv 1807.05358): Markov chains over splits and devices."""
