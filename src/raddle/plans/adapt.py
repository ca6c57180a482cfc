"""Adapts the plan of a training graph to another graph of the same module.

`adapt` is for the module in evaluation mode, `resize` for a micro-batch with fewer samples.

The evaluation graph has no dropout, its batch norms read running statistics, several operators may have
become one, and the batch may differ. An operator that both graphs have keeps its tiles, so that every
device has the parameters that it reads. A new operator is placed where its inputs are, so that little is
sent.
"""

# d: a dimension of an operator's iteration space (or a device), r: such a dimension of another operator,
# which reads the first one's output, k: the number of an operator's output

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from raddle.errors import InputError
from raddle.graph.box import Box, subtract
from raddle.graph.graph import Graph, Op
from raddle.graph.index import Term
from raddle.plans.derive_tiling import (
    paired_dims,
    projected_tiling,
    scaled_tiling,
    tiling_from_boxes,
)
from raddle.plans.match_ops import WEIGHTS, inputs_with_role, match_ops
from raddle.plans.plan import Plan
from raddle.plans.regions import add_read_boxes, add_unread_boxes
from raddle.plans.tiling import Grid, Tiling, whole_tiling
from raddle.plans.validation import validate, validate_tiling


def adapt(plan: Plan, graph: Graph, evaluation: Graph) -> Plan:
    """Adapts the plan of `graph` to `evaluation`: the same module in evaluation mode, for any batch.

    No device reads more of a parameter than it holds in training. Raises InputError if this is impossible
    because an operator that training does not have reads more of a parameter than any device holds.
    """
    validate(plan, graph)
    adapted = replace(
        plan,
        tiles=_Adapter(plan, graph, evaluation).tiles(),
        microbatches=1,
        steps=1,
        recompute=(),
        split_backward=False,
        sums={},  # partial results are summed on the devices that have them (plan.py)
        stages=(),
        schedule="",
        workers=(),
        fingerprint=evaluation.fingerprint(),
        batch=evaluation.batch,
        predicted={},
    )
    validate(adapted, evaluation)
    return adapted


def resize(plan: Plan, graph: Graph, smaller: Graph) -> tuple[Graph, Plan]:
    """Adapts the plan of `graph` to `smaller`, the same graph with fewer samples.

    Tiles keep their proportions. Returns `smaller` and its plan.
    """
    if [op.name for op in graph.ops] != [op.name for op in smaller.ops]:
        raise InputError(
            f"'{graph.name}' has other operators for {smaller.batch} samples than for {graph.batch}: "
            "use a batch that all micro-batches share evenly."
        )

    def resized(tilings: Mapping[str, Tiling]) -> dict[str, Tiling]:
        pairs = ((a, b) for a, b in zip(graph.ops, smaller.ops, strict=True) if a.name in tilings)
        return {
            b.name: _resized_tiling(b, a, tilings[a.name], plan, graph, smaller) for a, b in pairs
        }

    return smaller, replace(plan, tiles=resized(plan.tiles), sums=resized(plan.sums))


def _resized_tiling(
    op: Op, original: Op, tiling: Tiling, plan: Plan, graph: Graph, smaller: Graph
) -> Tiling:
    """Resizes the tiling of `original`, an operator of `graph`, for `op`, the same one in `smaller`."""
    if op.space == original.space:
        return tiling
    for candidate in (
        scaled_tiling(op, original, tiling, graph.batch, smaller.batch),
        projected_tiling(op, tiling, {d: d for d in range(len(op.space.dims))}),
    ):
        try:
            validate_tiling(op, candidate, plan.devices)
        except InputError:
            continue
        return candidate
    raise InputError(
        f"the tiles of '{op.name}' cannot be scaled to {smaller.batch} samples: "
        "use a batch that all micro-batches share evenly."
    )


