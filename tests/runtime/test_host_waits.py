"""No step waits for a GPU: none reads a tensor on the host, or makes one from numbers of the host.

On a CPU, a mode of torch refuses the calls that would wait for a GPU. With a GPU, torch itself refuses
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import raddle
from raddle import zoo
from raddle.runtime.trainer import Trainer, parallelize

# Calls that read a tensor on the host, or copy numbers from the host to the tensor's device
WAITING = (
    Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.nonzero, Tensor.__bool__, Tensor.__float__,
    Tensor.__int__, Tensor.__index__, Tensor.__contains__, Tensor.masked_select, torch.nonzero,
    torch.masked_select, torch.unique, torch.equal, Tensor.equal, torch.tensor, torch.as_tensor,
    torch.from_numpy,
)  # fmt: skip
STEPS = 3


class HostWait(Exception):
    """A step called a function that waits for a GPU."""


class RefuseWaits(TorchFunctionMode):
    """A mode in which calls that would wait for a GPU raise HostWait."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in WAITING:
            raise HostWait(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@contextmanager
def _refused_by_cuda() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def refuse_waits() -> Any:
    return _refused_by_cuda() if torch.cuda.is_available() else RefuseWaits()


def trainer_of(
    name: str, *, make: Any = None, plan_settings: Any = None, **more: Any
) -> tuple[Trainer, tuple[Tensor, ...]]:
    work, place = zoo.load(name, device="cpu"), "cuda" if torch.cuda.is_available() else "cpu"
    settings = dict(plan_settings or {})
    microbatches = settings.get("microbatches", 1)
    example = tuple(t[: len(t) // microbatches] for t in work.batch)
    graph = raddle.capture(work.model, example, work.loss)
    plan = replace(raddle.plan(graph, cluster="local:1", method="data").plan, **settings)
    trainer = parallelize(
        work.model, make or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True)),
        plan=plan, graph=graph, loss=work.loss, device=place, compile=False, **more,
    )  # fmt: skip
    return trainer, tuple(t.to(place) for t in work.batch)


@pytest.mark.parametrize(
    "name", ["alexnet-tiny", "gpt-tiny", "resnet50-tiny", "unet-tiny", "rnnlm-tiny"]
)
def test_a_step_of_every_model_waits_for_nothing(name: str) -> None:
    check(*trainer_of(name))


@pytest.mark.parametrize(
    "case",
    [
        {"clip_norm": 0.1},
        {"accumulate": 2},
        {"plan_settings": {"microbatches": 2, "bn": "microbatch"}},
        {"precision": "bf16"},
        {"precision": "fp16", "make": lambda p: torch.optim.SGD(p, lr=0.1, fused=True)},
        {"precision": "fp16", "clip_norm": 0.1, "make": lambda p: torch.optim.AdamW(p, fused=True)},
    ],
    ids=["clipped", "accumulated", "micro-batches", "bf16", "fp16", "fp16, clipped"],
)
def test_no_setting_makes_a_step_wait(case: dict[str, Any]) -> None:
    check(*trainer_of("gpt-tiny", **case))


def check(trainer: Trainer, batch: tuple[Tensor, ...]) -> None:
    trainer.step(batch)  # the first step of an optimizer makes its state
    trainer.step(batch)
    with refuse_waits():
        results = [trainer.step(batch) for _ in range(STEPS)]
    assert all(bool(torch.isfinite(result.loss)) for result in results)
    trainer.close()


def test_the_mode_refuses_what_waits() -> None:
    """The test can fail: a finite check reads the loss, as it raises an error before the update."""
    trainer, batch = trainer_of("gpt-tiny", check_finite=True)
    trainer.step(batch)
    error = RuntimeError if torch.cuda.is_available() else HostWait
    with pytest.raises(error), refuse_waits():
        trainer.step(batch)
    with nullcontext():
        trainer.transport.close()
