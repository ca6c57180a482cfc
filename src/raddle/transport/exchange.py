"""Every rank gives an object and gets those of all ranks: for checkpoints, and for what is said once."""

from __future__ import annotations

import io
from typing import Any

import torch

from raddle.transport.base import Transport


def exchange_objects(transport: Transport, device: torch.device, value: Any) -> list[Any]:
    """All ranks call it in the same order; tensors arrive on the CPU."""
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
    # Without numpy, which the runtime does not need: a buffer of ours, that torch fills.
    buffer = bytearray(data.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(data)
    return torch.load(io.BytesIO(buffer), map_location="cpu", weights_only=False)
