"""The compiled functions of partitioners."""

from __future__ import annotations

from pathlib import Path

from raddle.searches.jit_warmup import JitFunctions, tiny_graph


def compile_partitioners() -> None:
    """Partitions a network of two layers, in every way."""
    from raddle.searches.hypergraph.partitioner import SOLVED, Asked, Partitioner

    partitioner = Partitioner(tiny_graph(layers=2, width=4))
    for method in SOLVED:
        partitioner.answer(method, Asked(2, budget=0.2))


PARTITIONERS = JitFunctions(
    "the partitioners",
    50,
    str(Path(__file__).parent),
    ("coarse_annealing._walk-*.nbi", "fine_annealing.anneal-*.nbi", "mixed_annealing.anneal-*.nbi"),
    compile_partitioners,
)