class _Adapter:
    """Finds a tiling for every operator of the evaluation graph."""

    def __init__(self, plan: Plan, graph: Graph, evaluation: Graph) -> None:
        self.plan, self.graph, self.evaluation = plan, graph, evaluation
        self.parameter_boxes = _TrainingBoxes(plan, graph)
        self.tilings: dict[str, Tiling] = {}  # by operator that has its tiles already
        # By value, the operator that computes it, and which of its outputs it is.
        self.producer = {o: (op, k) for op in evaluation.ops for k, o in enumerate(op.outputs)}
        self.consumers = _readers(evaluation)

    def tiles(self) -> dict[str, Tiling]:
        """Places the operators that training has too, then neighbours of placed ones; returns tilings."""
        matches = match_ops(self.graph, self.evaluation)
        for op in self.evaluation.ops:
            if op.name in matches and self._can_keep_tiles(op, matches[op.name]):
                self.tilings[op.name] = self.plan.tiles[matches[op.name].name]
            elif op.name in matches:
                self._place_first_legal(op, self._as_in_training(op, matches[op.name]))
        for op in self.evaluation.ops:
            self._place_first_legal(op, self._as_producers(op))
        for op in reversed(self.evaluation.ops):
            self._place_first_legal(op, self._as_consumers(op))
        for op in self.evaluation.ops:
            self._place_first_legal(
                op, chain(self._as_producers(op), self._where_parameters_are(op))
            )
            if op.name not in self.tilings:
                names = ", ".join(f"'{n}'" for n in inputs_with_role(self.evaluation, op, WEIGHTS))
                raise InputError(
                    f"'{op.name}' of the evaluation graph reads more of {names} than any device holds "
                    "in training: evaluate the module on one device, or plan without splitting them."
                )
        return {op.name: self.tilings[op.name] for op in self.evaluation.ops}

    def _can_keep_tiles(self, op: Op, trained: Op) -> bool:
        """Returns whether an operator can use the tiles of `trained`: it has equal space and parameters."""
        weights = self._parameter_operands(op)
        return op.space == trained.space and all(op.inputs[i] == trained.inputs[i] for i in weights)

    def _place_first_legal(self, op: Op, candidates: Iterator[Tiling]) -> None:
        """Gives an operator without tiles the first legal candidate whose devices have its parameters."""
        if op.name not in self.tilings:
            fitting = (
                t for t in candidates if self._is_legal(op, t) and self._has_parameters(op, t)
            )
            if (tiling := next(fitting, None)) is not None:
                self.tilings[op.name] = tiling

    def _is_legal(self, op: Op, tiling: Tiling) -> bool:
        try:
            validate_tiling(op, tiling, self.plan.devices)
        except InputError:
            return False
        return True

    def _has_parameters(self, op: Op, tiling: Tiling) -> bool:
        """Returns whether every device holds the parameters that its tiles read."""
        weights = self._parameter_operands(op)
        return all(
            self.parameter_boxes.holds(device, op, box, weights) for box, device in tiling.tiles
        )

    def _parameter_operands(self, op: Op) -> list[int]:
        """Returns the numbers of the operands that are parameters."""
        return [
            i for i, name in enumerate(op.inputs) if self.evaluation.values[name].role in WEIGHTS
        ]

    # -- candidates: tilings, tried in the order in which they are yielded --------------------------

    def _as_in_training(self, op: Op, trained: Op) -> Iterator[Tiling]:
        """Yields the tiles of the training operator, scaled if its sizes differ."""
        tiling = self.plan.tiles[trained.name]
        if [dim.size for dim in op.space.dims] == [dim.size for dim in trained.space.dims]:
            yield tiling
        else:
            yield scaled_tiling(op, trained, tiling, self.graph.batch, self.evaluation.batch)
            # If scaled tiles are not legal, try the cut points of training: where they cut rows of a
            # parameter, a device holds only the rows that it got by these cuts.
            yield projected_tiling(op, tiling, {d: d for d in range(len(op.space.dims))})

    def _as_producers(self, op: Op) -> Iterator[Tiling]:
        """Yields the tiles of the operators that compute its inputs, projected onto its dimensions."""
        for operand, (source, k) in self._sources(op):
            if source.name in self.tilings:
                pairs = paired_dims(op, operand, source.space.outputs[k])
                yield projected_tiling(op, self.tilings[source.name], pairs)

    def _as_consumers(self, op: Op) -> Iterator[Tiling]:
        """Yields the tiles of the operators that read its outputs; a box that several read has copies."""
        for k, name in enumerate(op.outputs):
            for reader, operand in self.consumers.get(name, []):
                if reader.name in self.tilings:
                    pairs = {
                        d: r for r, d in paired_dims(reader, operand, op.space.outputs[k]).items()
                    }
                    yield projected_tiling(op, self.tilings[reader.name], pairs, spread=True)

    def _where_parameters_are(self, op: Op) -> Iterator[Tiling]:
        """Yields tilings that are not split, on each device; then one cut where the parameters are cut."""
        input_devices = [
            d for _, (source, _) in self._sources(op) for d in self.tilings[source.name].devices
        ]
        devices = list(dict.fromkeys([*input_devices, *range(self.plan.devices)]))
        for device in devices:
            yield whole_tiling([dim.size for dim in op.space.dims], [device])
        weights = self._parameter_operands(op)
        cuts = tuple(
            self.parameter_boxes.cut_points(op, d, weights) for d in range(len(op.space.dims))
        )
        # Only the boxes of this grid are used, so all are on device 0.
        boxes = Grid(cuts, (0,) * math.prod(len(c) - 1 for c in cuts)).boxes
        holders = {
            box: [d for d in devices if self.parameter_boxes.holds(d, op, box, weights)][:1]
            for box in boxes
        }
        if all(holders.values()):
            yield tiling_from_boxes({box: tuple(holder) for box, holder in holders.items()})

    def _sources(self, op: Op) -> Iterator[tuple[int, tuple[Op, int]]]:
        """Yields the operands that operators compute: (operand number, (operator, output number))."""
        for operand, name in enumerate(op.inputs):
            if name in self.producer:
                yield operand, self.producer[name]


