"""Boxes of all ranks are assembled to the plain module's state, which can be cut for any other layout."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from timeouts import HANG
from torch import Tensor, nn

from raddle import zoo
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.graph.interpret import Pieces
from raddle.runtime.checkpoint import (
    Exchange,
    assemble,
    cut,
    cut_optimizer,
    cut_state,
    gather_optimizer,
    gather_state,
)
from raddle.transport.exchange import exchange_objects
from raddle.transport.process_transport import ProcessTransport

Shapes = dict[str, tuple[int, ...]]
Layout = list[dict[str, list[Box]]]  # the boxes of each rank
seeds = st.integers(0, 10_000)


# -- layouts, and ranks that are threads -----------------------------------------------------------


def random_cuts(shape: tuple[int, ...], rng: random.Random) -> list[Box]:
    """Boxes from up to three random cuts; each cut divides a random box."""
    boxes = [Box.full(shape)]
    for _ in range(rng.randint(0, 3)):
        box = boxes.pop(rng.randrange(len(boxes)))
        splittable = [d for d, size in enumerate(box.shape) if size > 1]
        if not splittable:
            boxes.append(box)
            continue
        d = rng.choice(splittable)
        position = rng.randrange(box.lo[d] + 1, box.hi[d])
        boxes.append(Box(box.lo, (*box.hi[:d], position, *box.hi[d + 1 :])))
        boxes.append(Box((*box.lo[:d], position, *box.lo[d + 1 :]), box.hi))
    return boxes


def random_layout(shapes: Shapes, ranks: int, seed: int) -> Layout:
    """A random layout: every box is on one rank or on two."""
    rng = random.Random(seed)
    layout: Layout = [{} for _ in range(ranks)]
    for name, shape in shapes.items():
        for box in random_cuts(shape, rng):
            for rank in rng.sample(range(ranks), k=rng.randint(1, min(2, ranks))):
                layout[rank].setdefault(name, []).append(box)
    return layout


def on_threads(ranks: int, work: Callable[[int, Exchange], Any]) -> list[Any]:
    """Calls work(rank, exchange) on threads; returns the results. exchange: all-gather of objects."""
    results: list[Any] = [None] * ranks
    posted: list[Any] = [None] * ranks
    barrier = threading.Barrier(ranks, timeout=HANG)

    def exchange_of(rank: int) -> Exchange:
        def exchange(local: Any) -> list[Any]:
            posted[rank] = local
            barrier.wait()
            by_rank = list(posted)
            barrier.wait()  # all ranks have read before the next exchange
            return by_rank

        return exchange

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, exchange_of(rank))
        except BaseException as error:
            results[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures = [r for r in results if isinstance(r, BaseException)]
    for failure in failures:
        if not isinstance(failure, threading.BrokenBarrierError):  # that rank only waited
            raise failure
    assert not failures
    return results


def pair_boxes(layout: dict[str, list[Box]], tensors: dict[str, list[Tensor]]) -> dict[str, Pieces]:
    """Name -> (box, tensor) pairs of a rank."""
    return {name: list(zip(boxes, tensors[name], strict=True)) for name, boxes in layout.items()}


def cut_and_gather(
    layout: Layout, state: dict[str, Tensor], shapes: Shapes, aliases: Any
) -> list[Any]:
    """Cuts a state into a layout's boxes and gathers it again; returns the result of each rank."""

    def work(rank: int, exchange: Exchange) -> dict[str, Tensor]:
        pieces = pair_boxes(layout[rank], cut_state(state, layout[rank], shapes, aliases))
        return gather_state(exchange, pieces, shapes, aliases)

    return on_threads(len(layout), work)


@cache
def plain_state(name: str) -> tuple[dict[str, Tensor], Shapes, dict[str, str]]:
    """The state of a plain model, the shapes of its tensors, and the graph's aliases of tied tensors."""
    work = zoo.load(name, device="cpu")
    graph = capture(work.model, work.batch, work.loss)
    shapes = {v.name: v.shape for v in [*graph.parameters, *graph.buffers]}
    return dict(work.model.state_dict()), shapes, dict(graph.aliases)


def assert_same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


# -- one tensor ------------------------------------------------------------------------------------


