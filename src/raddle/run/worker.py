"""One rank: executes the instructions of a program that concern its device.

Forward and backward are explicit. Every tile is run on leaves of its own, so that gradients are handed on
along the program's edges and nowhere else: what a consumer gives back is added where the value came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.interpret import Pieces, whole
from raddle.graph.ops import kernel, merge
from raddle.program.program import (
    Key,
    Merge,
    Message,
    Move,
    Program,
    Reduce,
    Run,
    Update,
    tensors_in,
    tensors_of_part,
)
from raddle.run.transport import Threads

Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
Batches = Callable[[Key], Mapping[str, Tensor]]  # the inputs of a micro-batch, by name


class Worker:
    """The state of one rank: its pieces of parameters and buffers, and what is alive in a step."""

    def __init__(
        self,
        program: Program,
        device: int,
        transport: Threads,
        state: Mapping[str, Tensor],
        optimizer: Optimizer,
        batches: Batches,
        seed: int = 0,
    ) -> None:
        self.program, self.device, self.transport = program, device, transport
        self.graph, self.plan, self.batches, self.seed = program.graph, program.plan, batches, seed
        self.ops = {op.name: op for op in self.graph.ops}
        self.buffers: dict[str, Pieces] = {
            b.name: [(Box.full(b.shape), state[b.name].clone())] for b in self.graph.buffers
        }
        self.frozen = {
            v.name: state[v.name] for v in self.graph.values.values() if v.role == "frozen"
        }
        self.parameters: dict[str, Pieces] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self._take_shares(state, optimizer)
        self.losses: list[Tensor] = []
        self.written: set[str] = set()  # buffers that this rank keeps up to date
        self.values: dict[Any, Pieces] = {}
        self.parts: dict[Any, tuple[Box, tuple[Tensor, ...]]] = {}
        self.received: dict[Any, list[tuple[Box, tuple[Tensor, ...]]]] = {}
        self.saved: dict[Any, tuple[list[Any], tuple[Tensor, ...]]] = {}
        self.gradients: dict[Any, Pieces] = {}

    def _take_shares(self, state: Mapping[str, Tensor], optimizer: Optimizer) -> None:
        """Materialises this rank's shares of the parameters, and nothing else."""
        for name, shares in self.program.shares.items():
            mine = [s for s in shares if self.device in (*s.devices, s.home)]
            full = Box.full(self.graph.values[name].shape)
            self.parameters[name] = [
                (s.box, state[name].detach()[s.box.within(full)].clone().requires_grad_())
                for s in mine
            ]
            updated = [
                t for s, (_, t) in zip(mine, self.parameters[name], strict=True)
                if s.home in (-1, self.device)
            ]  # fmt: skip
            if updated:
                self.optimizers[name] = optimizer(updated)

    def run(self) -> None:
        step = 0
        for number, instruction in enumerate(self.program.instructions):
            if instruction.key.step > step:
                self._forget(step)
                step = instruction.key.step
            if self.device not in instruction.devices:
                continue
            if isinstance(instruction, Run):
                (self._forward if instruction.phase == "F" else self._backward)(instruction)
            elif isinstance(instruction, Merge):
                (self._merge if instruction.phase == "F" else self._unmerge)(instruction)
            elif isinstance(instruction, Move):
                self._move(number, instruction)
            elif isinstance(instruction, Reduce):
                self._reduce(number, instruction)
            else:
                self._update(instruction)

    # -- operators ------------------------------------------------------------------------------

    def _forward(self, run: Run) -> None:
        op, key = self.ops[run.op], run.key
        for number, tile in enumerate(self.plan.tiles[op.name].tiles):
            if tile.device != self.device:
                continue
            regions = op.space.regions(tile.box)
            leaves = [
                None if region is None else self._leaf(name, region, key)
                for name, region in zip(op.inputs, regions, strict=True)
            ]
            results = kernel(op, tile.box)(*leaves)
            self.saved[key, op.name, number] = leaves, results
            outs = op.space.produces(tile.box)
            if op.name in self.program.merges:
                self.parts[key, op.name, number] = outs[0], tuple(t.detach() for t in results)
                continue
            for name, out, tensor in zip(op.outputs, outs, results, strict=True):
                self.values.setdefault((key, name), []).append((out, tensor.detach()))
        self._after(op, key)

    def _after(self, op: Any, key: Key) -> None:
        """Buffers take their new value; the loss is noted, and its gradient is one."""
        for buffer, value in self.graph.updates.items():
            if value in op.outputs and (key, value) in self.values:
                self._write_buffer(buffer, self.values[key, value])
        if self.graph.loss in op.outputs and (key, self.graph.loss) in self.values:
            loss = self.values[key, self.graph.loss][0][1]
            first = self.plan.tiles[op.name].tiles[0].device
            if op.name in self.program.merges:
                first = self.program.merges[op.name][0].devices[0]
            if self.device == first:  # of several copies, one counts
                self.losses.append(loss / self.plan.microbatches)
                share = torch.ones_like(loss) / self.plan.microbatches
                self.gradients[key, self.graph.loss] = [(Box((), ()), share)]

    def _leaf(self, name: str, region: Box, key: Key) -> Tensor:
        tensor = self._read(name, region, key).detach()
        return tensor.requires_grad_() if name in self.program.active else tensor

    def _read(self, name: str, region: Box, key: Key) -> Tensor:
        value = self.graph.values[name]
        if value.role == "op":
            return whole(self.values[key, name], region)
        if value.role == "seed":
            return torch.tensor(self.seed + 1_000_003 * key.step + key.micro)
        if value.role == "parameter":
            return whole(self.parameters[name], region)
        if value.role == "buffer":
            return whole(self.buffers[name], region)
        source = {"frozen": self.frozen, "constant": self.graph.constants}.get(value.role)
        tensor = (self.batches(key) if source is None else source)[name]
        return tensor[region.within(Box.full(value.shape))]

    def _backward(self, run: Run) -> None:
        op, key = self.ops[run.op], run.key
        for number, tile in enumerate(self.plan.tiles[op.name].tiles):
            if tile.device != self.device:
                continue
            leaves, results = self.saved.pop((key, op.name, number))
            outs = op.space.produces(tile.box)
            if op.name in self.program.merges:
                seeds = self._part_gradient(key, op.name, number, outs[0], results)
            else:
                seeds = [
                    self._gradient(key, n, o, t)
                    for n, o, t in zip(op.outputs, outs, results, strict=True)
                ]
            regions = op.space.regions(tile.box)
            self._give_back(key, op.inputs, regions, leaves, results, seeds)

    def _give_back(
        self, key: Key, names: Sequence[str], regions: Sequence[Box | None], leaves: Sequence[Any],
        results: Sequence[Tensor], seeds: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """Gradients of what a tile read go to where they are summed."""
        wanted = [i for i, t in enumerate(leaves) if t is not None and t.requires_grad]
        pairs = [(t, s) for t, s in zip(results, seeds, strict=True) if t.requires_grad]
        if not wanted or not pairs:
            return
        found = torch.autograd.grad(
            [t for t, _ in pairs],
            [leaves[i] for i in wanted],
            [s for _, s in pairs],
            allow_unused=True,
        )
        for i, gradient in zip(wanted, found, strict=True):
            region = regions[i]
            if gradient is None or region is None:
                continue
            if self.graph.values[names[i]].role == "parameter":
                self._accumulate(names[i], region, gradient)
            else:
                self.gradients.setdefault((key, names[i]), []).append((region, gradient))

    def _accumulate(self, name: str, region: Box, gradient: Tensor) -> None:
        for box, tensor in self.parameters[name]:
            common = box & region
            if common.empty:
                continue
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            tensor.grad[common.within(box)] += gradient[common.within(region)]

    def _gradient(self, key: Key, name: str, box: Box, like: Tensor) -> Tensor:
        """The sum of all that consumers gave back for a box."""
        return summed(self.gradients.get((key, name), []), box, like.dtype)

    # -- partial results ----------------------------------------------------------------------------

    def _merge(self, instruction: Merge) -> None:
        op, key = self.ops[instruction.op], instruction.key
        tiles = self.plan.tiles[op.name].tiles
        for number, cell in enumerate(instruction.cells):
            if self.device not in cell.devices:
                continue
            leaves = []
            for part in cell.parts:
                tensors = self._part(key, op.name, part, cell.box)
                leaves.append(
                    tuple(
                        t.detach().requires_grad_(op.outputs[0] in self.program.active)
                        for t in tensors
                    )
                )
            boxes = [tiles[p].box for p in cell.parts]
            complete = len(boxes) == 1 and not op.space.partial(boxes[0])
            results = leaves[0] if complete else merge(op, leaves, boxes)
            self.saved[key, op.name, "merge", number] = [t for ts in leaves for t in ts], results
            for name, tensor in zip(op.outputs, results, strict=True):
                self.values.setdefault((key, name), []).append((cell.box, tensor.detach()))
        self._after(op, key)

    def _part(self, key: Key, name: str, part: int, box: Box) -> tuple[Tensor, ...]:
        if (key, name, part) in self.parts:
            out, tensors = self.parts[key, name, part]
            return tuple(t[box.within(out)] for t in tensors)
        found = self.received[key, name, part]
        return next(
            tuple(t[box.within(held)] for t in tensors)
            for held, tensors in found
            if held.holds(box)
        )

    def _unmerge(self, instruction: Merge) -> None:
        """Gradients of a merged cell, for each of the partial results that it was made of."""
        op, key = self.ops[instruction.op], instruction.key
        for number, cell in enumerate(instruction.cells):
            if self.device not in cell.devices:
                continue
            leaves, results = self.saved.pop((key, op.name, "merge", number))
            seeds = [
                self._gradient(key, n, cell.box, t)
                for n, t in zip(op.outputs, results, strict=True)
            ]
            pairs = [(t, s) for t, s in zip(results, seeds, strict=True) if t.requires_grad]
            found = torch.autograd.grad(
                [t for t, _ in pairs],
                leaves,
                [s for _, s in pairs],
                allow_unused=True,
                materialize_grads=True,
            )
            at = 0
            for part in cell.parts:
                width = tensors_of_part(op, self.plan.tiles[op.name].tiles[part].box)
                self._give_part(key, op.name, part, cell.box, found[at : at + width])
                at += width

    def _give_part(
        self, key: Key, name: str, part: int, box: Box, tensors: Sequence[Tensor]
    ) -> None:
        for k, tensor in enumerate(tensors):
            self.gradients.setdefault((key, name, part, k), []).append((box, tensor))

    def _part_gradient(
        self, key: Key, name: str, part: int, box: Box, results: Sequence[Tensor]
    ) -> list[Tensor]:
        return [
            summed(self.gradients.get((key, name, part, k), []), box, t.dtype)
            for k, t in enumerate(results)
        ]

    # -- messages ---------------------------------------------------------------------------------------

    def _move(self, number: int, move: Move) -> None:
        for message in move.messages:
            if message.source == self.device:
                buffer = torch.cat([t.reshape(-1) for t in self._outgoing(move, message)])
                self.transport.send(self.device, message.target, (number, message.part), buffer)
        if move.what == "push":
            self._drop_gradients(move)
        for message in move.messages:
            if message.target == self.device:
                buffer = self.transport.receive(message.source, self.device, (number, message.part))
                self._incoming(move, message, buffer)

    def _outgoing(self, move: Move, message: Message) -> list[Tensor]:
        key, name = move.key, move.value
        if move.what in ("activation", "buffer"):
            return [whole(self.values[key, name], box) for box in message.boxes]
        if move.what == "gradient":
            dtype = self.graph.values[name].dtype
            return [
                summed(self.gradients.get((key, name), []), box, dtype) for box in message.boxes
            ]
        if move.what == "pull":
            return [whole(self.parameters[name], box).detach() for box in message.boxes]
        if move.what == "push":
            return [whole(self._parameter_gradients(name), box) for box in message.boxes]
        op = self.program.producer(name).name
        if move.what == "partial":
            return [t for box in message.boxes for t in self._part(key, op, message.part, box)]
        count = tensors_in(self.program, move, message)
        return [
            summed(
                self.gradients.get((key, op, message.part, k), []),
                box,
                self.graph.values[name].dtype,
            )
            for box in message.boxes
            for k in range(count)
        ]

    def _incoming(self, move: Move, message: Message, buffer: Tensor) -> None:
        key, name = move.key, move.value
        count = tensors_in(self.program, move, message)
        at = 0
        for box in message.boxes:
            tensors = []
            for _ in range(count):
                tensors.append(buffer[at : at + box.volume].view(box.shape))
                at += box.volume
            if move.what in ("activation", "buffer"):
                self.values.setdefault((key, name), []).append((box, tensors[0]))
                self._update_buffers(key, name)
            elif move.what == "gradient":
                self.gradients.setdefault((key, name), []).append((box, tensors[0]))
            elif move.what == "partial":
                part = (key, self.program.producer(name).name, message.part)
                self.received.setdefault(part, []).append((box, tuple(tensors)))
            elif move.what == "partial gradient":
                self._give_part(key, self.program.producer(name).name, message.part, box, tensors)
            elif move.what == "push":
                self._accumulate(name, box, tensors[0])
            else:
                with torch.no_grad():
                    for held, parameter in self.parameters[name]:
                        common = held & box
                        if not common.empty:
                            parameter[common.within(held)] = tensors[0][common.within(box)]
        assert at == buffer.numel(), "a message of another size than the program says"

    def _update_buffers(self, key: Key, name: str) -> None:
        for buffer, value in self.graph.updates.items():
            if value == name:
                self._write_buffer(buffer, self.values[key, name])

    def _write_buffer(self, buffer: str, pieces: Pieces) -> None:
        self.buffers[buffer] = list(pieces)
        self.written.add(buffer)

    # -- parameters ---------------------------------------------------------------------------------------

    def _parameter_gradients(self, name: str) -> Pieces:
        return [
            (box, torch.zeros_like(t) if t.grad is None else t.grad)
            for box, t in self.parameters[name]
        ]

    def _drop_gradients(self, move: Move) -> None:
        """What was sent to a parameter's home is counted there."""
        sent = {box for m in move.messages if m.source == self.device for box in m.boxes}
        for box, tensor in self.parameters[move.value]:
            if any(b.holds(box) for b in sent):
                tensor.grad = None

    def _reduce(self, number: int, reduce: Reduce) -> None:
        held = dict(self.parameters[reduce.parameter])
        for i, share in enumerate(reduce.shares):
            if self.device in share.devices:
                tensor = held[share.box]
                own = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                tensor.grad = self.transport.all_reduce(
                    self.device, share.devices, (number, i), own
                )

    def _update(self, update: Update) -> None:
        name = update.parameter
        for _, tensor in self.parameters[name]:
            if tensor.grad is None:  # of a share that no operator read
                tensor.grad = torch.zeros_like(tensor)
        if name in self.optimizers:
            self.optimizers[name].step()
        for _, tensor in self.parameters[name]:
            tensor.grad = None

    def _forget(self, step: int) -> None:
        """Nothing of a step outlives it."""
        for store in (self.values, self.parts, self.received, self.saved, self.gradients):
            for key in [k for k in store if k[0].step == step]:
                del store[key]


def summed(pieces: Pieces, box: Box, dtype: torch.dtype) -> Tensor:
    """The sum of overlapping pieces over a box; zero where there are none."""
    total = torch.zeros(box.shape, dtype=dtype)
    for held, tensor in pieces:
        common = held & box
        if not common.empty:
            total[common.within(box)] += tensor[common.within(held)]
    return total