class _TrainingBoxes:
    """The boxes of parameters that devices hold in training: those that their tiles read.

    Boxes that no tile reads belong to the first device that reads the parameter (regions.py).
    """

    def __init__(self, plan: Plan, graph: Graph) -> None:
        self.plan, self.graph, self.readers = plan, graph, _readers(graph)
        self.boxes: dict[str, dict[int, list[Box]]] = {}  # by parameter and device; made on demand

    def boxes_by_device(self, name: str) -> dict[int, list[Box]]:
        """Returns the boxes of a parameter that each device holds.

        The result is empty if training never reads the parameter: then any device may read it.
        """
        if name not in self.boxes:
            by_device = self.boxes.setdefault(name, {})
            for op, operand in self.readers.get(name, []):
                add_read_boxes(by_device, op, operand, self.plan.tiles[op.name])
            if by_device:
                add_unread_boxes(by_device, self.graph.values[name].shape)
        return self.boxes[name]

    def holds(self, device: int, op: Op, box: Box, operands: Sequence[int]) -> bool:
        """Returns whether a device holds what a tile with this box reads of these operands."""
        regions = op.space.regions(box) if operands else ()
        for i in operands:
            region, by_device = regions[i], self.boxes_by_device(op.inputs[i])
            if region is not None and by_device:
                boxes = by_device.get(device, ())
                if region not in boxes and subtract(region, boxes):
                    return False
        return True

    def cut_points(self, op: Op, d: int, operands: Sequence[int]) -> tuple[int, ...]:
        """Returns the cut points of dimension d: borders of the devices' boxes of these operands."""
        dim = op.space.dims[d]
        points = {0, dim.size}
        for i in operands if not dim.unsplittable else ():
            by_device = self.boxes_by_device(op.inputs[i])
            boxes = [box for device_boxes in by_device.values() for box in device_boxes]
            # o: a dimension of the operand, index: the expression that indexes it (graph/index.py)
            for o, index in enumerate(op.space.operands[i].indices):
                # Only if the index is d plus an offset: neither strided nor divided nor from a table.
                if index.terms == (Term(d),) and index.den == 1 and not index.table:
                    points |= {end[o] - index.offset for box in boxes for end in (box.lo, box.hi)}
        return tuple(point for point in sorted(points) if 0 <= point <= dim.size)


def _readers(graph: Graph) -> dict[str, list[tuple[Op, int]]]:
    """Returns, by value, the operators that read it, each with the number of the operand."""
    readers: dict[str, list[tuple[Op, int]]] = {}
    for op in graph.ops:
        for operand, name in enumerate(op.inputs):
            readers.setdefault(name, []).append((op, operand))
    return readers
