"""materialize_boxes gives boxes of exactly the values that `materialize` gives, for any choice of boxes."""

from __future__ import annotations

import copy
import random
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from raddle import zoo
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.runtime.materialize import materialize, materialize_boxes

TINY = [name for name in zoo.names() if name.endswith("-tiny")]


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def named(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def whole(model: nn.Module) -> dict[str, list[Box]]:
    return {name: [Box.full(t.shape)] for name, t in named(model).items()}


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


@cache
def pair(name: str) -> tuple[nn.Module, nn.Module]:
    """A model on meta, and the same model with values."""
    model = zoo.load(name).model
    return model, materialize(copy.deepcopy(model), seed=3)


def random_box(shape: tuple[int, ...], rng: random.Random) -> Box:
    ends = [sorted((rng.randrange(n), rng.randrange(n))) for n in shape]
    return Box(tuple(a for a, _ in ends), tuple(b + 1 for _, b in ends))


# -- the same numbers for everyone --------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_full_boxes_are_the_materialized_model(name: str) -> None:
    model, real = pair(name)
    before = named(model)
    taken = materialize_boxes(model, whole(model), seed=3)
    assert list(taken) == list(before)
    assert all(same(taken[n][0], t) for n, t in named(real).items())
    assert all(t.is_meta and t is before[n] for n, t in named(model).items())


@given(name=st.sampled_from(TINY), seed=st.integers(0, 10_000))
def test_random_boxes_are_slices_of_the_materialized_model(name: str, seed: int) -> None:
    model, real = pair(name)
    rng, tensors = random.Random(seed), named(real)
    names = rng.sample(sorted(tensors), k=min(4, len(tensors)))
    shapes = {n: tuple(tensors[n].shape) for n in names}
    boxes = {n: [random_box(shapes[n], rng) for _ in range(rng.randint(0, 3))] for n in names}
    taken = materialize_boxes(model, boxes, seed=3)
    for n in names:
        expected = [tensors[n][box.slices_within(Box.full(shapes[n]))] for box in boxes[n]]
        assert all(map(same, taken[n], expected))
        assert len(taken[n]) == len(expected)


@pytest.mark.parametrize("name", ["rnntc-tiny", "resnet110-tiny", "gpt-tiny"])
def test_a_materialized_model_runs(name: str) -> None:
    work = zoo.load(name, device="cpu")
    loss = work.loss(pair(name)[1], work.batch)
    loss.backward()
    assert loss.isfinite()


def test_seeds_and_modules_differ() -> None:
    model = on_meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    one, again, other = (materialize_boxes(model, whole(model), seed=s) for s in (1, 1, 2))
    assert same(one["0.weight"][0], again["0.weight"][0])
    assert not same(one["0.weight"][0], other["0.weight"][0])
    assert not same(one["0.weight"][0], one["1.weight"][0])


class Slow(nn.Linear):
    def reset_parameters(self) -> None:
        super().reset_parameters()
        time.sleep(0.005)  # lets other threads run while this module has memory


def test_threads_take_the_same() -> None:
    model = on_meta(lambda: nn.Sequential(*(Slow(3, 3) for _ in range(3))))
    real, taken = materialize(copy.deepcopy(model)), []
    threads = [
        threading.Thread(target=lambda: taken.append(materialize_boxes(model, whole(real))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 6
    assert all(same(t[n][0], p) for t in taken for n, p in named(real).items())


def test_names_are_those_of_the_graph() -> None:
    work = zoo.load("gpt-tiny")
    graph = capture(work.model, work.batch, work.loss)
    assert graph.aliases == {"lm_head.weight": "wte.weight"}
    states = [*graph.parameters, *graph.buffers]
    taken = materialize_boxes(work.model, {v.name: [Box.full(v.shape)] for v in states})
    assert {n: tuple(t.shape) for n, (t,) in taken.items()} == {v.name: v.shape for v in states}


# -- real models, and half real ones ------------------------------------------------------------------


def test_of_a_real_model_it_takes_copies() -> None:
    model = nn.Linear(4, 6)
    (top, row) = materialize_boxes(model, {"weight": [Box((0, 0), (3, 4)), Box((1, 0), (2, 4))]})[
        "weight"
    ]
    expected = model.weight.detach().clone()
    top.zero_()
    row.zero_()
    assert same(model.weight, expected)
    assert row.is_contiguous()
    assert not row.requires_grad
    assert row.untyped_storage().nbytes() == 4 * 4


def test_what_is_real_in_a_meta_model_stays() -> None:
    model = on_meta(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)))
    model[0].running_mean = torch.tensor([1.0, 2.0, 3.0])  # a reset would set it to zero
    mean = model[0].running_mean
    taken = materialize_boxes(model, whole(model))
    assert taken["0.running_mean"][0].tolist() == [1, 2, 3]
    assert taken["0.running_var"][0].tolist() == [1, 1, 1]
    assert materialize(model)[0].running_mean is mean
    assert mean.tolist() == [1, 2, 3]
    assert model[0].running_var.tolist() == [1, 1, 1]


def test_marks_and_frozen_parameters_are_kept() -> None:
    model = on_meta(lambda: nn.Linear(2, 2))
    model.weight.requires_grad_(False)
    model.bias.decays = False
    materialize(model)
    assert not model.weight.requires_grad
    assert model.bias.requires_grad
    assert model.bias.decays is False


# -- tied weights -------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5)
        self.output.weight = self.embedding.weight


def test_a_tied_weight_is_initialised_once_by_its_first_owner() -> None:
    model = on_meta(Tied)
    single_layer = materialize_boxes(
        on_meta(lambda: nn.Sequential(nn.Embedding(5, 3))), {"0.weight": [Box.full((5, 3))]}
    )
    boxes = {n: [Box.full((5, 3))] for n in ("output.weight", "embedding.weight")}
    taken = materialize_boxes(model, boxes)
    assert list(taken) == list(boxes)
    assert same(taken["output.weight"][0], taken["embedding.weight"][0])
    assert same(taken["output.weight"][0], single_layer["0.weight"][0])
    real = materialize(copy.deepcopy(model))
    assert real.output.weight is real.embedding.weight
    assert same(real.output.weight, taken["output.weight"][0])
    assert same(
        real.output.bias,
        materialize_boxes(model, {"output.bias": [Box.full((5,))]})["output.bias"][0],
    )


# -- how modules initialise themselves ------------------------------------------------------------------


def test_attention_initialises_its_projection_as_construction_does() -> None:
    real = materialize(on_meta(lambda: nn.Sequential(nn.MultiheadAttention(6, 2))))[0]
    assert real.in_proj_bias.eq(0).all()
    assert real.out_proj.bias.eq(0).all()  # set by the outer module
    assert real.out_proj.weight.ne(0).all()


class Outer(nn.Module):
    """Initialises the parameters of its children, through another name and through a list."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = Tied()
        self.scales = nn.ParameterList([nn.Parameter(torch.empty(3)) for _ in range(2)])

    def reset_parameters(self) -> None:
        nn.init.constant_(self.tied.output.weight, 7)
        for i, scale in enumerate(self.scales):
            scale.data.fill_(i)


def test_a_module_may_initialise_what_it_contains() -> None:
    taken = materialize_boxes(model := on_meta(Outer), whole(model))
    assert taken["tied.embedding.weight"][0].eq(7).all()
    assert taken["scales.1"][0].tolist() == [1, 1, 1]
    assert not taken["tied.output.bias"][0].eq(7).any()


class Replacing(nn.Module):
    """Replaces its parameter instead of writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))
        self.register_buffer("mask", torch.empty(3, dtype=torch.bool), persistent=False)

    def reset_parameters(self) -> None:
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.mask.fill_(True)


