"""Gives the plain module separate buffers, such as running statistics, for copies of a pipeline stage.

In some schedules (GEMS, Chimera) copies of a stage on different workers run different micro-batches, and
each copy updates its own buffers. The plain module has only one set of buffers, so its content is swapped
before and after each micro-batch. The buffers of the first micro-batch's workers are the final ones, as
DistributedDataParallel saves those of rank 0. A *variant* of the program is how some of the micro-batches
run: the graph for their size, and the tiles on the devices that run them. `graph.updates`: buffer -> the
value that is its new content after a forward.
"""

# b: a buffer, o: the name of its new value, v: a variant

from __future__ import annotations

from torch import Tensor, nn

from raddle.program.program import Program


class ReplicaBuffers:
    """Swaps the buffers that the forward updates. `values`: (buffer, devices) -> these devices' copy."""

    def __init__(self, program: Program, model: nn.Module) -> None:
        producer = {o: op.name for op in program.graph.ops for o in op.outputs}
        # [variant][buffer]: the devices that update the buffer. Variants on the same devices share a copy.
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
        """Copy the buffers of a variant into the module."""
        for name, devices in self.devices_by_variant[variant].items():
            self.buffers[name].data.copy_(self.values[name, devices])

    def store(self, variant: int) -> None:
        """Save the buffers of the module as those of a variant."""
        for name, devices in self.devices_by_variant[variant].items():
            self.values[name, devices] = self.buffers[name].detach().clone()
