"""Checks that a plan fits a graph: tiles cover every operator once, and settings go together.

Plans are checked when a file is read and before they are lowered to a program. program/checks/ checks the
program.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from reprlib import repr as short

from raddle.errors import InputError, quote, shorten
from raddle.graph.box import covers, disjoint
from raddle.graph.graph import Graph, Op
from raddle.plans.pipelining import stage_of, validate_stages
from raddle.plans.plan import BN_SCOPES, DROPOUT_KINDS, Plan, parameter_shapes
from raddle.plans.precision import DTYPES, GATHER, REDUCE
from raddle.plans.sync import check_wire_dtype
from raddle.plans.tiling import Grid, Tiling


def validate(plan: Plan, graph: Graph) -> None:
    """Raises InputError with the reason if the plan does not fit the graph."""
    if plan.fingerprint and plan.fingerprint != graph.fingerprint():
        raise InputError(
            f"the plan was made for {quote(plan.model)} at batch {plan.batch} (fingerprint "
            f"{shorten(plan.fingerprint)}), not for '{graph.name}' at batch {graph.batch} "
            f"({graph.fingerprint()}){_difference(plan, graph)}: plan again for this model."
        )
    validate_settings(plan)
    check_wire_dtype(plan.sync, {p.name: p.dtype for p in graph.parameters})
    several = plan.microbatches > 1
    if (
        several
        and plan.bn == "global"
        and any(op.composite_kind == "batch_norm" for op in graph.ops)
    ):
        raise InputError(
            f"bn is 'global', but the {plan.microbatches} micro-batches are normalised one by one: "
            "use bn: microbatch, or one micro-batch."
        )
    names = {op.name for op in graph.ops}
    _validate_recompute(plan, names, graph.name)
    for name in plan.tiles:
        if name not in names:
            raise InputError(
                f"the plan has tiles for {quote(name)}, which '{graph.name}' does not have."
            )
    for op in graph.ops:
        if op.name not in plan.tiles:
            raise InputError(f"the plan has no tiles for '{op.name}'.")
        validate_tiling(op, plan.tiles[op.name], plan.devices)
    _validate_sums(plan, graph)
    validate_stages(plan, graph)
    if plan.parsed_sync.zero3:
        _validate_zero3(plan)


def validate_settings(plan: Plan) -> None:
    """Raises InputError if settings other than tiles and stages are wrong."""
    if plan.bn not in BN_SCOPES:
        raise InputError(f"bn is {quote(plan.bn)}: choose one of {', '.join(BN_SCOPES)}.")
    if plan.dropout not in DROPOUT_KINDS:
        raise InputError(
            f"dropout is {quote(plan.dropout)}: choose one of {', '.join(DROPOUT_KINDS)}."
        )
    _validate_precision(plan)
    server = plan.server
    if server is not None and server >= plan.devices:
        raise InputError(
            f"sync is {quote(plan.sync)}, but the plan has devices 0 to {plan.devices - 1}."
        )
    for name, count in (("microbatches", plan.microbatches), ("steps", plan.steps)):
        if count < 1:
            raise InputError(f"the plan has {count} {name}: it needs at least one.")
    if plan.bucket < 0:
        raise InputError(f"buckets have {plan.bucket} bytes: use 0 (one per parameter) or more.")
    _validate_order(plan)


def _validate_precision(plan: Plan) -> None:
    """Raises InputError if the precision cannot be read, or has options that the sync kind cannot use."""
    precision, sync = plan.parsed_precision, plan.parsed_sync
    options = [
        f"{option}{name}"
        for option, dtype in ((GATHER, precision.gather), (REDUCE, precision.reduce))
        for name in DTYPES
        if DTYPES[name] == dtype
    ]
    if precision.pure and sync.sliced:
        raise InputError(
            f"precision is {quote(plan.precision)}, but sync {quote(plan.sync)} updates slices of "
            "parameters, for which no master weights are kept: use allreduce or sharded, or precision bf16."
        )
    if options and not sync.shards:
        raise InputError(
            f"precision is {quote(plan.precision)}, but sync {quote(plan.sync)} shards no parameters: "
            f"leave {options[0]} out, or use sharded or sharded:parameters."
        )


def _difference(plan: Plan, graph: Graph) -> str:
    """Returns a phrase about the first parameter that differs from the planned model; "" if unknown."""
    if not plan.parameters:
        return ""
    shapes = parameter_shapes(graph)
    for name, shape in shapes.items():
        if name not in plan.parameters:
            return f"; parameter '{name}' is new"
        if list(plan.parameters[name]) != shape:
            return f"; parameter '{name}' is {shape}, not {short(list(plan.parameters[name]))}"
    missing = next((name for name in plan.parameters if name not in shapes), None)
    return (
        "; the parameters agree" if missing is None else f"; parameter {quote(missing)} is missing"
    )


def _validate_order(plan: Plan) -> None:
    """Raises InputError unless `plan.order`, the order of the all-reduces of bundles, is a permutation.

    Lowering checks its length (program/parameter_slices.py).
    """
    if plan.order and not plan.parsed_sync.collective:
        raise InputError(
            f"the plan orders {len(plan.order)} sums of bundles, and sync {quote(plan.sync)} has none: "
            "leave the order out, or use p3:collective."
        )
    if sorted(plan.order) != list(range(len(plan.order))):
        raise InputError(
            f"the plan's order of {len(plan.order)} sums is no permutation of their numbers from 0 on: "
            "name each bundle once, or leave the order out."
        )


def _validate_recompute(plan: Plan, names: set[str], model: str) -> None:
    seen: set[str] = set()
    for name in (name for block in plan.recompute for name in block):
        if name not in names:
            raise InputError(f"the plan recomputes {quote(name)}, which '{model}' does not have.")
        if name in seen:
            raise InputError(f"the plan recomputes {quote(name)} in two blocks: leave it in one.")
        seen.add(name)


def _validate_zero3(plan: Plan) -> None:
    """Raises InputError if the plan cannot use ZeRO-3.

    A device has the gathered parameters of a block (an entry of `plan.recompute`) only while the block
    runs. So a block must be in one stage, and its backward must compute the gradients of its parameters.
    """
    if plan.split_backward:
        raise InputError(
            f"sync is {quote(plan.sync)}, which releases parameters after their backward, and the plan "
            "computes their gradients later: use sharded, or do not split the backward."
        )
    stages = stage_of(plan)
    for block in plan.recompute:
        if len({stages.get(name) for name in block}) > 1:
            raise InputError(
                f"sync is {quote(plan.sync)}, and the recomputed block of '{block[0]}' is "
                "in several stages: use sharded, or cut it at the border of the stages."
            )


def _validate_sums(plan: Plan, graph: Graph) -> None:
    """Raises InputError unless the tilings in `plan.sums` (where partial results are summed) are legal.

    They must not split reduced dimensions: that would give partial results again.
    """
    ops = {op.name: op for op in graph.ops}
    for name, tiling in plan.sums.items():
        if name not in ops:
            raise InputError(f"the plan sums {quote(name)}, which '{graph.name}' does not have.")
        validate_tiling(ops[name], tiling, plan.devices)
        if any(ops[name].space.is_partial(box) for box in tiling.boxes):
            raise InputError(
                f"the plan sums '{name}' in parts: leave summed dimensions whole there."
            )


def validate_tiling(op: Op, tiling: Tiling, devices: int) -> None:
    """Raises InputError unless the tiles cover the operator once, on devices of the plan."""
    for device in tiling.devices:
        if not 0 <= device < devices:
            raise InputError(
                f"'{op.name}' has a tile on device {device}, but the plan has devices 0 to {devices - 1}."
            )
    sizes = [dim.size for dim in op.space.dims]
    if isinstance(tiling, Grid):
        _validate_grid(op, tiling, sizes)
    else:
        _validate_boxes(op, tiling, sizes)


def _validate_grid(op: Op, grid: Grid, sizes: Sequence[int]) -> None:
    """Raises InputError unless a grid is a tiling of the operator; sizes: of the operator's dimensions."""
    if len(grid.cuts) != len(sizes):
        raise InputError(
            f"'{op.name}' has {len(sizes)} dimensions, its tiles have {len(grid.cuts)}."
        )
    box_count = 1
    for dim, cuts in zip(op.space.dims, grid.cuts, strict=True):
        box_count *= len(cuts) - 1
        if cuts[0] != 0 or cuts[-1] != dim.size:
            raise InputError(
                f"tiles of '{op.name}' cover {dim.name} from {cuts[0]} to {cuts[-1]}, not 0 to {dim.size}."
            )
        if any(a >= b for a, b in itertools.pairwise(cuts)):
            raise InputError(
                f"'{op.name}' cannot be cut at {cuts} along {dim.name}, which has {dim.size} elements: "
                "a tile would be empty."
            )
        if dim.unsplittable and len(cuts) > 2:
            raise InputError(f"'{op.name}' cannot be split along {dim.name}: it is taken whole.")
    if box_count * grid.copies != len(grid.devices):
        raise InputError(
            f"'{op.name}' has {box_count} tiles in {grid.copies} copies, but {len(grid.devices)} devices."
        )
    if grid.copies > 1:
        for i in range(box_count):
            copies = grid.devices[i * grid.copies : (i + 1) * grid.copies]
            if len(set(copies)) < len(copies):
                raise InputError(f"'{op.name}' has two copies of a tile on one device.")


def _validate_boxes(op: Op, tiling: Tiling, sizes: Sequence[int]) -> None:
    """Raises InputError unless the boxes of a tiling cover the operator once; sizes: of its dimensions."""
    if len(set(tiling.tiles)) < len(tiling.tiles):
        raise InputError(f"'{op.name}' has two copies of a tile on one device.")
    for box in tiling.boxes:
        if len(box.lo) != len(sizes):
            raise InputError(
                f"'{op.name}' has {len(sizes)} dimensions, its tile {box} has {len(box.lo)}."
            )
        if not op.space.full.contains(box) or box.empty:
            raise InputError(f"tile {box} of '{op.name}' is not inside {op.space.full}.")
        for dim, extent in zip(op.space.dims, box.shape, strict=True):
            if dim.unsplittable and extent < dim.size:
                raise InputError(
                    f"'{op.name}' cannot be split along {dim.name}: it is taken whole."
                )
    if not disjoint(tiling.boxes):
        raise InputError(f"tiles of '{op.name}' overlap.")
    if not covers(tiling.boxes, op.space.full):
        raise InputError(f"tiles of '{op.name}' leave a hole in {op.space.full}.")
