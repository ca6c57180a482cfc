"""Which of its holders is the home of a slice: they take turns, or the one that has least gets it."""

from __future__ import annotations

from collections.abc import Sequence


def round_robin(sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
    """Holders take turns."""
    servers = []
    turns: dict[tuple[int, ...], int] = {}
    for group in map(tuple, holders):
        turn = turns.get(group, 0)
        servers.append(group[turn % len(group)])
        turns[group] = turn + 1
    return servers


def greedy(sizes: Sequence[int], holders: Sequence[Sequence[int]]) -> list[int]:
    """The largest that is left goes to the holder that has least."""
    servers = [-1] * len(sizes)
    load: dict[int, int] = {}
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        servers[i] = min(holders[i], key=lambda d: (load.get(d, 0), d))
        load[servers[i]] = load.get(servers[i], 0) + sizes[i]
    return servers
