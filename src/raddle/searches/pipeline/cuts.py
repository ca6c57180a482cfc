"""Counts the bytes of activations that are sent over a cut between two pipeline stages, in two ways.

An ideal (see ideals.py) is a set of layers that can run before a cut. For each ideal, the functions return
the bytes at the cut after it:

`crossing_bytes`: the output of a layer in the ideal counts once if a layer outside the ideal reads it. Each
stage passes such a value on to the next one, so the value counts at every cut that it crosses.

`antichain_bytes`: the counting of PipeDream's optimizer, which calls the last layers of an ideal an
antichain. It adds the outputs of
- the last layers of the ideal (no layer of the ideal reads them), even if no layer at all reads them;
- for each last layer v, each direct or indirect predecessor of v that is also read by a layer
  that is neither v nor a predecessor of v. This reader may be inside the ideal.
The result is never less than the crossing bytes, and is more where branches fork and end in the ideal.
"""

# i, j: ideals; v: a layer, u: a layer that v reads, w: a layer that reads u
# Sets of layers are bits: layer v is bit v % 64 of word v // 64; b, c: words.

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from raddle.searches.pipeline.ideals import Array, Edges, Ideals, bit_index, edges_of
from raddle.searches.pipeline.layers import predecessors, topological_order


def crossing_bytes(
    ideals: Ideals, activation: Sequence[float], successors: Sequence[Sequence[int]]
) -> Array:
    """Return, for each ideal, the bytes of its layers' outputs that layers outside the ideal read.

    activation: output bytes of each layer; successors: the layers that read each layer.
    """
    return _crossing(
        ideals.members,
        ideals.covered,
        ideals.covered_start,
        ideals.added,
        edges_of(successors),
        np.asarray(activation, float),
    )


def antichain_bytes(
    ideals: Ideals, activation: Sequence[float], successors: Sequence[Sequence[int]]
) -> Array:
    """Return, for each ideal, the bytes that PipeDream's optimizer counts at the cut after it."""
    reads = [sum(1 << u for u in row) for row in predecessors(successors)]
    return _antichain(
        ideals.covered,
        ideals.covered_start,
        ideals.added,
        _bit_words(reads),
        _bit_words(_still_read(successors)),
        np.asarray(activation, float),
    )


def _bit_words(rows: Sequence[int]) -> Array:
    """Convert sets of layers, given as bits of Python ints, to words of 64 bits: [set, word]."""
    word_count = (len(rows) + 63) // 64
    return np.array(
        [[row >> (64 * b) & (2**64 - 1) for b in range(word_count)] for row in rows], np.uint64
    )


def _still_read(successors: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each layer v, the layers whose outputs `antichain_bytes` adds if v is a last layer.

    Each set is given as bits. It holds v, and each direct or indirect predecessor of v that is also read by
    a layer which is neither v nor a predecessor of v.
    """
    read = predecessors(successors)
    readers = [sum(1 << w for w in set(row)) for row in successors]
    # For each layer, as bits: the layer and all its direct and indirect predecessors.
    with_predecessors = [0] * len(read)
    result = [0] * len(read)
    for v in topological_order(successors):
        before = 0
        for u in read[v]:
            before |= with_predecessors[u]
        with_predecessors[v] = before | 1 << v
        result[v] = 1 << v
        for u in range(len(read)):
            if before >> u & 1 and readers[u] & ~with_predecessors[v]:
                result[v] |= 1 << u
    return result


@njit(cache=True)
def _crossing(
    members: Array,
    covered: Array,
    covered_start: Array,
    added: Array,
    edges: Edges,
    activation: Array,
) -> Array:
    """Compute `crossing_bytes`; the first four arguments are fields of `Ideals`.

    members: the layers of each ideal as bits, [ideal, word]. Ideal j covers the ideals that have one layer
    less; covered[covered_start[j]] is the first of them, and added[j] is the layer v that this one lacks.
    Adding v adds its output to the cut, and removes the outputs that no layer outside the ideal reads any
    more. edges: the layers that each layer reads, and its readers (Edges in ideals.py).
    """
    one = np.uint64(1)
    result = np.zeros(len(members))
    for j in range(1, len(members)):
        v = added[j]
        total = result[covered[covered_start[j]]]
        if edges.reader_start[v] < edges.reader_start[v + 1]:  # a layer reads v
            total += activation[v]
        for u in edges.reads[edges.read_start[v] : edges.read_start[v + 1]]:
            crosses = False
            for w in edges.readers[edges.reader_start[u] : edges.reader_start[u + 1]]:
                crosses = crosses or not (members[j, w >> 6] >> np.uint64(w & 63)) & one
            if not crosses:
                total -= activation[u]
        result[j] = total
    return result


@njit(cache=True)
def _antichain(
    covered: Array,
    covered_start: Array,
    added: Array,
    reads: Array,
    still_read: Array,
    activation: Array,
) -> Array:
    """Compute `antichain_bytes`; the first three arguments are fields of `Ideals`, as in `_crossing`.

    reads: for each layer, the layers that it reads; still_read: the sets of `_still_read`. Both are sets as
    bits, [layer, word].
    """
    one = np.uint64(1)
    word_count = reads.shape[1]
    result = np.zeros(len(added))
    # For each ideal, its last layers: those that no layer in it reads.
    last = np.zeros((len(added), word_count), np.uint64)
    counted = np.zeros(word_count, np.uint64)  # the layers whose outputs are added, as bits
    for j in range(1, len(added)):
        v, i = added[j], covered[covered_start[j]]
        counted[:] = 0
        for b in range(word_count):
            remaining = last[i, b] & ~reads[v, b]
            if b == v >> 6:
                remaining |= one << np.uint64(v & 63)
            last[j, b] = remaining
            while remaining:
                bit = remaining & (~remaining + one)  # the lowest bit that is set
                remaining ^= bit
                u = 64 * b + bit_index(bit)
                for c in range(word_count):
                    counted[c] |= still_read[u, c]
        for b in range(word_count):
            remaining = counted[b]
            while remaining:
                bit = remaining & (~remaining + one)
                remaining ^= bit
                result[j] += activation[64 * b + bit_index(bit)]
    return result