def test_a_module_may_replace_its_parameters() -> None:
    model = on_meta(Replacing)
    weight = model.weight
    assert materialize_boxes(model, whole(model))["weight"][0].tolist() == [1, 2, 3]
    assert model.weight is weight
    assert materialize(model).weight.tolist() == [1, 2, 3]
    assert model.mask.all()


# -- one module at a time -----------------------------------------------------------------------------


class Watched(nn.Linear):
    """Counts, at each initialisation, how many of these modules have memory."""

    alive: list[weakref.ref[Tensor]]
    counts: list[int]

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            self.alive.append(weakref.ref(self.weight))
            self.counts.append(sum(r() is not None for r in self.alive))
        super().reset_parameters()


@pytest.fixture
def watched() -> type[Watched]:
    Watched.alive, Watched.counts = [], []
    return Watched


def test_never_more_than_one_module_has_memory(watched: type[Watched]) -> None:
    model = on_meta(lambda: nn.Sequential(*(watched(32, 32) for _ in range(8))))
    materialize_boxes(model, {f"{i}.weight": [Box((i, 0), (i + 1, 32))] for i in range(8)})
    assert watched.counts == [1] * 8
    materialize(model)  # here all modules have memory, so the count grows
    assert watched.counts[8:] == list(range(1, 9))


