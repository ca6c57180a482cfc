"""All the sets of layers that a pipeline can have behind it: those that hold what their layers read.

Such a set is an *ideal* (a down-set) of the graph. A pipeline is a chain of ideals from the empty one to
the whole graph, and a stage is what an ideal adds to the one before: the convex sets of layers. A
network of n layers one after the other has n + 1 ideals; branches multiply, blocks that follow each
other add.

Ideals are numbered by size, so that the ideals in an ideal have lower numbers. Those that lack one
layer of an ideal are *covered* by it, and what is to be known of all ideals in an ideal can be handed on
from those.
"""

# i, j: ideals, s: a size, v: a layer, u: one that v reads, w: one that reads v, b: a word of 64 layers

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from raddle.searches.pipeline.layers import predecessors, topological_order

Array = np.ndarray[Any, np.dtype[Any]]

# The index of the only bit that is set, by what multiplying with this constant leaves in the top six bits.
DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
BIT_INDEX = np.zeros(64, np.int64)
for _bit in range(64):
    BIT_INDEX[((1 << _bit) * int(DE_BRUIJN) % 2**64) >> 58] = _bit


MAX_WORDS = 8_000_000  # of the members of all ideals: 64 MB, and as much again while they are made
PAIRS_PER_IDEAL = 4  # of one size, for each ideal that may be made in all


class Edges(NamedTuple):
    """Which layers each layer reads, and which read it; both as ragged rows."""

    read_start: Array
    reads: Array
    reader_start: Array
    readers: Array


class Level(NamedTuple):
    """Ideals of one size."""

    members: Array
    addable: Array  # layers that could be added, as bits
    hash: Array
    added: Array


@dataclass(frozen=True)
class Ideals:
    """The empty ideal is number 0, the whole graph the last one."""

    members: Array  # by ideal: its layers as bits of words, uint64
    level_start: Array  # by size, the first ideal of that size; then their number
    covered: Array  # the ideals that are covered, by ideal from below_start on
    covered_start: Array
    added: Array  # by ideal, the layer that the first one it covers has not; -1 for the empty one
    complete: bool  # whether these are all

    def __len__(self) -> int:
        return len(self.members)

    def sums(self, values: Sequence[float] | Array) -> Array:
        """By ideal, the sum over its layers."""
        return _sums(self.covered, self.covered_start, self.added, np.asarray(values, float))

    def layers_between(self, lower: int, upper: int) -> list[int]:
        """The layers that an ideal has and a smaller one in it has not, in rising order."""
        bits = self.members[upper] & ~self.members[lower]
        return [v for v in range(64 * len(bits)) if int(bits[v // 64]) >> (v % 64) & 1]

    def subsets_of(self, i: int, among: Array) -> Array:
        """Those of the ideals in question that are part of this one."""
        outside = self.members[among] & ~self.members[i]
        result: Array = among[~outside.any(axis=1)]
        return result


def ideals_of(successors: Sequence[Sequence[int]], *, max_ideals: int = 1_000_000) -> Ideals:
    """All ideals; where there are more than the limit, those that are prefixes of a topological order.

    A recurrent network of many steps is so wide that its ideals would fill the memory: of large graphs
    fewer are made, and none of a size that has far too many.
    """
    return _cached_ideals(tuple(tuple(row) for row in successors), max_ideals)


@lru_cache(maxsize=2)  # asked for again for every number of micro-batches
def _cached_ideals(successors: tuple[tuple[int, ...], ...], max_ideals: int) -> Ideals:
    max_ideals = min(max_ideals, MAX_WORDS // ((len(successors) + 63) // 64 or 1))
    edges = edges_of(successors)
    rng = np.random.default_rng(0)  # keys of hash tables: they do not change what is found
    keys = rng.integers(0, 2**64, len(successors), np.uint64)
    levels = [_empty_level(edges, len(keys))]
    covered, covered_count, level_start = [], [np.zeros(1, np.int64)], [0, 1]
    for s in range(len(keys)):
        if _count_pairs(levels[s].addable) > PAIRS_PER_IDEAL * max_ideals:
            return prefix_ideals(topological_order(successors))
        larger, child, parent = _next_size(levels[s], edges, keys)
        levels.append(larger)
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
    """The edges as arrays."""
    return Edges(*_ragged(predecessors(successors)), *_ragged([sorted({*x}) for x in successors]))


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Rows of different lengths as one array, and where each starts."""
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return start, np.array([x for row in rows for x in row], np.int64)


def prefix_ideals(order: Sequence[int]) -> Ideals:
    """The ideals that a topological order has as prefixes: a chain of them."""
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
    result = np.zeros(len(added))
    for i in range(1, len(added)):
        result[i] = result[covered[covered_start[i]]] + values[added[i]]
    return result


@njit(cache=True)
def bit_index(bit: np.uint64) -> int:
    return int(BIT_INDEX[(bit * DE_BRUIJN) >> np.uint64(58)])


def _empty_level(edges: Edges, layers: int) -> Level:
    addable = np.zeros((1, (layers + 63) // 64), np.uint64)
    for v in np.flatnonzero(np.diff(edges.read_start) == 0):
        addable[0, v // 64] |= np.uint64(1 << (int(v) % 64))
    return Level(np.zeros_like(addable), addable, np.zeros(1, np.uint64), np.full(1, -1, np.int32))


@njit(cache=True)
def _count_pairs(addable: Array) -> int:
    """How many ideals with one layer more there are, each counted as often as it is reached."""
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
    """The ideals with one layer more, and which covers which, by numbers within the two sizes.

    Equal ones are found by a hash that is the exclusive or of its layers' keys.
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
    slots = np.full(2 ** int(np.ceil(np.log2(2 * pairs))), -1, np.int32)
    pair, filled = 0, 0
    for i in range(count):
        for b in range(words):
            remaining = level.addable[i, b]
            while remaining:
                bit = remaining & (~remaining + one)
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
    """Where in the table the ideal with these members and one more layer is, or belongs."""
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
    """Write ideal i and layer v as ideal j: v is no longer free, those that waited for it are."""
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