@given(shape=st.lists(st.integers(1, 6), max_size=3).map(tuple), seed=seeds)
def test_a_tensor_comes_apart_and_together(shape: tuple[int, ...], seed: int) -> None:
    rng = random.Random(seed)
    tensor = torch.randn(shape, requires_grad=True)
    boxes = random_cuts(shape, rng)
    boxes += rng.choices(boxes, k=2)
    pieces = cut(tensor, boxes)
    assert all(not p.requires_grad and p.is_contiguous() for p in pieces)
    assert len({p.data_ptr() for p in pieces} | {tensor.data_ptr()}) == len(pieces) + 1
    assert_same(assemble(shape, tensor.dtype, zip(boxes, pieces, strict=True)), tensor.detach())


def test_gaps_are_found() -> None:
    with pytest.raises(AssertionError, match=r"\[\[0:2\]\] leave gaps in \[0:3\]"):
        assemble((3,), torch.float32, [(Box((0,), (2,)), torch.zeros(2))])


def test_a_box_outside_is_found() -> None:
    with pytest.raises(AssertionError, match=r"\[2:5\] is not in a tensor of shape \(4,\)"):
        cut(torch.zeros(4), [Box((2,), (5,))])


# -- parameters and buffers ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-tiny", "resnet110-tiny", "rnntc-tiny"])
@settings(max_examples=8)
@given(ranks=st.tuples(st.integers(1, 4), st.integers(1, 4)), seed=seeds)
def test_any_layout_loads_what_any_other_has_saved(
    name: str, ranks: tuple[int, int], seed: int
) -> None:
    state, shapes, aliases = plain_state(name)
    first, second = (random_layout(shapes, n, seed + i) for i, n in enumerate(ranks))
    (once, *others) = cut_and_gather(first, state, shapes, aliases)
    assert all(other.keys() == once.keys() for other in others)
    (twice, *_) = cut_and_gather(second, once, shapes, aliases)
    assert twice.keys() == state.keys()
    assert_same(twice, state)


def test_a_tied_weight_has_all_its_names_and_is_one_tensor() -> None:
    state, shapes, aliases = plain_state("gpt-tiny")
    (full,) = cut_and_gather(random_layout(shapes, 1, 0), state, shapes, aliases)
    assert full["lm_head.weight"] is full["wte.weight"]
    work = zoo.load("gpt-tiny", device="cpu", seed=1)
    work.model.load_state_dict(full)  # strict: checks all names
    assert_same(work.model.lm_head.weight.detach(), state["wte.weight"])


@pytest.mark.parametrize("dropped", ["lm_head.weight", "wte.weight"])
def test_one_name_of_a_tied_weight_will_do(dropped: str) -> None:
    state, shapes, aliases = plain_state("gpt-tiny")
    remaining = {n: t for n, t in state.items() if n != dropped}
    (full,) = cut_and_gather(random_layout(shapes, 1, 0), remaining, shapes, aliases)
    assert_same(full, state)


def test_only_ranks_that_keep_the_state_have_it() -> None:
    shapes, layout = {"w": (4,)}, [{"w": [Box((0,), (3,))]}, {"w": [Box((3,), (4,))]}]

    def work(rank: int, exchange: Exchange) -> dict[str, Tensor]:
        pieces = pair_boxes(
            layout[rank], cut_state({"w": torch.arange(4)}, layout[rank], shapes, {})
        )
        return gather_state(exchange, pieces, shapes, {"v": "w"}, keep=rank == 1)

    nothing, full = on_threads(2, work)
    assert nothing == {}
    assert {name: t.tolist() for name, t in full.items()} == {n: [0, 1, 2, 3] for n in "wv"}


# -- optimizers ------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
}
SHAPES: Shapes = {"fc.weight": (4, 5), "fc.bias": (4,), "scale": ()}


def gradient(name: str, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * 100 + len(name))
    return torch.randn(SHAPES[name], generator=generator, dtype=torch.float64)


