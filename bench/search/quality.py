"""Measures the quality of searched plans: the papers' claims, slow networks, 12 models on 4 clusters."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from common import graph_of, keep, machine, results
from torch import nn

from experiments.optcnn.additive import additive_cost, baselines
from raddle import supervised
from raddle.clusters import Cluster, Device, Link
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.notation import write_tiling
from raddle.searches.baselines import BASELINES
from raddle.searches.comparison import compare, plan_and_predict
from raddle.searches.optcnn.method import choose_configurations
from raddle.searches.optcnn.tables import build_tables
from raddle.searches.settings import Settings

# Samples of a step: 512 are 32 for each of 16 devices, as in the papers; FlexFlow's recurrent models have
# 64 in all.
BATCH = {
    "lenet": 1024, "mlp": 512, "alexnet": 512, "vgg16": 512, "resnet50": 512, "resnet101": 512,
    "resnet110": 1024, "inception_v3": 512, "unet": 64, "rnntc": 64, "rnnlm": 64, "nmt": 64, "gpt": 32,
}  # fmt: skip
TWELVE = [name for name in BATCH if name != "resnet101"]
CLUSTERS = ["p100:4x4", "p100-10g", "k80:2x4", "h100:1x8"]
# The paper's speedup of OptCNN over the best other method.
OPTCNN_CLAIMS = {"alexnet": 2.2, "vgg16": 1.5, "inception_v3": 1.4}
FLEXFLOW = ["alexnet", "inception_v3", "resnet101", "rnntc", "rnnlm", "nmt"]


# -- as the papers count -------------------------------------------------------------------------


def optcnn_claims() -> None:
    """Compares OptCNN's optimum with other methods by the paper's cost model.

    In this model, the costs of layers and of messages add up, and each layer has a parameter server.
    """
    for model, claim in OPTCNN_CLAIMS.items():
        graph, on = graph_of(model, 512), machine("p100:4x4")
        tables = build_tables(graph, on, paper=True)
        chosen, solution = choose_configurations(tables)
        costs = {
            name: additive_cost(tables, configurations)
            for name, configurations in baselines(tables).items()
        }
        best = min(costs.values())
        assert abs(additive_cost(tables, chosen) - solution.cost) <= 1e-5 * solution.cost
        simulated = {
            m: plan_and_predict(graph, on, m, settings=Settings(sync="server", budget=20))[1][
                "step_ms"
            ]
            for m in ("data", "optcnn")
        }
        keep(
            "optcnn-claims", model,
            {
                **{f"{name}_ms": round(1e3 * c, 1) for name, c in costs.items()},
                "optcnn_ms": round(1e3 * solution.cost, 1),
                "gain_over_best": round(best / solution.cost, 2),
                "gain_over_data": round(costs["data"] / solution.cost, 2),
                "claim_over_best": claim,
                "simulated_with_servers_gain": round(simulated["data"] / simulated["optcnn"], 2),
            },
        )  # fmt: skip


def vgg_plan() -> None:
    """Stores the splits that OptCNN chooses for VGG-16 on 4 GPUs in one node, by the paper's cost model."""
    graph, on = graph_of("vgg16", 128), machine("p100:1x4")
    tables = build_tables(graph, on, paper=True)
    chosen, _ = choose_configurations(tables)
    plan = {}
    for group, configuration in zip(tables.groups, chosen, strict=True):
        splits = [
            f"{x}={n}" for x, n in zip(group.letters, configuration.degrees, strict=True) if n > 1
        ]
        plan[group.name] = " ".join(splits) or "one device"
    keep("vgg16-on-4", "plan", plan)


def flexflow_claims(budget: float, models: list[str]) -> None:
    """Compares FlexFlow with others on its six models, with all-reduce and with the paper's servers."""
    for model in models:
        graph, on = graph_of(model, BATCH[model]), machine("p100:4x4")
        row: dict[str, Any] = {"batch": BATCH[model]}
        for sync in ("server", "allreduce"):
            settings = Settings(sync=sync, budget=budget)
            times = {}
            for method in ("data", "optcnn", "flexflow"):
                _, metrics, _ = plan_and_predict(graph, on, method, settings=settings)
                times[method] = metrics["step_ms"]
            row[sync] = {m: round(t, 2) for m, t in times.items()}
            row[f"{sync}_over_data"] = round(times["data"] / times["flexflow"], 2)
            row[f"{sync}_over_optcnn"] = round(times["optcnn"] / times["flexflow"], 2)
        keep("flexflow-claims", model, row)


# -- reduction -----------------------------------------------------------------------------------


def wide_fc() -> Graph:
    """Returns four linear layers of 16,384 features, with a small batch of 128."""
    layers = [nn.Linear(16384, 16384, bias=False, device="meta") for _ in range(4)]
    model = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())))
    return capture(
        model,
        (torch.zeros(128, 16384, device="meta"),),
        supervised(lambda y: y.square().mean(), targets=0),
        name="wide-fc",
    )


def wide_rnn() -> Graph:
    """Returns a recurrent language model of 8,192 features, with a small batch of 64."""
    from raddle.zoo.recurrent import LanguageModel

    with torch.device("meta"):
        model = LanguageModel(vocabulary=10000, hidden=8192)
        tokens = torch.zeros(64, 8, dtype=torch.int64)
    return capture(
        model, (tokens,), supervised(lambda y: y.square().mean(), targets=0), name="wide-rnn"
    )


