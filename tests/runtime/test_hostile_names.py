"""Names of modules, parameters and buffers come from the user and are never executed as code."""

from __future__ import annotations

import builtins
from typing import Any

import torch
from equality import Task
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_plans import random_plan
from torch import Tensor, nn

# All characters that end a line for Python or for str.splitlines, and those that begin or end tokens.
BREAKS = [c for c in map(chr, range(0x3000)) if len(f"a{c}a".splitlines()) > 1] + ["\r\n"]
STRANGE = [*"'\"\\#;: \té", "", '"""', "\\n", "{}", "%s", "\ud800", "v1"]
RUN = "setattr(__import__('builtins'), 'canary', True)"


class Named(nn.Module):
    """A layer, a parameter and a buffer with the given names."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        module, parameter, buffer = names
        self.add_module(module, nn.Linear(4, 4))
        self.register_parameter(parameter, nn.Parameter(torch.full((4,), 0.5)))
        self.register_buffer(buffer, torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        module, parameter, buffer = (getattr(self, name) for name in self.names)
        return module(x).relu() * parameter + buffer


def name(first: str) -> st.SearchStrategy[str]:
    parts = [STRANGE, BREAKS, ["", "    "], [RUN], STRANGE]
    return st.tuples(*map(st.sampled_from, parts)).map(lambda chosen: first + "".join(chosen))


@settings(max_examples=8)
@given(names=st.tuples(name("m"), name("p"), name("b")), seed=st.integers(0, 1000))
@example(names=(f"m\n    {RUN}", "p", "b"), seed=0)
def test_what_a_name_holds_is_not_run(names: tuple[str, ...], seed: int) -> None:
    vars(builtins).pop("canary", None)
    model = Named(list(names)).double()
    x: list[Any] = [
        torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ]
    task = Task(model, x, loss=lambda y: (y * y).mean())
    plan = random_plan(task.graph, 2, seed, fingerprint=task.graph.fingerprint())
    task.verify(plan)
    assert not hasattr(builtins, "canary")
