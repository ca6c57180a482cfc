"""Lists the numba functions of the partitioners and compiles them before a search is timed.

numba compiles a function at its first call, which takes seconds; its cache files (*.nbi) show whether that
has been done already.
"""

from __future__ import annotations

from pathlib import Path

from raddle.searches.jit_warmup import JitFunctions, tiny_graph


def warm_up_partitioners() -> None:
    """Runs every solver on a graph of two layers, so that numba compiles and caches all functions."""
    from raddle.searches.hypergraph.partitioner import SOLVERS, Partitioner, PartitionRequest

    partitioner = Partitioner(tiny_graph(layers=2, width=4))
    for method in SOLVERS:
        partitioner.partition(method, PartitionRequest(2, budget=0.2))


PARTITIONERS = JitFunctions(
    "the partitioners",
    50,  # seconds, roughly, to compile
    str(Path(__file__).parent),  # folder of the source files
    # Files of numba's cache that show that the functions are compiled:
    ("coarse_annealing._walk-*.nbi", "fine_annealing.anneal-*.nbi", "mixed_annealing.anneal-*.nbi"),
    warm_up_partitioners,
)
