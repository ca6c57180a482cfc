"""HSDP (`sharded,group=N`): shards within groups of holders, replicas across them, trains as the module."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from equality import Task, tiny
from ranks import on_threads
from test_trainer import assert_equal, batches, graph, net, plan, sgd, train, train_plain
from timeouts import HANG
from torch import Tensor
from torch.nn import functional as F

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.runtime.actions import StartReplicaSum
from raddle.runtime.trainer import Trainer
from raddle.searches.planning import plan_for

SCRIPT = Path(__file__).with_name("verify_all.py")
KINDS = ("sharded,group=2", "sharded:after,group=2", "sharded:parameters,group=2")


def planned(task: Task, ranks: int, sync: str, **more: Any) -> Plan:
    data = plan_for(task.graph, cluster(f"local:{ranks}"), "data", bn="global", sync=sync)
    return replace(data, **more)


@pytest.mark.parametrize("sync", KINDS)
@pytest.mark.parametrize("model", ["vgg16-tiny", "resnet50-tiny", "gpt-tiny"])
def test_trains_as_the_plain_module_and_sends_the_simulated_bytes(model: str, sync: str) -> None:
    task = tiny(model)
    program = task.verify(planned(task, 4, sync, steps=2))
    assert any(region.group_size for regions in program.regions.values() for region in regions)


@pytest.mark.parametrize("sync", KINDS)
@pytest.mark.parametrize("method", ["data", "owt", "layerwise", "filter-horizontal"])
def test_trainers_of_any_method_train_as_plain_pytorch_does(method: str, sync: str) -> None:
    losses, model, _ = train_plain(3)
    for rank_losses, state in on_threads(
        4, lambda t: train(t, 3), net(), sgd, plan=plan(method, 4, sync=sync), graph=graph()
    ):
        assert rank_losses == pytest.approx(losses, rel=1e-9)
        assert_equal(state, model)


@pytest.mark.parametrize("stage", ["sharded", "sharded:parameters"])
def test_a_group_of_all_holders_is_the_same_as_no_group(stage: str) -> None:
    task = tiny("lenet-tiny")
    programs = [lower(task.graph, planned(task, 4, sync)) for sync in (stage, f"{stage},group=4")]
    assert programs[0].instructions == programs[1].instructions
    assert programs[0].regions == programs[1].regions


def test_holders_that_groups_do_not_divide_are_refused() -> None:
    task = tiny("lenet-tiny")
    for ranks, size in ((3, 2), (4, 3), (2, 4)):
        with pytest.raises(
            InputError,
            match=rf"'sharded,group={size}', but {ranks} devices hold .* groups of {size} do not divide: "
            rf"choose a group that divides {ranks}\.",
        ):
            lower(task.graph, planned(task, ranks, f"sharded,group={size}"))
        lower(task.graph, planned(task, ranks, f"sharded,group={size}"), train=False)


@pytest.mark.parametrize("sync", KINDS)
def test_clipping_counts_every_shard_once(sync: str) -> None:
    losses, model, _ = train_plain(3, clip=0.1)
    for rank_losses, state in on_threads(
        4,
        lambda t: train(t, 3),
        net(),
        sgd,
        plan=plan("data", 4, sync=sync),
        graph=graph(),
        clip_norm=0.1,
    ):
        assert rank_losses == pytest.approx(losses, rel=1e-7)
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("sync", KINDS)
def test_accumulates_gradients(sync: str) -> None:
    model = copy.deepcopy(net())
    optimizer = sgd(model.parameters())
    for number, (x, y) in enumerate(batches(4)):
        (F.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    results = on_threads(
        4,
        lambda t: train(t, 4),
        net(),
        sgd,
        plan=plan("data", 4, sync=sync),
        graph=graph(),
        accumulate=2,
    )
    assert_equal(results[0][1], model)


@pytest.mark.parametrize(
    ("first", "then", "method"),
    [
        ("sharded,group=2", "allreduce", "owt"), ("sharded:parameters,group=2", "p3", "data"),
        ("p3:slice=7", "sharded:parameters,group=2", "data"), ("sharded", "sharded,group=2", "owt"),
        ("sharded:parameters,group=2", "sharded,group=2", "data"),
    ],
)  # fmt: skip
def test_checkpoints_load_into_other_plans(first: str, then: str, method: str) -> None:
    _, model, _ = train_plain(4)

    def start(trainer: Trainer) -> Any:
        for batch in batches(4)[:2]:
            trainer.step(batch)
        return trainer.optimizer_state_dict(), trainer.state_dict()

    optimizer_state, state = on_threads(
        4, start, net(), sgd, plan=plan("data", 4, sync=first), graph=graph()
    )[0]

    def go_on(trainer: Trainer) -> dict[str, Tensor]:
        trainer.load_state_dict(state)
        trainer.load_optimizer_state_dict(optimizer_state)
        for batch in batches(4)[2:]:
            trainer.step(batch)
        return trainer.state_dict()

    fresh = copy.deepcopy(net())
    for parameter in fresh.parameters():
        torch.nn.init.zeros_(parameter)
    for resumed in on_threads(4, go_on, fresh, sgd, plan=plan(method, 4, sync=then), graph=graph()):
        assert_equal(resumed, model)


@pytest.mark.parametrize("sync", KINDS)
def test_a_smaller_batch_and_an_evaluation_in_between(sync: str) -> None:
    model = copy.deepcopy(net())
    optimizer = sgd(model.parameters())
    batch_list = [(x[:n], y[:n]) for (x, y), n in zip(batches(3), (8, 6, 8), strict=True)]
    losses, evaluated = [], []
    for x, y in batch_list:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        evaluated.append(F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]).item())
        model.train()

    def work(trainer: Trainer) -> tuple[list[float], list[float]]:
        rows = [
            (float(trainer.step(batch)), float(trainer.evaluate(batches(1)[0])))
            for batch in batch_list
        ]
        return [row[0] for row in rows], [row[1] for row in rows]

    for rank_losses, seen in on_threads(
        4,
        work,
        net(),
        sgd,
        plan=plan("data", 4, sync=sync),
        graph=graph(),
        loss=supervised(F.cross_entropy),
    ):
        assert rank_losses == pytest.approx(losses, rel=1e-9)
        assert seen == pytest.approx(evaluated, rel=1e-9)


def test_a_rank_keeps_the_shards_of_its_place_in_the_group() -> None:
    """Ranks 0 and 2 have the same place in their groups, so the same shards, and 1 and 3."""

    def work(trainer: Trainer) -> tuple[set[Any], set[tuple[int, ...]]]:
        trainer.step(batches(1)[0])
        trainer.synchronize()
        actions = trainer.executor.rank_actions
        sums = (a for a in actions.actions if isinstance(a, StartReplicaSum))
        held = {(s.name, s.box) for s, _ in trainer.executor.updated_parameters()}
        return held, {actions.blocks[a.block].replicas for a in sums}

    ranks = on_threads(
        4, work, net(), sgd, plan=plan("data", 4, sync="sharded:parameters,group=2"), graph=graph()
    )
    boxes, replicas = [r[0] for r in ranks], [r[1] for r in ranks]
    assert boxes[0] == boxes[2] != boxes[1] == boxes[3]
    assert replicas == [{(0, 2)}, {(1, 3)}, {(0, 2)}, {(1, 3)}]
    rows: dict[str, int] = {}
    for name, box in boxes[0] | boxes[1]:
        rows[name] = rows.get(name, 0) + box.volume
    assert rows == {name: p.numel() for name, p in net().named_parameters()}


@pytest.mark.parametrize("sync", ["sharded,group=2", "sharded:parameters,group=2"])
def test_ranks_that_are_processes(sync: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--ranks", "4", "--models", "lenet-tiny,gpt-tiny",
         "--methods", "data", "--sync", sync, "--json"],
        capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == {"ok": 2, "skipped": 0, "failed": 0, "failures": []}