def reduction(budget: float) -> None:
    """Measures the gain from splits of summed dimensions; budget: seconds of a search."""
    for graph in (wide_fc(), wide_rnn()):
        for spec in ("p100:1x4", "p100:4x4"):
            on = machine(spec)
            on = replace(on, devices=tuple(replace(d, memory=64 * 10**9) for d in on.devices))
            times = {}
            for allowed in (False, True):
                settings = Settings(budget=budget, reduction=allowed)
                times[allowed] = plan_and_predict(graph, on, "auto", settings=settings)[1][
                    "step_ms"
                ]
            keep(
                "reduction", f"{graph.name} {spec}",
                {
                    "without_ms": round(times[False], 3),
                    "with_ms": round(times[True], 3),
                    "gain": round(times[False] / times[True], 3),
                },
            )  # fmt: skip


# -- auto ----------------------------------------------------------------------------------------


def auto(budget: float, models: list[str], clusters: list[str]) -> None:
    """Compares every method with `auto`; its gain is over the best baseline that fits into memory."""
    for spec in clusters:
        for model in models:
            key = f"{model} {spec}"
            if key in results().get("auto", {}):
                continue
            graph, on = graph_of(model, BATCH[model]), machine(spec)
            begun = time.perf_counter()
            rows = compare(
                graph,
                on,
                [*BASELINES, "optcnn", "flexflow", "auto"],
                settings=Settings(budget=budget),
            )
            row_of = {row["method"]: row for row in rows}
            fits = {  # the step times of the methods whose plans fit into memory
                m: r["step_ms"] for m, r in row_of.items() if r["step_ms"] is not None and r["fits"]
            }
            baselines = {m: t for m, t in fits.items() if m in BASELINES}
            best = min(baselines, key=lambda m: baselines[m]) if baselines else None
            auto_row = row_of["auto"]
            keep(
                "auto", key,
                {
                    "batch": BATCH[model],
                    "step_ms": {m: round(t, 4) for m, t in fits.items()},
                    "best_baseline": best,
                    "auto_over_best": round(baselines[best] / auto_row["step_ms"], 3) if best else None,
                    "never_slower": all(auto_row["step_ms"] <= t * (1 + 1e-9) for t in fits.values()),
                    "lower_bound_ms": round(auto_row["lower_bound_ms"], 4),
                    "gap_percent": round(100 * (auto_row["step_ms"] / auto_row["lower_bound_ms"] - 1), 1),
                    "data_fits": row_of["data"].get("fits"),
                    "start": auto_row.get("start"),
                    "seconds": round(time.perf_counter() - begun, 1),
                },
            )  # fmt: skip


def memory(budget: float) -> None:
    """Plans VGG-16 for cards with less and less memory, until data parallelism does not fit."""
    graph = graph_of("vgg16", 256)
    base = machine("p100:1x8")
    for gigabytes in (16, 4.5, 3.5, 2.5, 1.5):
        size = int(gigabytes * 1e9)
        on = replace(base, devices=tuple(replace(d, memory=size) for d in base.devices))
        row: dict[str, Any] = {}
        for method in ("data", "auto"):
            try:
                _, metrics, _ = plan_and_predict(
                    graph, on, method, settings=Settings(budget=budget)
                )
                row[method] = {
                    "step_ms": round(metrics["step_ms"], 2),
                    "peak_gb": round(metrics["peak_bytes"] / 1e9, 2),
                    "fits": metrics["fits"],
                    "start": metrics.get("start"),
                }
            except InputError as error:
                row[method] = {"error": str(error)}
        keep("memory", f"{gigabytes} GB", row)


def heterogeneous(budget: float) -> None:
    """Plans for two fast and two slow devices, three to one, and compares with the best equal split."""
    fast = Device("fast", 0, {"float32": 10.6e12}, 16 * 10**9, 732e9)
    slow = Device("slow", 0, {"float32": 10.6e12 / 3}, 16 * 10**9, 732e9 / 3, overhead=15e-6)
    on = Cluster("3:1", (fast, fast, slow, slow), (Link(40e9, 5e-6),), (None,))
    for model, batch in (
        ("resnet50", 128),
        ("vgg16", 128),
        ("alexnet", 512),
        ("inception_v3", 128),
    ):
        graph = graph_of(model, batch)
        settings = Settings(budget=budget)
        rows = compare(graph, on, [*BASELINES, "optcnn", "auto"], settings=settings)
        times = {r["method"]: r["step_ms"] for r in rows if r["step_ms"] is not None and r["fits"]}
        auto_ms = times.pop("auto")
        best = min(times, key=lambda m: times[m])
        plan, *_ = plan_and_predict(graph, on, "auto", settings=settings)
        first = graph.ops[0]
        keep(
            "heterogeneous", model,
            {
                "best_equal": best,
                "equal_ms": round(times[best], 2),
                "auto_ms": round(auto_ms, 2),
                "gain": round(times[best] / auto_ms, 2),
                "first_layer": write_tiling(first, plan.tiles[first.name]),
            },
        )  # fmt: skip


def scale(budget: float) -> None:
    """Plans ResNet-50 for 256 and for 1,024 devices."""
    for model, count in (("resnet50", 256), ("resnet50", 1024)):
        graph, on = graph_of(model, 32 * count), machine(f"p100:{count // 4}x4")
        row: dict[str, Any] = {}
        for method in ("data", "optcnn", "auto"):
            begun = time.perf_counter()
            _, metrics, _ = plan_and_predict(graph, on, method, settings=Settings(budget=budget))
            row[method] = {
                "step_ms": round(metrics["step_ms"], 2),
                "seconds": round(time.perf_counter() - begun, 1),
            }
        row["lower_bound_ms"] = round(metrics["lower_bound_ms"], 2)
        keep("scale", f"{model} {count}", row)


def mean(values: list[float]) -> float:
    """Returns the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))
