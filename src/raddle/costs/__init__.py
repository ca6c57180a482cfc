"""Cost models: seconds of computation and communication, and bytes that autograd saves for backward."""
