"""`auto`: the best of all methods, improved from the best of them."""
