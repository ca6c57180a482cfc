"""Transports: send tensors between ranks, which are threads of one process or processes of a job."""
