"""Hypergraphs as files of other partitioners, and their answers: PaToH's and hMETIS's formats.

PaToH    base, vertices, nets, pins, 3 for both weights; then the nets; the vertices' weights in a line
hMETIS   nets, vertices, 11 for both weights; then the nets; the vertices' weights, one a line

A net is a line: its cost, and its pins, which count from 1 here. An answer has the part of each vertex, in
order, separated by white space.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np

from raddle.errors import InputError
from raddle.hypergraph.explicit import Hypergraph

Array = np.ndarray
MOST_WEIGHT = 2**31 - 1  # of all vertices together: both read 32 bits
FORMATS = ("patoh", "hmetis")


def write_hypergraph(h: Hypergraph, path: str | pathlib.Path, form: str) -> None:
    with pathlib.Path(path).open("w") as file:
        file.writelines(f"{line}\n" for line in _lines(h, form))


def _lines(h: Hypergraph, form: str) -> Iterator[str]:
    weight = whole_weights(h.weight)
    vertices, nets = len(weight), len(h.cost)
    yield f"1 {vertices} {nets} {len(h.pins)} 3" if form == "patoh" else f"{nets} {vertices} 11"
    for net in range(nets):
        own = h.pins[h.at[net] : h.at[net + 1]] + 1
        yield f"{h.cost[net]} {' '.join(map(str, own.tolist()))}"
    if form == "patoh":
        yield " ".join(map(str, weight.tolist()))
    else:
        yield from map(str, weight.tolist())


def whole_weights(weight: Array) -> Array:
    """Weights as whole numbers that partitioners can add up; what has work does not lose all of it."""
    scale = min(1.0, MOST_WEIGHT / 2 / max(1.0, float(weight.sum())))
    found = np.rint(weight * scale).astype(np.int64)
    found[(weight > 0) & (found == 0)] = 1
    return found


def read_hypergraph(path: str | pathlib.Path) -> Hypergraph:
    """A file of either format: their first lines have five and three numbers."""
    lines = _numbers(path)
    head = lines[0] if lines else []
    if len(head) == 5 and head[4] == 3:
        base, vertices, nets = head[:3]
        rows, weights = lines[1 : 1 + nets], [n for row in lines[1 + nets :] for n in row]
    elif len(head) == 3 and head[2] == 11:
        base, (nets, vertices) = 1, head[:2]
        rows, weights = lines[1 : 1 + nets], [n for row in lines[1 + nets :] for n in row]
    else:
        raise InputError(f"'{path}' is no hypergraph with both weights, of PaToH or hMETIS.")
    if len(rows) != nets or len(weights) != vertices or not all(rows):
        raise InputError(
            f"'{path}' is damaged: it has {len(rows)} of {nets} nets, and weights of {len(weights)} of "
            f"{vertices} vertices."
        )
    pins = np.array([pin - base for row in rows for pin in row[1:]], np.int64)
    at = np.concatenate([[0], np.cumsum([len(row) - 1 for row in rows])])
    return Hypergraph(np.array(weights, float), np.array([row[0] for row in rows]), at, pins)


def read_partition(path: str | pathlib.Path) -> Array:
    """The part of each vertex, from 0 on."""
    parts = np.array([n for row in _numbers(path) for n in row], np.int64)
    if not len(parts) or parts.min() < 0:
        raise InputError(f"'{path}' is no partition: it lists the part of each vertex, from 0 on.")
    return parts


def write_partition(parts: Array, path: str | pathlib.Path) -> None:
    pathlib.Path(path).write_text("".join(f"{p}\n" for p in parts.tolist()))


def _numbers(path: str | pathlib.Path) -> list[list[int]]:
    """The numbers of every line; lines that begin with % are comments."""
    try:
        text = pathlib.Path(path).read_text()
        return [
            [int(word) for word in line.split()]
            for line in text.splitlines()
            if line.strip() and not line.startswith("%")
        ]
    except FileNotFoundError:
        raise InputError(f"there is no file '{path}'.") from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise InputError(f"'{path}' has something other than numbers: {error}.") from None
