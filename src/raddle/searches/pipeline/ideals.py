"""Enumerates the ideals of a graph of layers: the sets of layers that can run before a cut of a pipeline.

An *ideal* (a down-set) is a set of layers that contains, with each layer, all layers that this layer reads.
A pipeline is a chain of growing ideals, from the empty one to the whole graph. Each stage consists of the
layers that one ideal has and the ideal before it does not have; such a set of layers is convex.

A sequence of n layers has n + 1 ideals. For parallel branches the numbers of ideals multiply; for blocks
that follow each other they add.

Ideals are numbered by size, so a subset of an ideal has a lower number. Ideal j *covers* ideal i if i has
one layer less. A result for all subsets of j, such as a maximum, follows from the results of the ideals
that j covers.

Sets of layers are bits of 64-bit words: layer v is bit v % 64 of word v // 64.
"""

# i, j: ideals; s: a size; v: a layer, u: a layer that v reads, w: a layer that reads v; b, c: words

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from raddle.searches.pipeline.layers import predecessors, topological_order

Array = np.ndarray[Any, np.dtype[Any]]

# Finds the index of the only bit that is set: a product with this constant has a different value in its
# top six bits for each bit, and BIT_INDEX maps this value to the index (a de Bruijn sequence).
DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
BIT_INDEX = np.zeros(64, np.int64)
for _bit in range(64):
    BIT_INDEX[((1 << _bit) * int(DE_BRUIJN) % 2**64) >> 58] = _bit


MAX_WORDS = 8_000_000  # in `Ideals.members`: 64 MB, and as much again during the enumeration
# Enumeration stops if ideals of one size can be extended by a layer in more ways than this x max_ideals.
PAIRS_PER_IDEAL = 4


class Edges(NamedTuple):
    """The edges of the graph of layers, as two ragged arrays.

    Layer v reads reads[read_start[v] : read_start[v + 1]]; its readers are in `readers` in the same way.
    """

    read_start: Array
    reads: Array  # layers
    reader_start: Array
    readers: Array  # layers


class Level(NamedTuple):
    """All ideals of one size, one row each."""

    members: Array  # the layers, as bits
    addable: Array  # the layers that give a larger ideal if one of them is added, as bits
    hash: Array  # exclusive or of the random keys of the layers
    added: Array  # as in `Ideals`


