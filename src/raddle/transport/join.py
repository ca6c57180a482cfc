"""Which ranks this process belongs to: the user's process group, torchrun's job, or itself alone."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from raddle.transport.base import Transport
from raddle.transport.process_transport import ProcessTransport
from raddle.transport.thread_transport import Hub


def join(device: torch.device, backend: str | None = None, timeout: float = 300.0) -> Transport:
    """This process's end. One that is alone needs no torch.distributed, no port and no thread."""
    if is_single_process():
        return Hub(1, timeout).transport(0)
    return ProcessTransport(device, backend, timeout)


def is_single_process() -> bool:
    """Whether there is no process group, and nobody has said, as torchrun does, which rank this is."""
    started = "RANK" in os.environ or os.environ.get("WORLD_SIZE", "1") != "1"
    return not (started or dist.is_initialized())
