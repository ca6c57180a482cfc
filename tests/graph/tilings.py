"""Random tilings of a graph: irregular, uneven partitions of iteration spaces, sums included."""

from __future__ import annotations

import random

from raddle.graph.box import Box
from raddle.graph.graph import Graph
from raddle.graph.space import Space


def random_tiles(
    graph: Graph, seed: int, share: float = 0.8, cuts: int = 3
) -> dict[str, list[Box]]:
    """Boxes for about a `share` of the operators, by name; the others run whole. The same for the same seed."""
    rng = random.Random(seed)
    return {op.name: partition(op.space, rng, cuts) for op in graph.ops if rng.random() < share}


def partition(space: Space, rng: random.Random, cuts: int) -> list[Box]:
    """An iteration space, cut up to `cuts` times: each cut halves a random box somewhere."""
    boxes = [space.full]
    for _ in range(cuts):
        i = rng.randrange(len(boxes))
        box = boxes[i]
        able = [d for d, dim in enumerate(space.dims) if not dim.whole and box.shape[d] > 1]
        if able:
            boxes[i : i + 1] = _cut(
                box, d := rng.choice(able), rng.randrange(box.lo[d] + 1, box.hi[d])
            )
    return boxes


def _cut(box: Box, d: int, at: int) -> list[Box]:
    return [
        Box(box.lo, (*box.hi[:d], at, *box.hi[d + 1 :])),
        Box((*box.lo[:d], at, *box.lo[d + 1 :]), box.hi),
    ]
