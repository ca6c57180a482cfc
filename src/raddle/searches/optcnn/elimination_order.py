"""The order in which nodes are eliminated, so that the tables that this makes stay small."""

# i, j, v: nodes

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence


def between(links: Mapping[int, Collection[int]]) -> list[int]:
    """Nodes with two neighbours, no two of them neighbours, so that equal blocks fold in equal ways.

    Those on no cycle wait for the others: with the cycles behind them gone, they are ends of chains.
    """
    two = [v for v, near in links.items() if len(near) == 2]
    cyclic = _on_cycles(links) if two else set()
    taken: dict[int, None] = {}
    for v in [v for v in two if v in cyclic] or two:
        if not any(i in taken for i in links[v]):
            taken[v] = None
    return list(taken)


def _on_cycles(links: Mapping[int, Collection[int]]) -> set[int]:
    """A tree's edge is on a cycle if some other edge leads out of the nodes that hang on it."""
    parent: dict[int, int] = {}
    tree = [v for part in components(links, parent) for v in part]
    out = dict.fromkeys(tree, 0)  # a bit for each edge that leads out, and is not the tree's
    others = [(v, i) for v in tree for i in links[v] if v < i and v != parent[i] and i != parent[v]]
    for bit, ends in enumerate(others):
        for v in ends:
            out[v] ^= 1 << bit
    found: set[int] = set()
    for v in reversed(tree):
        if out[v]:
            found |= {v, parent[v]}
            out[parent[v]] ^= out[v]
    return found


def components(
    links: Mapping[int, Collection[int]], parent: dict[int, int] | None = None
) -> list[list[int]]:
    """Nodes that hang together, each after its parent in a spanning tree; a root is its own."""
    parent = {} if parent is None else parent
    found = []
    for root in links:
        if root not in parent:
            parent[root] = root
            part = [root]
            for i in part:  # which grows
                new = [j for j in links[i] if j not in parent]
                parent.update(dict.fromkeys(new, i))
                part += new
            found.append(part)
    return found


def order(
    links: Mapping[int, Collection[int]], sizes: Sequence[int], limit: int
) -> list[int] | None:
    """The smallest new table first; none if one over three or more nodes would be too large."""
    left = {i: set(near) for i, near in links.items()}

    def entries(i: int) -> int:
        return math.prod(sizes[j] for j in left[i])

    table = {i: entries(i) for i in left}
    found: list[int] = []
    total = 0
    while left:
        i = min(table, key=table.__getitem__)
        near, new = left.pop(i), table.pop(i)
        if len(near) > 2:
            total += new
            if new > limit or total > 4 * limit:
                return None
        for j in near:
            left[j] = (left[j] | near) - {i, j}
        table.update({j: entries(j) for j in near})
        found.append(i)
    return found
