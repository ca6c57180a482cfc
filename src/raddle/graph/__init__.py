"""The graph of one training step: capture of an nn.Module, operators with index notation, boxes."""
