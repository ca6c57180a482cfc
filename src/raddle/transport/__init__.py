"""How tensors get from rank to rank: threads of one process, or processes on torch.distributed."""
