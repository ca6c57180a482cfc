"""A resumed run equals an uninterrupted one, bit for bit under the same plan."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import on_threads
from torch import Tensor, nn

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.schedules import ASYNCHRONOUS
from raddle.plans.sync import EXAMPLES, KINDS, read_sync
from raddle.runtime.trainer import Trainer
from raddle.searches.planning import build_plan, plan_for, run_method
from raddle.searches.settings import Settings
from raddle.sync.slice_updater import ELEMENTWISE

SYNCS = list(dict.fromkeys([*KINDS, *EXAMPLES.split(", ")]))
# Results of asynchronous kinds depend on timing.
SAME = [sync for sync in SYNCS if read_sync(sync).synchronous]
BATCH, WIDTH = 4, 6


class Dropping(nn.Module):
    """Layers with dropout, and a batch norm, which has a counter of batches."""

    def __init__(self, rates: list[float]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in rates)
        self.drops = nn.ModuleList(nn.Dropout(rate) for rate in rates)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer, drop in zip(self.layers, self.drops, strict=True):
            x = drop(torch.tanh(layer(x)))
        return self.norm(x).square().mean() + x.mean()


@dataclass(frozen=True)
class Case:
    model: nn.Module
    graph: Graph
    plan: Plan
    optimizer: str

    def make(self, rate: float) -> Any:
        """An optimizer with two parameter groups: weights and biases."""
        kind = getattr(torch.optim, self.optimizer)
        more = {"momentum": 0.9} if self.optimizer in ("SGD", "RMSprop") else {}

        def made(pairs: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
            biases = [pair for pair in pairs if pair[1].ndim == 1]
            weights = [pair for pair in pairs if pair[1].ndim != 1]
            return kind([{"params": weights}, {"params": biases, "lr": rate / 2}], lr=rate, **more)

        return made

    def run(self, work: Any, *, rate: float = 0.05, seed: int = 3) -> Any:
        results = on_threads(
            self.plan.devices,
            work,
            self.model,
            self.make(rate),
            plan=self.plan,
            graph=self.graph,
            seed=seed,
        )
        for other in results[1:]:
            assert_same(other, results[0])
        return results[0]


@cache
def captured(rates: tuple[float, ...]) -> tuple[nn.Module, Graph]:
    torch.manual_seed(1)
    model = Dropping(list(rates)).double()
    return model, capture(model, [torch.zeros(BATCH, WIDTH, dtype=torch.float64)])


def case(
    rates: list[float], optimizer: str, sync: str, ranks: int = 2, method: str = "data"
) -> Case:
    model, graph = captured(tuple(rates))
    chosen_plan = plan_for(graph, cluster(f"local:{ranks}"), method, bn="global")
    return Case(model, graph, replace(chosen_plan, sync=sync), optimizer)


def batch(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)


def train(trainer: Trainer, start: int, end: int) -> list[Tensor]:
    """Steps with a falling learning rate, as with a scheduler."""
    losses = []
    for step in range(start, end):
        losses.append(trainer.step((batch(step),)).loss)
        for group in trainer.optimizer.param_groups:
            group["lr"] *= 0.9
    return losses


def state(trainer: Trainer) -> Any:
    return {"model": trainer.state_dict(), "optimizer": trainer.optimizer_state_dict()}


def load(trainer: Trainer, saved: Any) -> None:
    trainer.load_state_dict(saved["model"])
    trainer.load_optimizer_state_dict(saved["optimizer"])


def assert_same(actual: Any, expected: Any, where: str = "") -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_same(actual[key], value, f"{where}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for i, value in enumerate(expected):
            assert_same(actual[i], value, f"{where}/{i}")
    elif isinstance(expected, Tensor):
        assert torch.equal(actual, expected), (where, actual, expected)
    else:
        assert actual == expected, (where, actual, expected)


def assert_resumes(case: Case, before: int, after: int) -> None:
    whole = case.run(lambda t: (train(t, 0, before + after)[before:], state(t)))
    saved = case.run(lambda t: (train(t, 0, before), state(t))[1])

    def go_on(trainer: Trainer) -> Any:
        load(trainer, saved)
        assert_same(state(trainer), saved)  # what is loaded is what is saved
        return train(trainer, before, before + after), state(trainer)

    assert_same(case.run(go_on, rate=7.0, seed=8), whole)
    assert saved["optimizer"]["steps"] == before


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from([0.0, 0.2, 0.5]), min_size=1, max_size=2),
    st.sampled_from(ELEMENTWISE),
    st.sampled_from(SAME),
    st.integers(0, 3),
    st.integers(1, 2),
)
def test_a_resumed_run_is_the_undisturbed_one(
    rates: list[float], optimizer: str, sync: str, before: int, after: int
) -> None:
    assert_resumes(case(rates, optimizer, sync), before, after)


@pytest.mark.slow
@pytest.mark.parametrize("sync", SAME)
@pytest.mark.parametrize("optimizer", ELEMENTWISE)
def test_every_optimizer_with_every_way_to_synchronise(optimizer: str, sync: str) -> None:
    assert_resumes(case([0.5], optimizer, sync), 2, 2)


@pytest.mark.parametrize("schedule", [*ASYNCHRONOUS, "1f1b"])
def test_a_resumed_pipeline_is_the_undisturbed_one(schedule: str) -> None:
    """Both runs call `train` with the same batches: with overlapping steps, each call ends with a flush."""
    model, graph = captured((0.5, 0.2))
    chosen = Settings(schedule=schedule, stages=2, microbatches=2, budget=0.1, bn="global")
    target_cluster = cluster("local:2")
    result = run_method(graph, target_cluster, "pipeline", chosen)
    assert result.pipeline is not None
    plan = build_plan(graph, target_cluster, "pipeline", result, chosen)
    pipeline_case = Case(model, result.pipeline.graph, plan, "Adam")
    batch_list = [[batch(step)] for step in range(5)]
    whole = pipeline_case.run(
        lambda t: (t.train(batch_list[:3]), t.train(batch_list[3:]), state(t))[1:]
    )
    saved = pipeline_case.run(lambda t: (t.train(batch_list[:3]), state(t))[1])
    again = pipeline_case.run(
        lambda t: (load(t, saved), t.train(batch_list[3:]), state(t))[1:], rate=7.0, seed=8
    )
    assert_same(again, whole)


@pytest.mark.parametrize("sync", [sync for sync in SYNCS if sync not in SAME])
def test_what_asynchronous_servers_save_is_what_they_load(sync: str) -> None:
    server_case = case([0.5], "Adam", sync)
    saved = server_case.run(lambda t: (train(t, 0, 2), state(t))[1])
    assert_same(server_case.run(lambda t: (load(t, saved), state(t))[1], rate=7.0, seed=8), saved)


@pytest.mark.parametrize("sync", [sync for sync in SYNCS if sync not in SAME])
def test_a_rank_that_saves_waits_for_gradients_of_those_behind(sync: str) -> None:
    def work(trainer: Trainer) -> Any:
        train(trainer, 0, 1)
        parameter_sync = trainer.executor.parameter_sync
        assert parameter_sync is not None
        submit = parameter_sync.submit

        def late(slot: int, gradient: Tensor) -> None:
            time.sleep(0.1)  # meanwhile rank 0 begins to save
            submit(slot, gradient)

        if trainer.rank == 1:
            parameter_sync.submit = late  # type: ignore[method-assign]
        train(trainer, 1, 2)
        return state(trainer), state(trainer)

    first, second = case([0.5], "Adam", sync).run(work)
    assert_same(first, second)


@pytest.mark.parametrize(("ranks", "method"), [(1, "data"), (3, "data"), (2, "model")])
def test_another_plan_draws_the_same_masks_at_the_same_rates(ranks: int, method: str) -> None:
    p3_case, other = (
        case([0.5, 0.2], "Adam", "p3"),
        case([0.5, 0.2], "Adam", "allreduce", ranks, method),
    )
    losses, whole = p3_case.run(lambda t: (train(t, 0, 4)[2:], state(t)))
    saved = p3_case.run(lambda t: (train(t, 0, 2), state(t))[1])

    def go_on(trainer: Trainer) -> Any:
        load(trainer, saved)
        return train(trainer, 2, 4), state(trainer)

    resumed_losses, after = other.run(go_on, rate=7.0, seed=8)
    torch.testing.assert_close(resumed_losses, losses, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after["model"], whole["model"], rtol=1e-9, atol=1e-9)
    rates = [
        {name: group["lr"] for group in s["optimizer"]["param_groups"] for name in group["params"]}
        for s in (after, whole)
    ]
    assert rates[0] == rates[1]


def test_what_cannot_be_resumed_is_refused() -> None:
    saved_case = case([0.5], "Adam", "allreduce", 1)
    saved = saved_case.run(lambda t: (train(t, 0, 1), state(t))[1])

    def refused(trainer: Trainer) -> None:
        for changed, sentence in (
            (saved["optimizer"]["state"], "the optimizer's state has no 'state'"),
            ({**saved["optimizer"], "param_groups": []}, "does not fit the model"),
        ):
            with pytest.raises(InputError, match=sentence):
                trainer.load_optimizer_state_dict(changed)

    saved_case.run(refused)

    def other_kind(trainer: Trainer) -> None:
        with pytest.raises(InputError, match="is not of SGD: it has no 'momentum'"):
            trainer.load_optimizer_state_dict(saved["optimizer"])

    replace(saved_case, optimizer="SGD").run(other_kind)

    def unfinished(trainer: Trainer) -> None:
        trainer.step((batch(0),))
        with pytest.raises(InputError, match="step 1 is in the middle of 2 that are accumulated"):
            trainer.optimizer_state_dict()
        with pytest.raises(InputError, match="step 1 is in the middle of 2 that are accumulated"):
            trainer.load_optimizer_state_dict(saved["optimizer"])

    on_threads(
        1,
        unfinished,
        saved_case.model,
        saved_case.make(0.1),
        plan=saved_case.plan,
        graph=saved_case.graph,
        accumulate=2,
    )