def test_only_modules_of_which_something_is_wanted_are_initialised(watched: type[Watched]) -> None:
    model = on_meta(lambda: nn.Sequential(*(watched(4, 4) for _ in range(8))))
    everything = materialize_boxes(model, whole(model))
    watched.counts.clear()
    bias = materialize_boxes(model, {"5.bias": [Box((1,), (3,))]})["5.bias"][0]
    assert watched.counts == [1]
    assert same(bias, everything["5.bias"][0][1:3])


# -- what it leaves alone -------------------------------------------------------------------------------


def test_the_random_state_is_untouched() -> None:
    model = on_meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.Hardswish(), Broken()))
    before = torch.get_rng_state()
    materialize_boxes(model, {"0.weight": [Box.full((4, 4))]})
    with pytest.raises(InputError):
        materialize(model)
    assert same(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


def test_it_works_in_whatever_mode_the_caller_is() -> None:
    model, real = pair("lenet-tiny")
    for mode in (torch.device("meta"), torch.inference_mode(), torch.no_grad()):
        with mode:
            taken = materialize_boxes(model, whole(model), seed=3)
        assert all(same(taken[n][0], t) for n, t in named(real).items())


# -- errors -----------------------------------------------------------------------------------------------


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def reset_parameters(self) -> None:
        raise RuntimeError("no luck\nat all")


class Rotary(nn.Linear):
    """Only `__init__` sets its frequencies."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(4, 4)
        self.register_buffer("frequencies", torch.ones(4, dtype=dtype), persistent=False)


class Partly(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.weight[0] = 1


def no_reset(name: str, module: str) -> str:
    return (
        f"'{name}' is on the meta device and no reset_parameters sets it: "
        f"give {module} one that does, or build the model on CPU."
    )


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (Bare, no_reset("weight", "Bare")),
        (lambda: nn.Sequential(nn.Linear(2, 2), Bare()), no_reset("1.weight", "Bare '1'")),
        (lambda: nn.Sequential(Partly(2, 2)), no_reset("0.weight", "Partly '0'")),
        (lambda: Rotary(torch.float32), no_reset("frequencies", "Rotary")),
        (lambda: Rotary(torch.int64), no_reset("frequencies", "Rotary")),
        (lambda: Rotary(torch.bool), no_reset("frequencies", "Rotary")),
        (
            lambda: nn.Sequential(Broken()),
            "reset_parameters of Broken '0' fails with most of the model on meta (no luck): "
            "build the model on CPU.",
        ),
    ],
    ids=["bare", "inner", "partly", "float", "int", "bool", "broken"],
)
def test_what_cannot_be_initialised_is_said(build: Any, sentence: str) -> None:
    model = on_meta(build)
    before = named(model)
    with pytest.raises(InputError) as raised:
        materialize_boxes(model, whole(model))
    assert str(raised.value) == sentence
    with pytest.raises(InputError):
        materialize(model)
    assert all(t.is_meta and t is before[n] for n, t in named(model).items())


def test_what_is_not_wanted_need_not_be_initialised() -> None:
    assert (
        materialize_boxes(on_meta(lambda: Rotary(torch.float32)), {"bias": [Box((0,), (2,))]})[
            "bias"
        ][0]
        .ne(0)
        .all()
    )


def test_unknown_names_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"no parameter or buffer 'wieght': take the names from a graph"
    ):
        materialize_boxes(nn.Linear(2, 2), {"wieght": []})
