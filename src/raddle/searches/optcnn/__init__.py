"""OptCNN (arXiv 1802.04924): costs of configurations in tables, and their least sum, exactly."""
