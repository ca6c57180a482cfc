"""The parts of `build_actions`: each builds one group of a rank's actions and can be tested on its own."""
