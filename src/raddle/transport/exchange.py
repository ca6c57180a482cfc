"""All-gathers Python objects over any transport: for checkpoints, and for values that ranks compare."""

from __future__ import annotations

import io
from typing import Any

import torch

from raddle.transport.base import Transport


def exchange_objects(transport: Transport, device: torch.device, value: Any) -> list[Any]:
    """Returns the objects of all ranks, in rank order; all ranks call it.

    device: the device on which the bytes are broadcast. Tensors in received objects are on the CPU.
    """
    stream = io.BytesIO()
    torch.save(value, stream)
    encoded = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8).to(device)
    values = []
    for rank in range(transport.size):
        size = torch.tensor([encoded.numel()], device=device)
        transport.broadcast(rank, size).wait()
        rank_bytes = encoded if rank == transport.rank else encoded.new_empty(int(size))
        transport.broadcast(rank, rank_bytes).wait()
        decoded = value if rank == transport.rank else _decode(rank_bytes)
        values.append(decoded)
    return values


def _decode(encoded: torch.Tensor) -> Any:
    """Returns the object that was encoded as these bytes."""
    # torch copies into a bytearray, because numpy may not be installed.
    buffer = bytearray(encoded.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(encoded)
    return torch.load(io.BytesIO(buffer), map_location="cpu", weights_only=False)
