"""Finds orders in which elimination.py eliminates nodes, so that the new tables are small.

To eliminate a node is to replace its tables of costs by one table over its neighbours. If it has two
neighbours, this is a min-plus product of two matrices, out[i, j] = min over x of a[i, x] + b[x, j]. The
parameter `links` maps each node to its neighbours.
"""

# i, j, v: nodes

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence


def two_neighbour_nodes(links: Mapping[int, Collection[int]]) -> list[int]:
    """Returns nodes with exactly two neighbours that can be eliminated together: none are neighbours.

    Equal blocks of a network are then eliminated in equal ways, so that their products are shared. Nodes on
    cycles come first: when the cycles are gone, the others are ends of chains, which need no product.
    """
    candidates = [v for v, neighbours in links.items() if len(neighbours) == 2]
    on_cycles = _nodes_on_cycles(links) if candidates else set()
    taken: dict[int, None] = {}
    for v in [v for v in candidates if v in on_cycles] or candidates:
        if not any(i in taken for i in links[v]):
            taken[v] = None
    return list(taken)


def _nodes_on_cycles(links: Mapping[int, Collection[int]]) -> set[int]:
    """Returns the nodes on cycles.

    An edge of a spanning tree is on a cycle if some other edge leads out of the subtree below it.
    """
    parent: dict[int, int] = {}
    tree = [v for part in components(links, parent) for v in part]
    leaving = dict.fromkeys(tree, 0)  # by subtree root, a bit for each non-tree edge that leads out
    non_tree_edges = [
        (v, i) for v in tree for i in links[v] if v < i and v != parent[i] and i != parent[v]
    ]
    # Bits are combined by exclusive or: an edge with both ends in a subtree does not leave it, and cancels.
    for bit, ends in enumerate(non_tree_edges):
        for v in ends:
            leaving[v] ^= 1 << bit
    on_cycles: set[int] = set()
    for v in reversed(tree):
        if leaving[v]:
            on_cycles |= {v, parent[v]}
            leaving[parent[v]] ^= leaving[v]
    return on_cycles


def components(
    links: Mapping[int, Collection[int]], parent: dict[int, int] | None = None
) -> list[list[int]]:
    """Returns the connected components. In each, a node comes after its parent in a spanning tree.

    parent: is filled with the parent of each node; a root is its own parent.
    """
    parent = {} if parent is None else parent
    parts = []
    for root in links:
        if root not in parent:
            parent[root] = root
            part = [root]
            for i in part:  # the list grows
                new = [j for j in links[i] if j not in parent]
                parent.update(dict.fromkeys(new, i))
                part += new
            parts.append(part)
    return parts


def smallest_tables_first(
    links: Mapping[int, Collection[int]], sizes: Sequence[int], limit: int
) -> list[int] | None:
    """Returns an order of elimination: the node whose new table is smallest always comes next.

    sizes: number of configurations of each node. Returns None if a table over three or more nodes would
    have more than `limit` entries, or all such tables together more than four times as many.
    """
    remaining = {i: set(neighbours) for i, neighbours in links.items()}

    def entries(i: int) -> int:
        return math.prod(sizes[j] for j in remaining[i])

    # By node, the number of entries of the table that its elimination would make.
    table = {i: entries(i) for i in remaining}
    ordered: list[int] = []
    total = 0
    while remaining:
        i = min(table, key=table.__getitem__)
        adjacent, entries_made = remaining.pop(i), table.pop(i)
        if len(adjacent) > 2:
            total += entries_made
            if entries_made > limit or total > 4 * limit:
                return None
        for j in adjacent:
            remaining[j] = (remaining[j] | adjacent) - {i, j}
        table.update({j: entries(j) for j in adjacent})
        ordered.append(i)
    return ordered
