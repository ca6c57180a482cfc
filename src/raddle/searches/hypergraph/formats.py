"""Writes and reads files of other hypergraph partitioners, in PaToH's and hMETIS's formats.

`raddle export` writes such files, and `raddle plan --from-partition` reads the partitioner's result. A
hypergraph has weighted vertices and nets with costs; a net is a set of vertices, its pins (explicit.py).

PaToH    first line: base, vertices, nets, pins, 3; then the nets; all vertex weights in one line
hMETIS   first line: nets, vertices, 11; then the nets; the vertex weights, one per line

The numbers 3 and 11 say that vertices and nets have weights. The base is the number of the first vertex.
raddle writes 1 and reads 0 or 1.

A net is one line: its cost, then its pins, numbered from 1 (PaToH: from the base). A partition file has the
part of each vertex, numbered from 0, in order, separated by white space.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import numpy as np

from raddle.errors import InputError, quote
from raddle.files import read_text, replace_atomically, write_atomically
from raddle.searches.hypergraph.explicit import Hypergraph

Array = np.ndarray
MAX_WEIGHT = 2**31 - 1  # of all vertices together: both programs read 32 bits
FORMATS = ("patoh", "hmetis")
MAX_BYTES = 4 * 2**30  # of a file that is read
MAX_PARTS = 65_536
# At most 18 digits: fits into 64 bits
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def write_hypergraph(h: Hypergraph, path: str | pathlib.Path, file_format: str) -> None:
    """Writes a hypergraph; file_format: one of FORMATS."""
    with replace_atomically(path) as file:
        file.writelines(f"{line}\n".encode() for line in _lines(h, file_format))


def _lines(h: Hypergraph, file_format: str) -> Iterator[str]:
    """Yields the lines of the file, without line ends."""
    weight = integer_weights(h.weight)
    vertices, nets = len(weight), len(h.cost)
    # The first line of the file (see above)
    yield (
        f"1 {vertices} {nets} {len(h.pins)} 3"
        if file_format == "patoh"
        else f"{nets} {vertices} 11"
    )
    for net in range(nets):
        pins = h.pins[h.net_start[net] : h.net_start[net + 1]] + 1
        yield f"{h.cost[net]} {' '.join(map(str, pins.tolist()))}"
    if file_format == "patoh":
        yield " ".join(map(str, weight.tolist()))
    else:
        yield from map(str, weight.tolist())


def integer_weights(weight: Array) -> Array:
    """Returns the weights as integers whose sum fits into 32 bits; a weight above 0 is at least 1."""
    scale = min(1.0, MAX_WEIGHT / 2 / max(1.0, float(weight.sum())))
    integers = np.rint(weight * scale).astype(np.int64)
    integers[(weight > 0) & (integers == 0)] = 1
    return integers


def read_hypergraph(path: str | pathlib.Path) -> Hypergraph:
    """Reads a file of either format; PaToH's first line has five numbers, hMETIS's three."""
    lines = _read_integers(path)
    head = lines[0] if lines else []
    if len(head) == 5 and head[4] == 3:
        base, vertices, nets = head[:3]
    elif len(head) == 3 and head[2] == 11:
        base, (nets, vertices) = 1, head[:2]
    else:
        raise InputError(
            f"{quote(path)} is no hypergraph with weights of vertices and nets, of PaToH or hMETIS: its "
            "first line must be 'base vertices nets pins 3' or 'nets vertices 11'."
        )
    rows, weights = (
        lines[1 : 1 + max(0, nets)],
        [n for row in lines[1 + max(0, nets) :] for n in row],
    )
    if len(rows) != nets or len(weights) != vertices or not all(rows):
        raise InputError(
            f"{quote(path)} is damaged: it has {len(rows)} of {nets} nets, and weights of {len(weights)} "
            f"of {vertices} vertices."
        )
    cost = np.array([row[0] for row in rows], np.int64)
    pins = np.array([pin for row in rows for pin in row[1:]], np.int64) - base
    if base not in (0, 1):
        raise InputError(
            f"{quote(path)} is damaged: its base, the first number, is {base}, not 0 or 1."
        )
    if min([0, *weights, *cost.tolist()]) < 0:
        raise InputError(f"{quote(path)} is damaged: a weight or a cost in it is below 0.")
    if len(pins) and not 0 <= pins.min() <= pins.max() < vertices:
        raise InputError(
            f"{quote(path)} is damaged: a net has a vertex that is none of {vertices}."
        )
    net_start = np.cumsum([0, *(len(row) - 1 for row in rows)], dtype=np.int64)
    return Hypergraph(np.array(weights, float), cost, net_start, pins)


def read_partition(path: str | pathlib.Path) -> Array:
    """Reads a partition file: the part of each vertex."""
    parts = np.array([n for row in _read_integers(path) for n in row], np.int64)
    if not len(parts) or parts.min() < 0 or parts.max() >= MAX_PARTS:
        raise InputError(
            f"{quote(path)} is no partition file: such a file lists the part of each vertex, from 0 to "
            f"{MAX_PARTS - 1:,}."
        )
    return parts


def write_partition(parts: Array, path: str | pathlib.Path) -> None:
    """Writes a partition file; parts: the part of each vertex."""
    write_atomically(path, "".join(f"{p}\n" for p in parts.tolist()))


def _read_integers(path: str | pathlib.Path) -> list[list[int]]:
    """Reads the numbers of every line; lines that begin with % are comments."""
    text = read_text(path, "file of numbers", max_bytes=MAX_BYTES)
    return [
        [_parse_integer(word, path) for word in line.split()]
        for line in text.splitlines()
        if line.strip() and not line.startswith("%")
    ]


def _parse_integer(word: str, path: str | pathlib.Path) -> int:
    """Returns the number that a word of the file stands for; path: for the error message."""
    if not _INTEGER.fullmatch(word):
        raise InputError(
            f"{quote(path)} has something other than numbers: {quote(word, 40)} is no whole number of "
            "up to 18 digits."
        )
    return int(word)