def update(
    make: Any, boxes: dict[str, Pieces], entries: dict[str, list[dict[str, Any]]], steps: range
) -> dict[str, list[tuple[Box, dict[str, Any]]]]:
    """Runs some steps of an optimizer on a rank's boxes; returns its state."""
    optimizer = make([t for pieces in boxes.values() for _, t in pieces])
    for name, saved in entries.items():
        for (_, tensor), entry in zip(boxes[name], saved, strict=True):
            optimizer.state[tensor] = entry
    for step in steps:
        for name, pieces in boxes.items():
            for box, tensor in pieces:
                tensor.grad = gradient(name, step)[
                    box.slices_within(Box.full(SHAPES[name]))
                ].clone()
        optimizer.step()
    return {n: [(box, optimizer.state[t]) for box, t in pieces] for n, pieces in boxes.items()}


def train_on_layout(
    make: Any, layout: Layout, state: Any, entries: Any, steps: range
) -> tuple[Any, Any]:
    """State and optimizer state after some steps on a layout, starting from given ones."""

    def work(rank: int, exchange: Exchange) -> tuple[Any, Any]:
        if not layout[rank]:
            return gather_state(exchange, {}, SHAPES, {}), gather_optimizer(exchange, {}, SHAPES)
        pieces = pair_boxes(layout[rank], cut_state(state, layout[rank], SHAPES, {}))
        saved = cut_optimizer(entries, layout[rank], SHAPES) if entries else {}
        after = update(make, pieces, saved, steps)
        return gather_state(exchange, pieces, SHAPES, {}), gather_optimizer(exchange, after, SHAPES)

    results = on_threads(len(layout), work)
    for other in results[1:]:
        assert_same(other, results[0])
    return results[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@settings(max_examples=12)
@given(ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)), seed=seeds)
def test_training_goes_on_in_another_layout(kind: str, ranks: tuple[int, int], seed: int) -> None:
    make, start = OPTIMIZERS[kind], {n: gradient(n, 99) for n in SHAPES}
    first, second = (random_layout(SHAPES, n, seed + i) for i, n in enumerate(ranks))
    moved = train_on_layout(
        make, second, *train_on_layout(make, first, start, {}, range(2)), range(2, 4)
    )
    plain = train_on_layout(
        make, [{n: [Box.full(s)] for n, s in SHAPES.items()}], start, {}, range(4)
    )
    torch.testing.assert_close(moved, plain, rtol=1e-12, atol=1e-12)


