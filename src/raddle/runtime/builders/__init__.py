"""From a program to the actions of one rank: the parts of `settle`, each of which can be made alone."""
