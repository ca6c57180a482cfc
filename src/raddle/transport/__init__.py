"""Transports: send tensors between ranks, and sum them. Ranks are processes of a job, or threads of one."""
