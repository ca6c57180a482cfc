"""Assigns slices of parameters to servers, which update them: each slice gets one of its holders.

Both functions take, by slice, its size in elements and its holders, and return by slice its server.
"""

from __future__ import annotations

from collections.abc import Sequence


def round_robin(sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
    """Assigns the slices of each set of holders to these holders in turn."""
    servers = []
    turns: dict[tuple[int, ...], int] = {}
    for group in map(tuple, holders):
        turn = turns.get(group, 0)
        servers.append(group[turn % len(group)])
        turns[group] = turn + 1
    return servers


def greedy(sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
    """Assigns each slice, the largest first, to its holder with the least load so far."""
    servers = [-1] * len(sizes)
    load: dict[int, int] = {}  # by device, the elements of its slices
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        servers[i] = min(holders[i], key=lambda d: (load.get(d, 0), d))
        load[servers[i]] = load.get(servers[i], 0) + sizes[i]
    return servers