@dataclass(frozen=True)
class Ideals:
    """Ideals of a graph; the empty one is number 0, the whole graph is the last one."""

    members: Array  # [ideal, word]: the layers, as bits of uint64 words
    # For each size, the first ideal of that size; the last entry is the number of ideals.
    level_start: Array
    covered: Array  # ideal i covers the ideals covered[covered_start[i] : covered_start[i + 1]]
    covered_start: Array
    # For each ideal: the layer that it has, and the first of the ideals that it covers does not have; -1
    # for the empty ideal.
    added: Array
    complete: bool  # whether these are all ideals of the graph

    def __len__(self) -> int:
        return len(self.members)

    def sums(self, values: Sequence[float] | Array) -> Array:
        """Return, for each ideal, the sum of the values of its layers; `values` has one per layer."""
        return _sums(self.covered, self.covered_start, self.added, np.asarray(values, float))

    def layers_between(self, lower: int, upper: int) -> list[int]:
        """Return the layers that ideal `upper` has and its subset `lower` does not have, ascending."""
        bits = self.members[upper] & ~self.members[lower]
        return [v for v in range(64 * len(bits)) if int(bits[v // 64]) >> (v % 64) & 1]

    def subsets_of(self, i: int, among: Array) -> Array:
        """Return those of the ideals `among` that are subsets of ideal i."""
        outside = self.members[among] & ~self.members[i]
        result: Array = among[~outside.any(axis=1)]
        return result


def ideals_of(successors: Sequence[Sequence[int]], *, max_ideals: int = 1_000_000) -> Ideals:
    """Return all ideals of a graph; if more than `max_ideals`, the prefixes of a topological order.

    A wide graph, such as a recurrent network with many time steps, has so many ideals that they would fill
    the memory. So large graphs have a lower limit (MAX_WORDS), and the enumeration stops before a size
    that has far too many ideals.
    """
    return _cached_ideals(tuple(tuple(row) for row in successors), max_ideals)


@lru_cache(maxsize=2)  # the search calls it again for every number of micro-batches
def _cached_ideals(successors: tuple[tuple[int, ...], ...], max_ideals: int) -> Ideals:
    """Return the ideals, enumerated by size: an ideal and one more layer give an ideal of the next size."""
    max_ideals = min(max_ideals, MAX_WORDS // ((len(successors) + 63) // 64 or 1))
    edges = edges_of(successors)
    # Random keys for the hash table; the result does not depend on them.
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, len(successors), np.uint64)
    levels = [_empty_level(edges, len(keys))]
    covered, covered_count, level_start = [], [np.zeros(1, np.int64)], [0, 1]
    for s in range(len(keys)):
        if _count_pairs(levels[s].addable) > PAIRS_PER_IDEAL * max_ideals:
            return prefix_ideals(topological_order(successors))
        larger, child, parent = _next_size(levels[s], edges, keys)
        levels.append(larger)
        # For each larger ideal in turn: the ideals that it covers.
        covered.append(level_start[s] + parent[np.argsort(child, kind="stable")])
        covered_count.append(np.bincount(child))
        level_start.append(level_start[-1] + len(larger.added))
        if level_start[-1] > max_ideals:
            return prefix_ideals(topological_order(successors))
    return Ideals(
        members=np.concatenate([level.members for level in levels]),
        level_start=np.array(level_start),
        covered=np.concatenate(covered),
        covered_start=np.cumsum(np.concatenate([[0], *covered_count])),
        added=np.concatenate([level.added for level in levels]),
        complete=True,
    )


def edges_of(successors: Sequence[Sequence[int]]) -> Edges:
    """Return the edges as arrays; successors: the readers of each layer."""
    return Edges(*_ragged(predecessors(successors)), *_ragged([sorted({*x}) for x in successors]))


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Return (start of each row, all rows in one array); the last start is the total length."""
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return start, np.array([x for row in rows for x in row], np.int64)


def prefix_ideals(order: Sequence[int]) -> Ideals:
    """Return the prefixes of a topological order as ideals: for n layers, n + 1 ideals."""
    n = len(order)
    members = np.zeros((n + 1, (n + 63) // 64), np.uint64)
    for i, v in enumerate(order, start=1):
        members[i] = members[i - 1]
        members[i, v // 64] |= np.uint64(1 << (v % 64))
    return Ideals(
        members,
        level_start=np.arange(n + 2),
        covered=np.arange(n, dtype=np.int32),
        covered_start=np.array([0, *range(n + 1)]),
        added=np.array([-1, *order], np.int32),
        complete=False,
    )


@njit(cache=True)
def _sums(covered: Array, covered_start: Array, added: Array, values: Array) -> Array:
    """Return `Ideals.sums`: the sum of the first ideal that i covers, plus the value of the added layer."""
    result = np.zeros(len(added))
    for i in range(1, len(added)):
        result[i] = result[covered[covered_start[i]]] + values[added[i]]
    return result


@njit(cache=True)
def bit_index(bit: np.uint64) -> int:
    """Return the index of the only bit that is set."""
    return int(BIT_INDEX[(bit * DE_BRUIJN) >> np.uint64(58)])


def _empty_level(edges: Edges, layers: int) -> Level:
    """Return the level of size 0: the empty ideal, to which layers that read no other can be added."""
    addable = np.zeros((1, (layers + 63) // 64), np.uint64)
    for v in np.flatnonzero(np.diff(edges.read_start) == 0):
        addable[0, v // 64] |= np.uint64(1 << (int(v) % 64))
    return Level(np.zeros_like(addable), addable, np.zeros(1, np.uint64), np.full(1, -1, np.int32))


@njit(cache=True)
def _count_pairs(addable: Array) -> int:
    """Return the number of pairs (ideal, layer that can be added to it), over all ideals of one size."""
    one = np.uint64(1)
    pairs = 0
    for i in range(len(addable)):
        for b in range(addable.shape[1]):
            remaining = addable[i, b]
            while remaining:
                remaining &= remaining - one
                pairs += 1
    return pairs


@njit(cache=True)
def _next_size(level: Level, edges: Edges, keys: Array) -> tuple[Level, Array, Array]:
    """Return (the ideals with one layer more, child, parent).

    For each pair k of an ideal and a layer that can be added to it, larger ideal child[k] covers smaller
    ideal parent[k]; both are counted from 0 within their size. The same larger ideal arises from several
    pairs, so a hash table finds equal ones. keys: by layer, a random number for the hash.
    """
    one = np.uint64(1)
    count, words = level.members.shape
    pairs = _count_pairs(level.addable)
    buffer = Level(
        np.empty((pairs, words), np.uint64),
        np.empty((pairs, words), np.uint64),
        np.empty(pairs, np.uint64),
        np.empty(pairs, np.int32),
    )
    child, parent = np.empty(pairs, np.int32), np.empty(pairs, np.int32)
    # The hash table: each slot has the number of a larger ideal in `buffer`, or -1.
    slots = np.full(2 ** int(np.ceil(np.log2(2 * pairs))), -1, np.int32)
    pair, filled = 0, 0  # pairs so far, different larger ideals so far
    for i in range(count):
        for b in range(words):
            remaining = level.addable[i, b]
            while remaining:
                bit = remaining & (~remaining + one)  # the lowest bit that is set
                remaining ^= bit
                v = 64 * b + bit_index(bit)
                slot = _find_slot(level.members[i], b, bit, level.hash[i] ^ keys[v], buffer, slots)
                if slots[slot] < 0:
                    slots[slot] = filled
                    _write_ideal(level, i, v, edges, buffer, filled)
                    buffer.hash[filled] = level.hash[i] ^ keys[v]
                    filled += 1
                child[pair], parent[pair] = slots[slot], i
                pair += 1
    larger = Level(
        buffer.members[:filled],
        buffer.addable[:filled],
        buffer.hash[:filled],
        buffer.added[:filled],
    )
    return larger, child, parent


@njit(cache=True)
def _find_slot(
    members: Array, b: int, bit: np.uint64, key: np.uint64, buffer: Level, slots: Array
) -> np.int64:
    """Return the slot of the hash table for the ideal `members` with bit `bit` of word b added.

    The slot holds the number of this ideal in `buffer`, or -1 if the ideal is new. key: the ideal's hash.
    """
    slot = np.int64(key & np.uint64(len(slots) - 1))
    while slots[slot] >= 0:
        j = slots[slot]
        same = buffer.hash[j] == key and buffer.members[j, b] == members[b] | bit
        for c in range(len(members)):
            same = same and (c == b or buffer.members[j, c] == members[c])
        if same:
            break
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@njit(cache=True)
def _write_ideal(level: Level, i: int, v: int, edges: Edges, buffer: Level, j: int) -> None:
    """Write ideal i of `level` with layer v added to row j of `buffer`, without its hash.

    Readers of v become addable if all layers that they read are in the ideal now.
    """
    one = np.uint64(1)
    buffer.members[j], buffer.addable[j], buffer.added[j] = level.members[i], level.addable[i], v
    buffer.members[j, v >> 6] |= one << np.uint64(v & 63)
    buffer.addable[j, v >> 6] ^= one << np.uint64(v & 63)
    for w in edges.readers[edges.reader_start[v] : edges.reader_start[v + 1]]:
        ready = True
        for u in edges.reads[edges.read_start[w] : edges.read_start[w + 1]]:
            ready = ready and (buffer.members[j, u >> 6] >> np.uint64(u & 63)) & one == one
        if ready:
            buffer.addable[j, w >> 6] |= one << np.uint64(w & 63)
