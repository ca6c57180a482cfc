"""Makes the transport of this process, as a rank of the user's process group or of torchrun's job.

Without a process group and without torchrun, the process is the only rank.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from raddle.transport.base import Transport
from raddle.transport.process_transport import ProcessTransport
from raddle.transport.thread_transport import Hub


def join(device: torch.device, backend: str | None = None, timeout: float = 300.0) -> Transport:
    """Returns this process's transport; timeout: seconds after which a wait fails."""
    if is_single_process():
        # One rank as a thread, this one: it needs no torch.distributed, port or further thread.
        return Hub(1, timeout).transport(0)
    return ProcessTransport(device, backend, timeout)


def is_single_process() -> bool:
    """Returns whether there is no process group, and no environment variables as torchrun sets them."""
    has_torchrun_variables = "RANK" in os.environ or os.environ.get("WORLD_SIZE", "1") != "1"
    return not (has_torchrun_variables or dist.is_initialized())
