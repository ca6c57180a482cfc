"""The parts of the executor: each carries out some kinds of actions and can be tested on its own."""
