"""Made-up measured blocks of a graph, for tests of what uses a profile."""

from __future__ import annotations

import random

from raddle.clusters import Device
from raddle.costs.compute import ComputeCosts
from raddle.costs.measured_blocks import MeasuredBlock, MeasuredBlocks, device_numbers, fit_block
from raddle.graph.gradients import active_values
from raddle.graph.graph import Graph


def drawn_blocks(
    graph: Graph, device: Device, seed: int = 0, floor: float = 1e-4
) -> MeasuredBlocks:
    """Blocks of random lengths, forward and backward, measured at the graph's batch and at a part of it.

    Every operator is in a block. floor: the most seconds that the host needs for a block.
    """
    rng, costs = random.Random(seed), ComputeCosts(graph, active_values(graph), bn="local")
    blocks: list[MeasuredBlock] = []
    start = 0
    while start < len(graph.ops):
        end = start + rng.randint(1, 20)
        for phase in "FB":
            works = {
                op.name: costs.work_seconds(op, op.space.full, phase, device)
                for op in graph.ops[start:end]
            }
            work, seconds = sum(works.values()), rng.uniform(1e-5, 1e-3)
            samples = [(work, seconds), (work / 8, seconds * rng.uniform(0.1, 1.1))]
            blocks.append(fit_block(phase, samples, works, rng.uniform(0, floor)))
        start = end
    return MeasuredBlocks(
        device_numbers(device), graph.name, graph.batch, "float32", False,
        rng.uniform(1e9, 1e12), tuple(blocks), {op.name: costs.identity(op) for op in graph.ops},
    )  # fmt: skip
