"""Plans of experts are what their names say, train as the plain module does, or are refused by name."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from timeouts import LONG_HANG
from torch import nn

from raddle import zoo
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans import plan_file
from raddle.plans.notation import write_tiling
from raddle.program.lower import lower
from raddle.program.program import Move
from raddle.searches.aliases import ALIASES
from raddle.searches.experts.degrees import inner_degrees, plans_of
from raddle.searches.experts.megatron import find_roles, megatron
from raddle.searches.planning import build_plan, plan_for, run_method
from raddle.searches.registry import METHODS, canonical_name, method_named
from raddle.searches.settings import Settings

EXPERTS = ("fsdp", "zero2", "hsdp", "megatron", "context")


@cache
def captured(name: str) -> Graph:
    work = zoo.load(name)
    return capture(work.model, work.batch, work.loss, name=name)


class GatedBlock(nn.Module):
    """A feed-forward network with a gate, as in Llama, around which there is a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(x + self.down(nn.functional.silu(self.gate(x)) * self.up(x)))
        return y


def test_column_and_row_layers_are_found_from_the_structure() -> None:
    roles = find_roles(captured("gpt-tiny"))
    assert roles.rows == {f"h.{i}.{name}.c_proj" for i in (0, 1) for name in ("attn", "mlp")}
    columns = {f"h.{i}.{name}" for i in (0, 1) for name in ("attn.c_attn", "mlp.c_fc")}
    assert roles.columns == columns | {"lm_head"}
    assert {"h.0.attn.attention", "h.1.mlp.gelu", "cross_entropy.lse"} <= roles.inside
    inputs = [torch.zeros(2, 3, 8, device="meta")]
    graph = capture(GatedBlock().to("meta"), inputs, supervised(torch.sum, targets=0))
    gated = find_roles(graph)
    assert (gated.columns, gated.rows) == ({"gate", "up", "head"}, {"down"})


def test_the_tiles_of_megatron() -> None:
    graph, on = captured("gpt-tiny"), cluster("h100:1x4")
    ops = ("wte", "h.0.attn.attention", "h.0.attn.c_proj", "h.0.ln_2", "h.0.mlp.c_fc", "lm_head")
    texts = [
        [write_tiling(graph.op(op), tiles[op]) for op in ops]
        for tiles in (megatron(graph, on, 2, sequence=s) for s in (False, True))
    ]
    split = ["n/2 v/2 @0-3", "n/2 c/2 @0-3", "n/2 k/(8,4) @0-3"]  # between its 3 heads
    columns = ["n/2 c/2 @0-3"] * 2
    assert texts[0] == [*split, "n/2 x2 @0-3", *columns]
    assert texts[1] == [*split, "n/2 t/2 @0-3", *columns]


def test_queries_keys_and_values_are_cut_between_heads() -> None:
    """Only what row layers give, and what column layers read, is sent: nothing inside of attention."""
    graph, on = captured("gpt-tiny"), cluster("h100:1x2")
    plan = plan_for(graph, on, "data")
    program = lower(
        graph, replace(plan, tiles=megatron(graph, on, 2, sequence=False), fingerprint="")
    )
    moved = {i.value for i in program.instructions if isinstance(i, Move)}
    assert not {name for name in moved if ".attn.c_attn" in name or ".attn.slice" in name}


def test_the_loss_is_split_by_the_vocabulary() -> None:
    graph = captured("gpt-tiny")
    for name, tiles in plans_of("megatron", graph, cluster("h100:1x2")).items():
        logits = write_tiling(graph.op("cross_entropy.lse"), tiles["cross_entropy.lse"])
        assert logits == "c/2 @0-1", name


def test_degrees_divide_the_devices_of_a_node() -> None:
    assert inner_degrees(cluster("h100:2x8")) == [2, 4, 8]
    assert inner_degrees(cluster("h100:1x6")) == [2, 3, 6]
    assert inner_degrees(cluster("local:3")) == [3]


@pytest.mark.parametrize(
    ("method", "machine", "sync"),
    [
        ("fsdp", "local:2", "sharded:parameters"),
        ("zero2", "local:4", "sharded"),
        ("hsdp", "p100:2x2", "sharded:parameters,group=2"),
        ("megatron", "local:2", "allreduce"),
        ("megatron", "local:4", "allreduce"),
        ("context", "local:2", "allreduce"),
        ("context", "local:4", "allreduce"),
        ("3d", "local:4", "allreduce"),
    ],
)
def test_it_trains_as_the_plain_module_does_on_processes(
    method: str, machine: str, sync: str, tmp_path: pathlib.Path
) -> None:
    graph = captured("gpt-tiny")
    result = run_method(graph, cluster(machine), method, Settings(proposals=0))
    plan = build_plan(graph, cluster(machine), method, result, Settings(), model="gpt-tiny")
    assert plan.sync == sync
    graph = result.pipeline.graph if result.pipeline is not None else graph
    path = tmp_path / "plan.json"
    plan_file.save(plan, graph, path)
    done = subprocess.run(
        [sys.executable, "-m", "raddle", "verify", str(path), "--json"],
        capture_output=True, text=True, timeout=LONG_HANG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    verified = json.loads(done.stdout)
    assert verified["holds"]
    assert all(row["transport"] == row["program"] == row["simulator"] for row in verified["sent"])


@pytest.mark.parametrize(
    ("model", "machine", "method", "sentence"),
    [
        ("lenet-tiny", "h100:1x2", "megatron", "linear layers of transformer blocks, and 'lenet-"),
        ("lenet-tiny", "h100:1x2", "context", "splits the sequence of a transformer"),
        ("lenet-tiny", "h100:1x4", "3d", "linear layers of transformer blocks"),
        ("gpt-tiny", "h100:1x2", "3d", "3d needs two stages or more of two devices"),
        ("gpt-tiny", "h100:1x2", "hsdp", "within each of several nodes .*: use fsdp"),
        ("gpt-tiny", "h100:1x5", "megatron", "cannot split 3 attention heads over 5 devices"),
    ],
)
def test_what_makes_no_sense_is_refused(
    model: str, machine: str, method: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        plan_for(captured(model), cluster(machine), method)


def test_a_sync_kind_that_contradicts_the_method_is_refused() -> None:
    graph, on = captured("gpt-tiny"), cluster("h100:1x2")
    with pytest.raises(InputError, match="'fsdp' synchronises by sharded:parameters, not by ps"):
        plan_for(graph, on, "fsdp", sync="ps")
    assert plan_for(graph, on, "fsdp", sync="sharded:parameters").sync == "sharded:parameters"


def test_aliases_are_methods_under_another_name() -> None:
    assert not ALIASES.keys() & METHODS.keys()
    assert {canonical_name(alias) for alias in ALIASES} == set(ALIASES.values()) <= METHODS.keys()
    graph, on = captured("gpt-tiny"), cluster("h100:1x2")
    assert plan_for(graph, on, "ddp") == plan_for(graph, on, "data")
    with pytest.raises(InputError, match=r"choose .*zero3 \(fsdp\)"):
        method_named("zero33")


@pytest.mark.parametrize("method", EXPERTS)
def test_on_one_device_it_is_the_plain_module(method: str) -> None:
    graph, on = captured("gpt-tiny"), cluster("h100:1x1")
    if method == "hsdp":
        with pytest.raises(InputError, match="use fsdp"):
            plan_for(graph, on, method)
    else:
        assert plan_for(graph, on, method).devices == 1
