"""A plan of one device trains under plain `python`: no torch.distributed, no port; equal to the module."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.plans.sync import EXAMPLES, KINDS, read_sync
from raddle.runtime.trainer import Trainer, parallelize
from raddle.searches.planning import plan_for

SYNCS = sorted({*KINDS, *EXAMPLES.split(", ")})
STEPS = 3


@pytest.fixture(autouse=True)
def plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@cache
def net() -> nn.Module:
    torch.manual_seed(1)
    conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
    return nn.Sequential(
        conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ).double()


def batch(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 2, 4, 4, generator=draw, dtype=torch.float64)
    return x, torch.randint(3, (samples,), generator=draw)


@cache
def graph() -> Graph:
    x, y = batch(8, 0)
    return capture(net(), (x, y), supervised(F.cross_entropy))


def plan(devices: int = 1, **more: Any) -> Plan:
    return plan_for(graph(), cluster(f"local:{devices}"), "data", bn="global", **more)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plainly(clip: float | None, accumulate: int) -> tuple[list[float], nn.Module]:
    model = copy.deepcopy(net())
    optimizer, losses = sgd(model.parameters()), []
    for number in range(STEPS * accumulate):
        x, y = batch(8, number)
        loss = F.cross_entropy(model(x), y)
        (loss / accumulate).backward()
        losses.append(loss.item())
        if (number + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return losses, model


def assert_equal(trainer: Trainer, model: nn.Module) -> None:
    trained, plain = trainer.state_dict(), model.state_dict()
    assert trained.keys() == plain.keys()
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-9, atol=1e-9, msg=name)
    x, y = batch(8, 99)
    loss, outputs = trainer.evaluate((x, y)).loss, trainer.predict((x, y))
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(outputs, model(x), rtol=1e-9, atol=1e-9)
        assert float(loss) == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-9)


def sockets() -> int:
    """Returns how many files this process has open, if the system tells."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(f) and os.readlink(f).startswith("socket:") for f in links)


def threads() -> set[threading.Thread]:
    """Returns the threads that raddle has started; earlier tests of failures may have left some."""
    return {t for t in threading.enumerate() if t.name.startswith("raddle")}


@pytest.mark.parametrize(("clip", "accumulate"), [(None, 1), (0.1, 1), (None, 2)])
@pytest.mark.parametrize("sync", SYNCS)
def test_equal_to_the_plain_module(sync: str, clip: float | None, accumulate: int) -> None:
    if clip is not None and not read_sync(sync).synchronous:
        pytest.skip("an asynchronous server does not clip")
    losses, model = plainly(clip, accumulate)
    before, others = sockets(), threads()
    trainer = parallelize(
        copy.deepcopy(net()),
        sgd,
        plan=plan(sync=sync),
        loss=supervised(F.cross_entropy),
        graph=graph(),
        clip_norm=clip,
        accumulate=accumulate,
        timeout=60,
    )
    actual = [float(trainer.step(batch(8, n))) for n in range(STEPS * accumulate)]
    assert actual == pytest.approx(losses, rel=1e-9)
    assert_equal(trainer, model)
    assert not dist.is_initialized()
    assert sockets() == before
    trainer.close()
    assert threads() - others == set()


def resume(trainer: Trainer) -> None:
    trainer.load_state_dict(trainer.state_dict())
    trainer.load_optimizer_state_dict(trainer.optimizer_state_dict())


def other_size(trainer: Trainer) -> None:
    trainer.step(batch(5, 7))


@pytest.mark.parametrize("use", [resume, other_size])
def test_all_that_a_trainer_does_works_alone(use: Callable[[Trainer], None]) -> None:
    trainer = parallelize(
        copy.deepcopy(net()),
        sgd,
        plan=plan(),
        loss=supervised(F.cross_entropy),
        example=batch(8, 0),  # captures it
    )
    trainer.step(batch(8, 0))
    use(trainer)
    assert torch.isfinite(trainer.step(batch(8, 1)).loss)
    trainer.close()
    assert not dist.is_initialized()


def test_a_plan_of_more_devices_says_what_to_start() -> None:
    sentence = (
        "the plan needs 2 ranks, 1 was started: re-plan with --cluster local:1, or launch 2 with "
        "torchrun --nproc-per-node 2."
    )
    with pytest.raises(InputError, match=sentence):
        parallelize(net(), sgd, plan=plan(2), loss=supervised(F.cross_entropy), graph=graph())


def test_half_an_environment_is_not_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With WORLD_SIZE but without RANK, four processes must not train separately."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(InputError, match="start with torchrun"):
        parallelize(net(), sgd, plan=plan(), loss=supervised(F.cross_entropy), graph=graph())
