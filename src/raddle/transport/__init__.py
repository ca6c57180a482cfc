"""How tensors get from rank to rank: threads of one process, or processes on torch.distributed."""

from raddle.transport.base import Pending, Transport
from raddle.transport.joining import join
from raddle.transport.processes import Processes
from raddle.transport.threads import Hub

__all__ = ["Hub", "Pending", "Processes", "Transport", "join"]
