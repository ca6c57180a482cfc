"""Measures and simulates the rows of the thesis's Table 5.15 for one number of ranks.

A row is a kind of parallelism (lab_plans.py); its label is its name in the table. The thesis is that of
B. Eserol (docs/papers.md).
"""

# on: the cluster that plans are made for

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.thesis import lab_model
from experiments.thesis.core_sharing import step_seconds
from experiments.thesis.lab_plans import plan_or_ddp, plans_by_row
from experiments.timing import DdpBaseline, run_ranks
from raddle.api.clusters import Cluster, cores
from raddle.api.costs import Profile
from raddle.api.lab import parse_rate
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.plans import Plan, save_plan
from raddle.api.probing import describe, probe
from raddle.files import read_scratch, write_scratch

SPEC = f"{lab_model.__file__}:vgg"
LATENCY = 2e-4  # seconds; assumed for planning, before the link is measured


class RatePair(NamedTuple):
    """Images per second of one row at one batch."""

    measured: float
    simulated: float


class Grid(NamedTuple):
    """Table 5.15 for one number of ranks. cells: (row, batch) -> rates."""

    ranks: int
    cells: Mapping[tuple[str, int], RatePair]
    # bandwidth (bytes/s), latency (seconds) and host_overhead (seconds that communication takes from a rank
    # that computes, by what is communicated: per message, per byte ...), as measured there; None: one rank
    link: Mapping[str, Any] | None


class GridSize(NamedTuple):
    """The extent of the measurement.

    A block is some steps of one row, at least two and at most eight, with about `images` images in all.
    """

    images: int
    rounds: int  # blocks of each row
    budget: float  # seconds of a search


def run_grid(
    ranks: int, batches: Sequence[int], rate: str, size: GridSize, report: Callable[[str], None]
) -> Grid:
    """Measures and simulates all rows. InputError if there can be no lab; one rank needs none.

    rate: of each host's link; report: shows progress.
    """
    devices = describe(probe(max(2, ranks), quick=True))["devices"]
    device = next(iter(devices))  # the name of the kind of device
    planning_cluster = _lab_cluster(
        ranks, devices, {"bandwidth": parse_rate(rate) / 8, "latency": LATENCY}
    )
    graphs: dict[int, Graph] = {}
    chosen: dict[int, dict[str, Plan]] = {}
    for batch in batches:
        report(f"{ranks} ranks, batch {batch}: planning")
        graphs[batch] = capture_model(SPEC, batch)
        chosen[batch] = plans_by_row(graphs[batch], planning_cluster, budget=size.budget)
    report(f"{ranks} ranks: measuring")
    measured = _measure(ranks, rate if ranks > 1 else None, device, graphs, chosen, size)
    on = _lab_cluster(ranks, devices, measured["link"]) if measured["link"] else planning_cluster
    cells = {}
    for batch, plans_of_batch in chosen.items():
        report(f"{ranks} ranks, batch {batch}: simulating")
        measured_batch = measured["batches"][str(batch)]
        for label, plan in plans_of_batch.items():
            graph = micro_batch_graph(graphs[batch], plan)
            seconds = step_seconds(graph, plan, on, Profile(measured_batch["profile"]), cores())
            cells[label, batch] = RatePair(measured_batch["images_per_s"][label], batch / seconds)
    return Grid(ranks, cells, measured["link"])


def micro_batch_graph(graph: Graph, plan: Plan) -> Graph:
    """Returns the graph that the plan's tiles refer to: of a micro-batch, if `auto` chose a pipeline."""
    return graph if plan.microbatches == 1 else graph.for_batch(-(-plan.batch // plan.microbatches))


def _lab_cluster(ranks: int, devices: Mapping[str, Any], link: Mapping[str, Any]) -> Cluster:
    """Returns the lab as a cluster: a probed device on each host, and links as given."""
    kind = next(iter(devices))
    device_fields: dict[str, Any] = {
        **devices[kind],
        "host_overhead": link.get("host_overhead", {}),
    }
    network: dict[str, Any] = {"duplex": True, "per_device": False}
    network |= {key: link[key] for key in ("bandwidth", "latency")}
    return Cluster.from_dict(
        {
            "name": "lab",
            "devices": {kind: device_fields},
            "nodes": [{"count": ranks, "devices": [kind]}],
            "network": network,
        }
    )


def _measure(
    ranks: int, rate: str | None, device: str, graphs: Mapping[int, Graph],
    chosen: Mapping[int, Mapping[str, Plan]], size: GridSize,
) -> dict[str, Any]:  # fmt: skip
    """Measures all plans on the ranks; returns the result of lab_rank.py.

    The result has `link`, and by batch `images_per_s` (by label) and `profile`. graphs: by batch; chosen:
    the plans by batch and label of a row; device: the kind of device.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # batch -> label of a row -> file of its plan; for DDP: megabytes of a bucket
        batches: dict[int, dict[str, float | str | None]] = {}
        for batch, plans_of_batch in chosen.items():
            batches[batch] = {}
            for number, (label, plan) in enumerate(plans_of_batch.items()):
                run = plan_or_ddp(label, plan)
                path = folder / f"{batch}.{number}.json"
                batches[batch][label] = run.bucket_mb if isinstance(run, DdpBaseline) else str(path)
                save_plan(plan, micro_batch_graph(graphs[batch], plan), path)
        request = {
            "spec": SPEC, "batches": batches, "device": device, "images": size.images,
            "rounds": size.rounds, "out": str(folder / "result.json"),
        }  # fmt: skip
        write_scratch(folder / "request.json", request)
        run_ranks(ranks, rate, ["-m", "experiments.thesis.lab_rank", str(folder / "request.json")])
        result: dict[str, Any] = read_scratch(folder / "result.json")
    return result
