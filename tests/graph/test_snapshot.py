"""Capture leaves the module and the process unchanged, whatever the forward does, and also if it fails."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.supervised import supervised

HOOKS = [n for n in dir(nn.Module) if n.startswith("register_") and n.endswith("_hook")]

# (module, input of its forward, random numbers): something that a forward may do to its module
Change = Callable[[Any, Tensor, random.Random], Any]


def ignore(*_: Any, **__: Any) -> None:
    """A hook that changes nothing."""


def hook(name: str) -> Change:
    """A change that registers one kind of hook, with random flags, on a random module."""

    def change(m: Any, v: Tensor, rng: random.Random) -> None:
        register = getattr(rng.choice(list(m.modules())), name)
        flags = [k for k, p in inspect.signature(register).parameters.items() if p.default is False]
        register(ignore, **{flag: rng.random() < 0.5 for flag in flags})

    return change


def assign(name: str, value: Callable[[Any, Tensor], Any]) -> Change:
    """A change that sets an attribute of a random module."""
    return lambda m, v, rng: setattr(rng.choice([m, m.fc, m.norm]), name, value(m, v))


def change_modes(m: Any, v: Tensor, rng: random.Random) -> None:
    for module in m.modules():
        module.train(rng.random() < 0.5)


def freeze_one(m: Any, v: Tensor, rng: random.Random) -> None:
    rng.choice(list(m.parameters())).requires_grad_(False)


def fail(m: Any, v: Tensor, rng: random.Random) -> None:
    raise RuntimeError("the forward fails")


def install_doubling_hook(m: Any, v: Tensor, rng: random.Random) -> None:
    """Installs a hook at the first call, as models of the library transformers do."""
    if not m.installed:
        m.installed = True
        m.fc.register_forward_hook(lambda module, inputs, output: output * 2)


CHANGES: dict[str, Change] = {
    **{name: hook(name) for name in HOOKS},
    "doubling": install_doubling_hook,
    "counts": assign("count", lambda m, v: m.count + 1),
    "keeps a tensor": assign("kept", lambda m, v: v),
    "new buffer": lambda m, v, rng: m.fc.register_buffer("more", torch.ones(2)),
    "new parameter": lambda m, v, rng: m.register_parameter("more", nn.Parameter(torch.ones(2))),
    "new module": lambda m, v, rng: m.norm.add_module("more", nn.Linear(2, 2)),
    "deletes": lambda m, v, rng: delattr(m, "spare") if hasattr(m, "spare") else None,
    "deletes a buffer": lambda m, v, rng: m._buffers.pop("unused", None),
    "writes a buffer": lambda m, v, rng: m.buffer.add_(1),
    "assigns a buffer": lambda m, v, rng: setattr(m, "buffer", m.buffer + 1),
    "writes a tensor": lambda m, v, rng: m.plain.add_(1),
    "assigns a tensor": lambda m, v, rng: setattr(m, "plain", m.plain + 1),
    "writes a tensor in a list": lambda m, v, rng: m.list[0].mul_(2),
    "appends": lambda m, v, rng: m.list.append(v),
    "appends left": lambda m, v, rng: m.queue.appendleft(v),
    "pops": lambda m, v, rng: m.dict.pop("a", None),
    "sets a key": lambda m, v, rng: m.dict.update(b=v),
    "adds": lambda m, v, rng: m.set.add("more"),
    "nested": lambda m, v, rng: m.dict["inner"].append(v),
    "an object's attribute": lambda m, v, rng: setattr(m.object, "last", v),
    "an object's list": lambda m, v, rng: m.object.list.append(v),
    "modes": change_modes,
    "requires_grad": freeze_one,
    "no requires_grad at all": lambda m, v, rng: m.requires_grad_(False),
    "seeds torch": lambda m, v, rng: torch.manual_seed(5),
    "draws from torch": lambda m, v, rng: torch.rand(3),
    "draws from random": lambda m, v, rng: random.random(),
    "draws from numpy": lambda m, v, rng: np.random.rand(),
    "draws from its own": lambda m, v, rng: [draw() for draw in m.draws],
    "default dtype": lambda m, v, rng: torch.set_default_dtype(torch.float64),
    "hooks of all modules": lambda m, v, rng: nn.modules.module.register_module_forward_hook(
        ignore
    ),
    "fails": fail,
}


class PlainObject:
    """An object that a module refers to and that is not a module."""

    def __init__(self) -> None:
        self.list: list[Any] = []


class ChangingModule(nn.Module):
    """A module whose forward makes the named CHANGES."""

    def __init__(self, changes: list[str], seed: int) -> None:
        super().__init__()
        self.changes, self.seed = tuple(changes), seed
        self.fc, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.register_buffer("buffer", torch.zeros(3))
        self.register_buffer("unused", torch.zeros(1))
        self.plain, self.spare, self.count, self.installed = torch.ones(3), 1, 0, False
        self.fc.count = self.norm.count = 0
        self.list, self.dict, self.set = [torch.ones(2)], {"a": 1, "inner": []}, {"one"}
        self.queue, self.object = deque([1, 2]), PlainObject()
        self.logger = logging.getLogger("raddle.tests")
        self.fc.register_forward_hook(ignore)
        self.random, self.numpy = random.Random(0), np.random.default_rng(0)
        self.draws = [self.random.random, self.numpy.random]

    def forward(self, x: Tensor) -> Tensor:
        rng = random.Random(self.seed)
        for name in self.changes:
            CHANGES[name](self, x, rng)
        return (self.norm(self.fc(x)) * self.buffer.exp()).square().mean()


def describe_object(value: Any, seen: set[int]) -> Any:
    """All that an object refers to, with the identity and the values of every tensor."""
    if isinstance(value, Tensor):
        gradient = None if value.grad is None else id(value.grad)
        numbers = value.detach().tolist()
        return id(value), type(value), numbers, value.requires_grad, gradient
    if id(value) in seen or isinstance(value, (int, float, str, type(None))):
        return id(value), value if isinstance(value, (int, float, str)) else None
    seen.add(id(value))
    if isinstance(value, dict):
        return [(k, describe_object(v, seen)) for k, v in value.items()]
    if isinstance(value, (list, tuple, deque, set)):
        return [describe_object(v, seen) for v in value]
    if isinstance(value, (nn.Module, PlainObject)):
        return id(value), type(value), describe_object(vars(value), seen)
    if isinstance(value, random.Random):
        return value.getstate()
    return str(value.bit_generator.state) if isinstance(value, np.random.Generator) else id(value)


def process_state() -> Any:
    registered = {
        k: dict(v) for k, v in vars(nn.modules.module).items() if isinstance(v, OrderedDict)
    }
    return (
        torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()),
        torch.get_default_dtype(), torch.is_grad_enabled(), str(registered),
    )  # fmt: skip


@contextlib.contextmanager
def restore_globals() -> Any:
    """Restores global state, so that a test that fails does not affect other tests."""
    before = torch.get_default_dtype(), dict(nn.modules.module._global_forward_hooks)
    try:
        yield
    finally:
        torch.set_default_dtype(before[0])
        nn.modules.module._global_forward_hooks.clear()
        nn.modules.module._global_forward_hooks.update(before[1])


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=5), st.integers(0, 99), st.booleans())
def test_capture_changes_nothing(changes: list[str], seed: int, training: bool) -> None:
    model, x = ChangingModule(changes, seed).train(training), torch.randn(4, 3)
    if seed % 2:
        model.fc.weight.grad = torch.ones(3, 3)
    with restore_globals():
        before = describe_object(model, set()), process_state()
        with contextlib.suppress(InputError):
            capture(model, [x])
        after = describe_object(model, set()), process_state()
    assert after == before


@pytest.mark.parametrize("name", CHANGES)
def test_each_way_to_change_a_module_is_undone(name: str) -> None:
    test_capture_changes_nothing.hypothesis.inner_test([name], 3, True)


def test_lists_stay_the_same_objects() -> None:
    """Other code may refer to them; torch.export replaces them by copies."""
    model = ChangingModule(["appends", "nested", "an object's list"], 0)
    held = model.list, model.dict, model.dict["inner"], model.queue, model.object.list
    capture(model, [torch.randn(4, 3)])
    now = model.list, model.dict, model.dict["inner"], model.queue, model.object.list
    assert all(a is b for a, b in zip(held, now, strict=True))


def freeze_bias(m: Any, v: Tensor, rng: random.Random) -> None:
    m.fc.bias.requires_grad_(False)


def hook_weight(m: Any, v: Tensor, rng: random.Random) -> None:
    m.fc.weight.register_post_accumulate_grad_hook(ignore)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(freeze_bias, "requires_grad of 'fc.bias'"), (hook_weight, "hook on a gradient")],
)
def test_what_would_be_lost_is_refused(
    change: Change, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHANGES, "given", change)
    with pytest.raises(InputError, match=reason):
        capture(ChangingModule(["given"], 0), [torch.randn(4, 3)])


def test_hooks_of_the_first_call_are_installed_once() -> None:
    torch.manual_seed(0)
    model, x = ChangingModule(["doubling"], 0), torch.randn(4, 3)
    expected = copy.deepcopy(model)(x).item()
    capture(model, [x])
    assert model(x).item() == expected


def test_segformer_runs_after_it_was_captured() -> None:
    hf = pytest.importorskip("transformers")
    config = hf.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 12], patch_sizes=[3, 3],
        strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = hf.SegformerForSemanticSegmentation(config).eval()
    given = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.randint(3, (2, 16, 16))}
    expected = copy.deepcopy(model)(**given).loss.item()
    before = describe_object(model, set())
    graph = capture(model, given, supervised(lambda out: out.loss, targets=0))
    assert describe_object(model, set()) == before
    assert model(**given).loss.item() == expected
    assert graph.loss is not None
