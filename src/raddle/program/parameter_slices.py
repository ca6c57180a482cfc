"""Cuts parameters into slices, where the sync kind synchronises slices, and joins small ones in bundles.

A region is a box of a parameter with the devices that hold it (program.py). A slice is a range of rows (of
the first dimension) of a region. A bundle is slices that are synchronised together: pushed to their server,
updated and pulled, or all-reduced and updated on every holder. A message costs the cores at both ends some
time, however small it is; so slices that the forward uses one after the other share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.graph import Graph
from raddle.plans.sync import Sync
from raddle.program.bundle import Bundle
from raddle.program.parameter_region import ParameterRegion


class ParameterSlices(NamedTuple):
    """The slices of each parameter, and the bundles.

    A bundle's place in the tuple is its number in `plan.order`.
    """

    slices: dict[str, tuple[ParameterRegion, ...]]
    bundles: tuple[Bundle, ...]


def cut_slices(
    regions: Mapping[str, Sequence[ParameterRegion]], names: Sequence[str], graph: Graph, sync: Sync
) -> ParameterSlices:
    """Cuts the regions of parameters (names) into slices, joins these in bundles, and assigns servers.

    The server of a slice is -1 if the sync kind has no servers. Bundles are numbered by the place of their
    first parameter in `names`.
    """
    # All slices with the names of their parameters. m: the position of a slice in this list.
    cut: list[tuple[str, ParameterRegion]] = [
        (name, ParameterRegion(box, region.devices))
        for name in (used_order(graph, names) if sync.bundle_limit else names)
        for region in regions[name]
        for box in _cut_rows(region.box, sync, len(region.devices))
    ]
    keys = [(region.devices, graph.values[name].dtype) for name, region in cut]
    # members: the positions of the slices of a bundle
    joined = join_slices([region.box.volume for _, region in cut], keys, sync.bundle_limit)
    parameter_number = {name: p for p, name in enumerate(names)}
    joined.sort(key=lambda members: (parameter_number[cut[members[0]][0]], members))
    servers = sync.assign_servers(
        [sum(cut[m][1].box.volume for m in members) for members in joined],
        [cut[members[0]][1].devices for members in joined],
    )
    # By parameter, its slices, each with its position m.
    slices: dict[str, list[tuple[int, ParameterRegion]]] = {name: [] for name in names}
    bundles = []
    for members, server in zip(joined, servers, strict=True):
        with_server = [(m, cut[m][0], cut[m][1]._replace(server=server)) for m in members]
        bundles.append(
            Bundle(tuple(n for _, n, _ in with_server), tuple(s for *_, s in with_server))
        )
        for m, name, slice_ in with_server:
            slices[name].append((m, slice_))
    return ParameterSlices(
        {name: tuple(s for _, s in sorted(numbered)) for name, numbered in slices.items()},
        tuple(bundles),
    )


def join_slices(
    sizes: Sequence[int],
    keys: Sequence[tuple[tuple[int, ...], torch.dtype]],
    limit: int,
) -> list[list[int]]:
    """Joins slices with equal keys that follow each other in bundles of at most `limit` elements.

    sizes: by slice, its elements; slices are in the order of first use. keys: by slice, its holders and its
    dtype. Returns the slices of each bundle, in the order of their first slices.
    """
    bundles: list[list[int]] = []
    opened: dict[object, list[int]] = {}  # by key, the bundle that may still grow
    for s, key in enumerate(keys):
        bundle = opened.get(key)
        if bundle is None or sum(sizes[b] for b in bundle) + sizes[s] > limit:
            bundle = opened[key] = []
            bundles.append(bundle)
        bundle.append(s)
    return bundles


def used_order(graph: Graph, names: Sequence[str]) -> list[str]:
    """Returns the names of parameters in the order in which a forward first uses them."""
    wanted = set(names)
    return list(dict.fromkeys(name for op in graph.ops for name in op.inputs if name in wanted))


def numbered_slices(
    slices: Mapping[str, Sequence[ParameterRegion]],
) -> list[tuple[str, ParameterRegion]]:
    """Returns all slices with the names of their parameters. A slice's place in the list is its number."""
    return [
        (name, slice_) for name, parameter_slices in slices.items() for slice_ in parameter_slices
    ]


def check_order(order: Sequence[int], bundles: Sequence[Bundle]) -> None:
    """Raises InputError if `plan.order` (order) has more or fewer entries than there are bundles.

    `plan.order` is the order in which bundles are all-reduced; (): the plan gives none.
    """
    if order and len(order) != len(bundles):
        raise InputError(
            f"the plan orders {len(order)} sums of bundles, but its parameters have {len(bundles)}: plan "
            "again, or leave the order out."
        )


def _cut_rows(box: Box, sync: Sync, holders: int) -> list[Box]:
    """Cuts a box along its first dimension. holders: how many devices hold it."""
    rows = sync.row_ranges(box.shape, holders)
    if len(rows) == 1:
        return [box]
    low = box.lo[0]
    return [Box((low + a, *box.lo[1:]), (low + b, *box.hi[1:])) for a, b in rows]
