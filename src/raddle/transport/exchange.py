"""All-gathers Python objects over any transport: for checkpoints, and for values that ranks compare."""

from __future__ import annotations

import io
from typing import Any

import torch

from raddle.transport.base import Transport


def exchange_objects(transport: Transport, device: torch.device, value: Any) -> list[Any]:
    """Returns the objects of all ranks, in rank order; all ranks call it.

    device: on which the bytes are broadcast. Tensors in received objects are on the CPU.
    """
    stream = io.BytesIO()
    torch.save(value, stream)
    encoded = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8).to(device)
    values = []
    for rank in range(transport.size):
        size = torch.tensor([encoded.numel()], device=device)
        transport.broadcast(rank, size).wait()
        data = encoded if rank == transport.rank else encoded.new_empty(int(size))
        transport.broadcast(rank, data).wait()
        decoded = value if rank == transport.rank else _decode(data)
        values.append(decoded)
    return values


def _decode(data: torch.Tensor) -> Any:
    # torch copies into a bytearray, because numpy may not be installed.
    buffer = bytearray(data.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(data)
    return torch.load(io.BytesIO(buffer), map_location="cpu", weights_only=False)
