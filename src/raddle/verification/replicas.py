"""Buffers of the plain module where stages have replicas: each keeps running statistics of its own.

A micro-batch finds the buffers of the workers that run it; those of the first micro-batch's workers are
what a checkpoint has, as DistributedDataParallel saves rank 0's.
"""

from __future__ import annotations

from torch import Tensor, nn

from raddle.program.program import Program


class Replicas:
    """Swaps the buffers that micro-batches write."""

    def __init__(self, program: Program, model: nn.Module) -> None:
        made = {o: op.name for op in program.graph.ops for o in op.outputs}
        self.where = [
            {b: tuple(sorted(set(v.tiles[made[o]].devices))) for b, o in program.graph.updates.items()}
            for v in program.variants
        ]  # fmt: skip
        self.buffers = {n: b for n, b in model.named_buffers() if n in program.graph.updates}
        self.kept: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        for own in self.where:
            for name, devices in own.items():
                self.kept.setdefault((name, devices), self.buffers[name].detach().clone())

    def begin(self, variant: int) -> None:
        for name, devices in self.where[variant].items():
            self.buffers[name].data.copy_(self.kept[name, devices])

    def end(self, variant: int) -> None:
        for name, devices in self.where[variant].items():
            self.kept[name, devices] = self.buffers[name].detach().clone()
