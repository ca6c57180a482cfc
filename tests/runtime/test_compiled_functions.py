"""Functions of segments are compiled before their first call; what cannot be compiled runs as it is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from functorch.compile import aot_module_simplified, make_boxed_func
from timeouts import HANG
from torch import nn

import raddle
from raddle.errors import InputError
from raddle.graph.supervised import supervised
from raddle.program.lower import lower
from raddle.runtime.execution.compiled_functions import (
    CompiledFunctions,
    NotCompiled,
    compile_mode,
)
from raddle.runtime.trainer import Trainer
from raddle.transport.join import join


class Refused(Exception):
    """What the compilers of these tests raise."""


def trainer_of(model: nn.Module, x: torch.Tensor, functions: CompiledFunctions) -> Trainer:
    """A trainer of one rank whose functions are compiled as the tests say."""
    y = torch.zeros(len(x), dtype=torch.int64)
    loss = nn.functional.cross_entropy
    graph = raddle.capture(model, (x, y), supervised(loss))
    program = lower(graph, raddle.search(graph, raddle.cluster("local:1"), "data"))
    place = torch.device("cpu")
    return Trainer(
        model, program, lambda p: torch.optim.SGD(p, lr=0.1), join(place, None, HANG), place,
        loss=loss, functions=functions,
    )  # fmt: skip


def losses(backend: Any, steps: int = 3) -> list[float]:
    """The losses of a small model with dropout and batch norm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    x = torch.randn(6, 4)
    functions = CompiledFunctions(None if backend is None else "default", backend=backend)
    trainer = trainer_of(model, x, functions)
    after_steps = [
        float(trainer.step((x, torch.zeros(6, dtype=torch.int64)))) for _ in range(steps)
    ]
    trainer.close()
    return after_steps


def refuse(*_: Any) -> Any:
    raise Refused("no such thing\nand more")


def refuse_backward(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """Compiles forwards only."""

    def forward(part: torch.fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(part.forward)

    return aot_module_simplified(graph, inputs, fw_compiler=forward, bw_compiler=refuse)


@pytest.mark.parametrize("backend", [refuse, refuse_backward])
def test_what_cannot_be_compiled_runs_eagerly_and_is_named_once(backend: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after_steps = losses(backend)
    sentences = [str(w.message) for w in caught if w.category is NotCompiled]
    assert len(sentences) == 1
    assert sentences[0].startswith("'0 … ")
    assert "without torch.compile: " in sentences[0]
    assert "\n" not in sentences[0]
    assert after_steps == losses(None)


def test_the_rehearsal_changes_nothing() -> None:
    """Batch norm's statistics and dropout's masks are those of a run that is not compiled."""
    assert losses("aot_eager") == pytest.approx(losses(None), rel=1e-6)


def test_an_error_of_the_model_is_not_the_compilers() -> None:
    """A label out of range is refused by the plain function too, with its own error."""
    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    trainer = trainer_of(model, x, CompiledFunctions("default", backend="eager"))
    with pytest.warns(NotCompiled), pytest.raises(IndexError):
        trainer.step((x, torch.full((6,), 7)))


@pytest.mark.parametrize("choice", [True, "max-autotune"])
def test_a_missing_compiler_is_one_sentence(
    choice: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(NotCompiled, match="there is no C\\+\\+ compiler 'no-such-compiler' here"):
        assert compile_mode(choice, torch.device("cpu")) is None


def test_what_users_may_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "true")  # any program
    cpu = torch.device("cpu")
    assert compile_mode("auto", cpu) is None
    assert compile_mode(False, cpu) is None
    assert compile_mode(True, cpu) == "default"
    assert compile_mode("max-autotune", cpu) == "max-autotune-no-cudagraphs"
    with pytest.raises(InputError, match="compile is 'fast': take True, False"):
        compile_mode("fast", cpu)
