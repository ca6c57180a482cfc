"""Writes and reads tilings as text, in plan files and for people.

A line has the name of an operator and its tiles:

conv1: n/2 c/2 @0-3          a grid: n and c in two parts each, row by row on devices 0 to 3
fc: c/(5,3) @1,0             c in parts of 5 and 3, on devices 1 and 0
bn1.running: x4 @0-3         not split, with a copy on each device
loss: @0                     not split, on device 0
odd: [0:4 0:2]@0 [0:4 2:3]@1 [4:6 0:3]@1    any boxes (a range for each dimension), each on a device
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from raddle.errors import InputError, quote
from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.plans.tiling import Grid, Irregular, Tile, Tiling, even_cuts, uneven_cuts

# [0:4 0:2]@0: the ranges of a box, its device.
_BOX = re.compile(r"\[((?:\d{1,18}:\d{1,18} ?)*)\]@(\d{1,18})")
# n/2 or c/(5,3): the letter, then the number of parts or their sizes.
_SPLIT = re.compile(r"([A-Za-z])/(?:(\d{1,18})|\((\d{1,18}(?:,\d{1,18})*)\))")
MAX_DEVICES = 65_536


def write_tiling(op: Op, tiling: Tiling) -> str:
    """Writes a tiling as text, without the name of its operator."""
    if isinstance(tiling, Irregular):
        return " ".join(f"{tile.box}@{tile.device}" for tile in tiling.tiles)
    words = []
    for dim, cuts in zip(op.space.dims, tiling.cuts, strict=True):
        parts = len(cuts) - 1
        if cuts == even_cuts(dim.size, parts):
            words += [f"{dim.name}/{parts}"] if parts > 1 else []
        else:
            sizes = ",".join(str(b - a) for a, b in pairwise(cuts))
            words.append(f"{dim.name}/({sizes})")
    if tiling.copies > 1:
        words.append(f"x{tiling.copies}")
    return " ".join([*words, "@" + write_devices(tiling.devices)])


def read_tiling(op: Op, text: str) -> Tiling:
    """Reads what `write_tiling` wrote. Raises InputError if it cannot be read.

    Whether the tiles cover the operator is not checked here (validation.py does it).
    """
    if "[" in text:
        return _read_boxes(op, text)
    splits, at_sign, devices = text.partition("@")
    if not at_sign:
        raise InputError(f"{quote(f'{op.name}: {text}')} names no devices: add @0-3, say.")
    cuts: dict[str, tuple[int, ...]] = {dim.name: (0, dim.size) for dim in op.space.dims}
    copies = 1
    for word in splits.split():
        if re.fullmatch(r"x\d{1,18}", word):
            copies = int(word[1:])
            continue
        match = _SPLIT.fullmatch(word)
        if not match:
            raise InputError(
                f"{quote(word)} in the tiles of '{op.name}' is no split: write n/2 or c/(5,3)."
            )
        name, parts, sizes = match.groups()
        if name not in cuts:
            names = " ".join(dim.name for dim in op.space.dims)
            raise InputError(f"'{op.name}' has no dimension {name}: its dimensions are {names}.")
        size = cuts[name][-1]
        if parts:
            if not 0 < int(parts) <= size:
                raise InputError(
                    f"'{op.name}' cannot be split into {parts} along {name}, which has {size} elements."
                )
            cuts[name] = even_cuts(size, int(parts))
        else:
            cuts[name] = uneven_cuts([int(s) for s in sizes.split(",")])
    return Grid(tuple(cuts.values()), read_devices(devices), copies)


def _read_boxes(op: Op, text: str) -> Irregular:
    if _BOX.sub("", text).strip():
        raise InputError(
            f"{quote(f'{op.name}: {text}')} is no list of boxes: write [0:4 0:2]@0 [0:4 2:3]@1."
        )
    tiles = []
    for ranges, device in _BOX.findall(text):
        pairs = [tuple(map(int, r.split(":"))) for r in ranges.split()]
        tiles.append(Tile(Box(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)), int(device)))
    return Irregular(tuple(tiles))


def write_devices(devices: Sequence[int]) -> str:
    """Writes 0, 1, 2, 3, 7 as 0-3,7."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def read_devices(text: str) -> tuple[int, ...]:
    """Reads what `write_devices` wrote: 0-3,7 gives 0, 1, 2, 3, 7."""
    devices: list[int] = []
    for run in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", run)
        if not match:
            raise InputError(f"{quote('@' + text.strip())} is no list of devices: write @0-3,7.")
        first = int(match[1])
        device_range = range(first, int(match[2] or first) + 1)
        if len(devices) + len(device_range) > MAX_DEVICES:
            raise InputError(f"{quote('@' + text.strip())} are more than {MAX_DEVICES} devices.")
        devices += device_range
    return tuple(devices)


def write_tiles(graph: Graph, tiles: Mapping[str, Tiling]) -> str:
    """Writes a line for each operator, in the order of the graph."""
    return "".join(f"{op.name}: {write_tiling(op, tiles[op.name])}\n" for op in graph.ops)


def read_tiles(graph: Graph, text: str) -> dict[str, Tiling]:
    """Reads what `write_tiles` wrote: a tiling for each operator.

    A line that begins with # is a comment.
    """
    ops = {op.name: op for op in graph.ops}
    tiles: dict[str, Tiling] = {}
    for line in text.splitlines():
        name, colon, tiling_text = line.partition(": ")
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or name not in ops:
            raise InputError(f"{quote(line)} names no operator of '{graph.name}'.")
        tiles[name] = read_tiling(ops[name], tiling_text)
    return tiles
