"""`raddle.parallelize` with any form of a plan, and without one: all ranks choose the same plan."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from timeouts import HANG
from torch import Tensor, nn
from torch.nn import functional as F

import raddle
from raddle.api import candidates
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.plan_file import save, to_dict
from raddle.runtime import trainer as runtime
from raddle.runtime.optimizer_size import state_elements
from raddle.runtime.trainer import Trainer
from raddle.transport.thread_transport import Hub


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.out = nn.Linear(6 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.conv(x))).flatten(1))


LOSS = raddle.supervised(F.cross_entropy)


@cache
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


@cache
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 2, 4, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (8,), generator=generator)


@cache
def graph() -> Graph:
    return raddle.capture(net(), batch(), LOSS)


def adamw(pairs: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(pairs, lr=0.01)


def plain(steps: int) -> list[float]:
    model = copy.deepcopy(net())
    optimizer, losses = adamw(model.parameters()), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = LOSS(model, batch())
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def on_ranks(count: int, work: Callable[[Trainer], Any], **settings: Any) -> list[Any]:
    """Calls `work` with the trainer of each rank, made without a plan; returns the results by rank."""
    hub = Hub(count, timeout=HANG)
    results: list[Any] = [None] * count

    def rank(number: int) -> None:
        try:
            arguments = {"loss": LOSS, "example": batch(), "budget": 0.5, **settings}
            with raddle.parallelize(
                net(), adamw, transport=hub.transport(number), device="cpu", **arguments
            ) as trainer:
                results[number] = work(trainer)
        except InputError as error:
            results[number] = error

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# -- without a plan --------------------------------------------------------------------------------------


def test_alone_it_trains_on_this_device(capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = adamw(net().named_parameters())
    with raddle.parallelize(net(), optimizer, loss=LOSS, example=batch(), device="cpu") as trainer:
        losses = [float(trainer.step(batch())) for _ in range(3)]
        assert (trainer.plan.devices, trainer.plan.optimizer) == (1, "adam")
    assert losses == pytest.approx(plain(3), rel=1e-9)
    assert "on this device alone; for more: torchrun --nproc-per-node" in capsys.readouterr().err


def test_ranks_choose_the_same_plan_and_nothing_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copy.deepcopy(net().state_dict())
    torch.manual_seed(5)
    random.seed(5)
    generators = torch.get_rng_state(), random.getstate()

    def work(trainer: Trainer) -> Any:
        state, saved = trainer.state_dict(), trainer.optimizer_state_dict()
        return trainer.plan, trainer.steps, state, saved, float(trainer.step(batch()))

    results = on_ranks(2, work)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    (first, *_), (second, *_) = results
    assert first == second
    for plan, steps, state, saved, _ in results:
        assert (plan.devices, steps) == (2, 0)
        assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
        assert all(not entries for entries in saved["state"].values())
    assert all(torch.equal(net().state_dict()[name], tensor) for name, tensor in before.items())
    sentence = capsys.readouterr().err
    assert sentence.count("raddle: 2 ranks train by the plan '") == 1
    for name in (candidates.REPLICATED, candidates.SHARDED, candidates.SEARCHED):
        assert name in sentence
    chosen = sentence.split("'")[1]
    times = {
        n: float(sentence.split(f"{n} ")[1].split()[0]) for n in (candidates.REPLICATED, chosen)
    }
    assert times[chosen] <= 1.01 * times[candidates.REPLICATED]

    monkeypatch.setattr(candidates, "plan_for", lambda *args, **more: 1 / 0)
    assert [plan for plan, *_ in on_ranks(2, work)] == [first, first]
    assert "from the cache" in capsys.readouterr().err


def test_without_tuning_no_step_is_taken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "step", lambda *args: 1 / 0)
    plans = on_ranks(2, lambda trainer: trainer.plan, tune=False)
    assert plans[0] == plans[1]
    assert "2 ranks train by the plan 'searched plan'." in capsys.readouterr().err


def test_a_candidate_that_a_rank_cannot_run_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trainer = runtime.make_trainer

    def refuse(model: Any, plan: Any, make: Any, transport: Any, *more: Any, **named: Any) -> Any:
        trainer = make_trainer(model, plan, make, transport, *more, **named)
        if plan.sync.startswith("sharded") and transport.rank == 1:
            raise InputError("this rank cannot.")
        return trainer

    monkeypatch.setattr(runtime, "make_trainer", refuse)
    assert on_ranks(2, lambda trainer: trainer.plan.sync) == ["allreduce"] * 2
    assert candidates.SHARDED not in capsys.readouterr().err


def test_a_failed_search_ends_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "plan_for", lambda *args, **more: 1 / 0)
    sentences = {str(error) for error in on_ranks(2, lambda trainer: None)}
    assert len(sentences) == 1
    assert "no plan was found (division by zero): give plan=" in sentences.pop()


@pytest.mark.parametrize("damage", ["{", "[]", '{"raddle": 1}'])
def test_a_damaged_cache_is_made_again(damage: str, tmp_path: Path) -> None:
    (first, second) = on_ranks(2, lambda trainer: trainer.plan, tune=False)
    (file,) = (tmp_path / "cache" / "raddle" / "plans").iterdir()
    file.write_text(damage)
    assert on_ranks(2, lambda trainer: trainer.plan.devices, tune=False) == [2, 2]
    assert first == second


def test_an_example_is_needed() -> None:
    with pytest.raises(
        InputError, match="give example=, a batch as the data loader gives it, or a plan"
    ):
        raddle.parallelize(net(), adamw, loss=LOSS)


# -- with a plan -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plan", "path", "content", "result"])
def test_a_plan_in_any_form(form: str, tmp_path: Path) -> None:
    plan = raddle.plan(graph(), cluster="local:1", method="data", optimizer="adam").plan
    save(plan, graph(), tmp_path / "plan.json")
    given = {
        "plan": plan,
        "path": str(tmp_path / "plan.json"),
        "content": to_dict(plan, graph()),
        "result": SimpleNamespace(plan=plan),
    }[form]
    with raddle.parallelize(
        net(), adamw, loss=LOSS, example=batch(), plan=given, device="cpu"
    ) as trainer:
        losses = [float(trainer.step(batch())) for _ in range(2)]
    assert losses == pytest.approx(plain(2), rel=1e-9)


def test_what_is_no_plan_is_one_sentence() -> None:
    with pytest.raises(InputError, match="the plan is a int: give a plan, the path of its file"):
        raddle.parallelize(net(), adamw, loss=LOSS, example=batch(), plan=3)


@pytest.mark.parametrize(
    ("planned", "make", "sizes"),
    [
        ("adam", lambda p: torch.optim.SGD(p, lr=0.1), ("8,224", "0", "sgd")),
        ("sgd", adamw, ("0", "8,224", "adam")),
        ("momentum", adamw, ("4,112", "8,224", "adam")),
    ],
)
def test_a_plan_for_another_size_of_state_is_refused(
    planned: str, make: Any, sizes: tuple[str, str, str]
) -> None:
    plan = raddle.plan(graph(), cluster="local:1", method="data", optimizer=planned).plan
    expected, actual, name = sizes
    sentence = (
        f"the plan was made for '{planned}', whose state has {expected} bytes, and this optimizer's has "
        f"{actual} bytes: plan again with optimizer='{name}'"
    )
    with pytest.raises(InputError, match=sentence):
        raddle.parallelize(net(), make, loss=LOSS, example=batch(), plan=plan, device="cpu")


def test_a_module_that_was_changed_after_planning_is_refused() -> None:
    plan = raddle.plan(graph(), cluster="local:1", method="data", optimizer="adam").plan
    changed = copy.deepcopy(net())
    changed.out = nn.Linear(6 * 16, 5).double()
    with pytest.raises(InputError, match=r"parameter 'out.weight' is \[5, 96\], not \[4, 96\]"):
        raddle.parallelize(changed, adamw, loss=LOSS, example=batch(), plan=plan, device="cpu")


@pytest.mark.parametrize(
    ("make", "elements"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (adamw, 2),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
        (lambda p: torch.optim.LBFGS([q for _, q in p]), None),
    ],
)
def test_elements_of_state(make: Any, elements: int | None) -> None:
    assert state_elements(make, net()) == elements
    if elements is not None:
        assert state_elements(make(list(net().named_parameters())), net()) == elements
