"""What one rank does in a step: the parts of the executor, each of which can be made alone."""