def test_the_state_is_that_of_the_plain_optimizer() -> None:
    start = {n: gradient(n, 99) for n in SHAPES}
    parameters = {n: nn.Parameter(t.clone()) for n, t in start.items()}
    optimizer = OPTIMIZERS["adam"](list(parameters.values()))
    for step in range(2):
        for name, p in parameters.items():
            p.grad = gradient(name, step)
        optimizer.step()
    _, entries = train_on_layout(
        OPTIMIZERS["adam"], random_layout(SHAPES, 3, 1), start, {}, steps=range(2)
    )
    assert list(entries["fc.weight"]) == ["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
    for name, p in parameters.items():
        torch.testing.assert_close(entries[name], dict(optimizer.state[p]), rtol=1e-12, atol=1e-12)


def test_every_box_counts_its_own_steps() -> None:
    entries = {"w": {"step": torch.tensor(2.0), "kind": None, "seen": 7}}
    boxes = {"w": [Box((0,), (1,)), Box((1,), (2,))]}
    one, other = cut_optimizer(entries, boxes, {"w": (2,)})["w"]
    one["step"] += 1
    assert other == {"step": torch.tensor(2.0), "kind": None, "seen": 7}
    assert entries["w"]["step"] == 2


def test_before_the_first_step_there_is_nothing() -> None:
    shapes = {"w": (2,)}
    (entries,) = on_threads(
        1, lambda _, exchange: gather_optimizer(exchange, {"w": [(Box((0,), (2,)), {})]}, shapes)
    )
    assert entries == {"w": {}}
    assert cut_optimizer(entries, {"w": [Box((0,), (2,))]}, shapes) == {"w": [{}]}


# -- errors ----------------------------------------------------------------------------------------


FITS = {n: torch.zeros(s) for n, s in SHAPES.items()}
ADVICE = "; load one that was saved from this model."


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({n: FITS[n] for n in ("fc.weight", "scale")}, "'fc.bias' is missing"),
        ({**FITS, "head": torch.zeros(2)}, "'head' is unexpected"),
        ({**FITS, "fc.bias": torch.zeros(3)}, "'fc.bias' is (3,) instead of (4,)"),
        ({**FITS, "tied": torch.zeros(3)}, "'tied' is (3,) instead of (4, 5)"),
        ({**FITS, "scale": 2.0}, "'scale' is float instead of ()"),
        (
            {"a": FITS["scale"], "b": FITS["scale"], "scale": torch.zeros(1)},
            "'fc.weight' is missing, 'fc.bias' is missing, 'a' is unexpected and 2 more",
        ),
    ],
    ids=["missing", "unexpected", "shape", "alias", "type", "many"],
)
def test_a_state_that_does_not_fit_is_refused(state: Any, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        cut_state(state, {}, SHAPES, {"tied": "fc.weight"})
    assert str(raised.value) == f"the state does not fit the model: {sentence}{ADVICE}"


def test_an_optimizer_state_that_does_not_fit_is_refused() -> None:
    entries: Any = {"fc.weight": {"exp_avg": torch.zeros(4), "step": torch.tensor(1)}, "scale": {}}
    with pytest.raises(InputError) as raised:
        cut_optimizer({**entries, "a": {}}, {}, SHAPES)
    assert str(raised.value) == (
        "the optimizer's state does not fit the model: 'fc.bias' is missing, 'a' is unexpected, "
        f"'exp_avg' of 'fc.weight' is (4,) instead of (4, 5){ADVICE}"
    )


def test_an_optimizer_that_keeps_other_shapes_is_refused_by_all_ranks() -> None:
    def work(rank: int, exchange: Exchange) -> str:
        parameter = nn.Parameter(torch.ones(2, 5))
        parameter.grad = torch.ones(2, 5)
        optimizer = torch.optim.Adafactor([parameter])
        optimizer.step()
        box = Box((2 * rank, 0), (2 * rank + 2, 5))
        with pytest.raises(InputError) as raised:
            gather_optimizer(
                exchange, {"w": [(box, optimizer.state[parameter])]}, {"w": (4, 5)}, keep=rank == 0
            )
        return str(raised.value)

    assert on_threads(2, work) == 2 * [
        "the optimizer keeps 'row_var' of shape (2, 1) for the box [0:2 0:5] of 'w': "
        "only what has the shape of its parameter, or is a scalar, can be saved."
    ]


# -- processes -------------------------------------------------------------------------------------


def process(rank: int, store: str, out: str) -> None:
    """One of two ranks that exchange objects over a process transport."""
    os.environ["GLOO_SOCKET_IFNAME"] = loopback()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    place = torch.device("cpu")
    transport = ProcessTransport(place)
    result = exchanged(rank, lambda mine: exchange_objects(transport, place, mine))
    torch.save(result, f"{out}/{rank}")
    transport.close()
    dist.destroy_process_group()


def loopback() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def exchanged(me: int, exchange: Exchange) -> Any:
    shapes = {"w": (4, 3), "flag": (), "half": (2,)}
    state = {
        "w": torch.arange(12.0).view(4, 3).t().contiguous().t(),  # column-major
        "flag": torch.tensor(True),
        "half": torch.tensor([0.5, 2.0], dtype=torch.bfloat16),
    }
    boxes = [
        {"w": [Box((0, 0), (4, 1))], "half": [Box((0,), (2,))]},
        {"w": [Box((0, 1), (4, 3))], "flag": [Box((), ())]},
    ]
    pieces = pair_boxes(boxes[me], cut_state(state, boxes[me], shapes, {}))
    entries = {
        name: [
            (box, {"step": torch.tensor(3.0), "m": tensor, "n": 1}) for box, tensor in box_tensors
        ]
        for name, box_tensors in pieces.items()
    }
    full = gather_state(exchange, pieces, shapes, {"v": "w"})
    return state, full, gather_optimizer(exchange, entries, shapes), exchange((me, torch.empty(0)))


def test_processes_exchange(tmp_path: Path) -> None:
    mp.spawn(process, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        state, full, entries, last = torch.load(tmp_path / str(rank))
        assert_same(full, {**state, "v": state["w"]})
        expected = {n: {"step": torch.tensor(3.0), "m": t, "n": 1} for n, t in state.items()}
        assert_same(entries, expected)
        assert [(me, tuple(t.shape)) for me, t in last] == [(0, (0,)), (1, (0,))]
