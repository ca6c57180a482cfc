"""How tensors get from rank to rank: threads of one process, or processes on torch.distributed."""

from raddle.run.transports.base import Pending, Transport
from raddle.run.transports.joining import join
from raddle.run.transports.processes import Processes
from raddle.run.transports.threads import Hub

__all__ = ["Hub", "Pending", "Processes", "Transport", "join"]
