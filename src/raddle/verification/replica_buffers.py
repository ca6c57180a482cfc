"""Buffers of the plain module where stages have replicas: each keeps running statistics of its own.

A micro-batch finds the buffers of the workers that run it; those of the first micro-batch's workers are
what a checkpoint has, as DistributedDataParallel saves rank 0's.
"""

from __future__ import annotations

from torch import Tensor, nn

from raddle.program.program import Program


class ReplicaBuffers:
    """Swaps the buffers that micro-batches write."""

    def __init__(self, program: Program, model: nn.Module) -> None:
        producer = {o: op.name for op in program.graph.ops for o in op.outputs}
        self.devices_by_variant = [
            {b: tuple(sorted(set(v.tiles[producer[o]].devices))) for b, o in program.graph.updates.items()}
            for v in program.variants
        ]  # fmt: skip
        self.buffers = {n: b for n, b in model.named_buffers() if n in program.graph.updates}
        self.values: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        for devices_of_buffer in self.devices_by_variant:
            for name, devices in devices_of_buffer.items():
                self.values.setdefault((name, devices), self.buffers[name].detach().clone())

    def load(self, variant: int) -> None:
        for name, devices in self.devices_by_variant[variant].items():
            self.buffers[name].data.copy_(self.values[name, devices])

    def store(self, variant: int) -> None:
        for name, devices in self.devices_by_variant[variant].items():
            self.values[name, devices] = self.buffers[name].detach().clone()
