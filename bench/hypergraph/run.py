"""Compares hypergraph partitions of the thesis (PaToH), of raddle and of Mt-KaHyPar; see README.md.

The thesis is that of B. Eserol (docs/papers.md). A partition distributes the filters of a network over
parts (devices); its volume is what crosses parts in a forward, in Mi elements.

python bench/hypergraph/run.py          (about ten minutes, one core)
"""

from __future__ import annotations

import json
import pathlib
import sys
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # the experiments

from experiments.thesis.printed import COARSE, FINE, PARTS, RECONSTRUCTED
from raddle.api.loading import capture_model
from raddle.searches.hypergraph.counts import imbalance, volume
from raddle.searches.hypergraph.kahypar_blocks import partition_blocks
from raddle.searches.hypergraph.partitioner import Partitioner, PartitionRequest

MI = 2**20
BLOCKS = 32  # per layer, for Mt-KaHyPar
# Tables 5.9 to 5.12: volume, and the largest part's work over the average.
PATOH = {
    printed_table.method: {n: row.volume for n, row in printed_table.rows.items()}
    for printed_table in (COARSE, FINE)
}
PATOH_IMBALANCE = {n: round(row.imbalance - 1, 3) for n, row in COARSE.rows.items()}


def kahypar(partitioner: Partitioner, parts: int, epsilon: float) -> dict[str, Any]:
    """Returns volume, imbalance and seconds of Mt-KaHyPar's partition.

    epsilon: a part may have (1 + epsilon) x the average work.
    """
    begun = perf_counter()
    x = partition_blocks(partitioner.model, parts, epsilon, BLOCKS, 0)
    return {
        "volume": volume(partitioner.model, x) / MI,
        "imbalance": imbalance(partitioner.model, x),
        "seconds": perf_counter() - begun,
    }


def ours(
    partitioner: Partitioner, method: str, parts: int, epsilon: float = 0.1, budget: float = 10.0
) -> dict[str, Any]:
    """Returns volume, bytes, imbalance, lower bound and seconds of one of raddle's methods."""
    result = partitioner.partition(method, PartitionRequest(parts, epsilon=epsilon, budget=budget))
    return {
        "volume": result.volume / MI,
        "bytes": result.volume_bytes,
        "imbalance": result.imbalance,
        "bound": result.lower_bound and result.lower_bound / MI,
        "seconds": result.seconds,
    }


def vgg16() -> list[dict[str, Any]]:
    """Compares all methods on VGG-16; returns a row for each number of parts."""
    partitioner = Partitioner(capture_model("vgg16", 32))
    rows = []
    for parts in PARTS:
        row: dict[str, Any] = {"parts": parts, "patoh": {k: v[parts] for k, v in PATOH.items()}}
        for method in ("filter-horizontal", "filter-incremental", "channel-incremental"):
            row[method] = ours(partitioner, method, parts)
        if parts <= 16:
            row["layerwise"] = ours(partitioner, "layerwise", parts)
            row["mixed"] = ours(partitioner, "mixed", parts)
        row["mt-kahypar"] = kahypar(partitioner, parts, 0.1)
        row["coarse"] = ours(partitioner, "coarse", parts)
        row["coarse 0.03"] = ours(partitioner, "coarse", parts, 0.03)
        row["fine"] = ours(partitioner, "fine", parts)
        rows.append(print_row(row))
    return rows


def reconstructed() -> list[dict[str, Any]]:
    """Compares partitions under the reconstructed weights; returns a row for each number of parts.

    A weight is the work of a layer (experiments/thesis/printed.py). Linear layers are one vertex, and the
    imbalance is PaToH's.
    """
    partitioner = Partitioner(
        capture_model("vgg16", 32), np.array(RECONSTRUCTED, float), connected_as_one=True
    )
    return [
        print_row(
            {
                "parts": parts,
                "epsilon": PATOH_IMBALANCE[parts],
                "patoh": PATOH["coarse"][parts],
                "mt-kahypar": kahypar(partitioner, parts, PATOH_IMBALANCE[parts]),
                "coarse": ours(partitioner, "coarse", parts, PATOH_IMBALANCE[parts]),
            }
        )
        for parts in PARTS
    ]


def epoch() -> list[dict[str, Any]]:
    """Repeats Table 5.14: GiB sent in an epoch of 64,000 images, forward and backward; returns rows.

    All columns are in bytes; the thesis has elements in one of them.
    """
    rows = []
    for batch in (16, 32, 64):
        partitioner = Partitioner(capture_model("vgg16", batch))
        parameters = sum(layer.parameters for layer in partitioner.network.layers)
        for parts in (2, 4, 8):
            steps = 64_000 // batch
            data = 2 * (parts - 1) * 4 * parameters * steps / 2**30
            row: dict[str, Any] = {"parts": parts, "batch": batch, "data": data}
            for method in ("coarse", "fine", "mixed"):
                row[method] = ours(partitioner, method, parts)["bytes"] * steps / 2**30
            rows.append(print_row(row))
    return rows


def others() -> list[dict[str, Any]]:
    """Compares Mt-KaHyPar and raddle's coarse partitions on further networks; returns the rows."""
    rows = []
    for model in ("resnet50", "inception_v3", "unet"):
        partitioner = Partitioner(capture_model(model, 32))
        for parts in PARTS[:5]:
            row = {"model": model, "parts": parts}
            row |= {
                "mt-kahypar": kahypar(partitioner, parts, 0.1),
                "coarse": ours(partitioner, "coarse", parts),
            }
            rows.append(print_row(row))
    return rows


def print_row(row: dict[str, Any]) -> dict[str, Any]:
    """Prints a row as JSON and returns it."""
    print(json.dumps(row), flush=True)
    return row


def main(*names: str) -> None:
    """Makes the named tables, or all, and writes them to results.json."""
    path = pathlib.Path(__file__).parent / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for table in (vgg16, reconstructed, epoch, others):
        if not names or table.__name__ in names:
            results[table.__name__] = table()
            path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
