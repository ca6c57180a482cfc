"""Random tilings of a graph: uneven, irregular partitions of iteration spaces and reduced dimensions."""

from __future__ import annotations

import random

from raddle.graph.box import Box
from raddle.graph.graph import Graph
from raddle.graph.space import Space


def random_tiles(graph: Graph, seed: int, share: float = 0.8) -> dict[str, list[Box]]:
    """Boxes for about a `share` of the operators, by name; the others run as one box."""
    rng = random.Random(seed)
    return {op.name: partition(op.space, rng) for op in graph.ops if rng.random() < share}


def partition(space: Space, rng: random.Random, cuts: int = 3) -> list[Box]:
    """The boxes of an iteration space after up to `cuts` cuts, each of a random box."""
    boxes = [space.full]
    for _ in range(cuts):
        i = rng.randrange(len(boxes))
        box = boxes[i]
        able = [d for d, dim in enumerate(space.dims) if not dim.unsplittable and box.shape[d] > 1]
        if able:
            d = rng.choice(able)
            boxes[i : i + 1] = _cut(box, d, rng.randrange(box.lo[d] + 1, box.hi[d]))
    return boxes


def _cut(box: Box, d: int, at: int) -> list[Box]:
    """The parts of a box below and above the position `at` of dimension d."""
    return [
        Box(box.lo, (*box.hi[:d], at, *box.hi[d + 1 :])),
        Box((*box.lo[:d], at, *box.lo[d + 1 :]), box.hi),
    ]
