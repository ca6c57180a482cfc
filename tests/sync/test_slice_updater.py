"""A stock optimizer that updates slices one at a time gives the same bits as with whole parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from raddle.sync.slice_updater import SliceUpdater, why_barrier

Make = Callable[[Iterable[Any]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True
    ),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
}


def slices(parameter: Tensor, cuts: list[int]) -> list[nn.Parameter]:
    """Returns the rows between cuts, as views of the parameter."""
    rows = parameter.detach()
    return [nn.Parameter(rows[a:b], requires_grad=False) for a, b in pairwise(cuts)]


def both(
    make: Make, shapes: list[tuple[int, ...]], cuts: list[list[int]], steps: int
) -> tuple[Any, ...]:
    """Trains some steps with whole parameters and with slices in random order; returns both parameters."""
    torch.manual_seed(0)
    whole = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    cut = [p.detach().clone() for p in whole]
    rows = [s for p, c in zip(cut, cuts, strict=True) for s in slices(p, c)]
    # Two groups: the first parameter learns more slowly.
    first = len(cuts[0]) - 1
    slow = torch.tensor(0.003) if _tensor(make) else 0.003
    one = make(
        [
            {"params": whole[:1], "lr": slow},
            {"params": whole[1:]},
        ]
    )
    many = make(
        [
            {"params": rows[:first], "lr": slow},
            {"params": rows[first:]},
        ]
    )
    applying = SliceUpdater(many, {n: [p] for n, p in enumerate(rows)})
    for clock in range(1, steps + 1):
        for p in whole:
            p.grad = torch.randn_like(p)
        one.step()
        applying.snapshot(clock)
        parts = [g for p, c in zip(whole, cuts, strict=True) for g in slices(p.grad, c)]
        for number in torch.randperm(len(rows)).tolist():
            applying(number, clock, parts[number].detach())
    return whole, cut, many, rows


def _tensor(make: Make) -> bool:
    return isinstance(make([torch.zeros(1)]).defaults.get("lr"), Tensor)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slices_give_the_same_bits(name: str) -> None:
    shapes = [(37, 19), (64, 3, 3, 3), (129,), (11, 1)]
    cuts = [[0, 1, 8, 37], [0, 5, 21, 64], [0, 3, 128, 129], [0, 11]]
    whole, cut, many, rows = both(OPTIMIZERS[name], shapes, cuts, steps=7)
    for p, q in zip(whole, cut, strict=True):
        assert torch.equal(p.detach(), q)
    assert name == "sgd" or set(many.state) == set(
        rows
    )  # the state lives in the caller's optimizer
    assert all(p.grad is None for p in rows)


@settings(max_examples=25)
@given(st.sampled_from(["nesterov", "adamw", "rmsprop"]), st.integers(1, 300), st.data())
def test_slices_of_any_size(name: str, rows: int, data: st.DataObject) -> None:
    inner = data.draw(st.sets(st.integers(1, rows), max_size=6))
    cuts = sorted({0, rows} | inner)
    whole, cut, _, _ = both(OPTIMIZERS[name], [(3, 2), (rows,)], [[0, 3], cuts], steps=3)
    assert torch.equal(whole[1].detach(), cut[1])


def test_a_scheduler_does_not_reach_updates_under_way() -> None:
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([a, b], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    applying = SliceUpdater(optimizer, {0: [a], 1: [b]})
    one = torch.ones(2)
    applying.snapshot(1)
    applying(0, 1, one)
    optimizer.step()  # nothing has a gradient: what a training loop calls
    scheduler.step()
    applying.snapshot(2)
    applying(0, 2, one)
    assert applying.kept_clocks == [1, 2]
    applying(1, 1, one)  # late: still with the lr of its step
    assert applying.kept_clocks == [2]
    applying(1, 2, one)
    assert a.tolist() == b.tolist() == [-1.5, -1.5]


def test_settings_hold_until_the_next_snapshot_and_are_forgotten() -> None:
    a = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([a], lr=1.0)
    applying = SliceUpdater(optimizer, {0: [a]}, times={0: 2})
    applying.snapshot(1)
    for clock in (1, 2, 2, 1, 3):  # two workers, one ahead
        applying(0, clock, torch.ones(1))
    assert a.item() == -5
    applying.snapshot(3)
    optimizer.param_groups[0]["lr"] = 0.5
    applying.snapshot(4)
    assert applying.kept_clocks == [3, 4]  # one update of clock 3 is still to come
    applying(0, 3, torch.ones(1))
    applying(0, 4, torch.ones(1))
    assert a.item() == -6.5
    assert applying.kept_clocks == [4]


def test_a_learning_rate_that_is_a_tensor_is_kept_by_value() -> None:
    a = nn.Parameter(torch.zeros(1))
    lr = torch.tensor(1.0)
    optimizer = torch.optim.SGD([a], lr=lr)
    applying = SliceUpdater(optimizer, {0: [a]})
    applying.snapshot(1)
    lr.fill_(100.0)
    applying(0, 1, torch.ones(1))
    assert a.item() == -1


def test_loaded_state_is_used() -> None:
    def step(p: nn.Parameter, optimizer: Optimizer) -> None:
        p.grad = torch.ones(3)
        optimizer.step()

    plain = nn.Parameter(torch.zeros(3))
    adam = torch.optim.Adam([plain], lr=0.1)
    step(plain, adam)
    sliced = nn.Parameter(plain.detach().clone())
    other = torch.optim.Adam([sliced], lr=0.1)
    applying = SliceUpdater(other, {0: [sliced]})
    other.load_state_dict(copy.deepcopy(adam.state_dict()))
    step(plain, adam)
    applying.snapshot(1)
    applying(0, 1, torch.ones(3))
    assert torch.equal(plain, sliced)
    assert other.state[sliced]["step"] == 2


def test_without_a_snapshot() -> None:
    a = nn.Parameter(torch.zeros(1))
    applying = SliceUpdater(torch.optim.SGD([a], lr=1.0), {7: [a]})
    with pytest.raises(RuntimeError, match=r"item 7 .* clock 1, .* call snapshot\(1\)"):
        applying(7, 1, torch.ones(1))


def test_rows_that_are_not_the_optimizers() -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="the SGD does not have the rows of item 1"):
        SliceUpdater(torch.optim.SGD([a], lr=1.0), {0: [a], 1: [b]})


def test_autograd_notices_an_update_of_rows_in_use() -> None:
    p = nn.Parameter(torch.ones(4, 2))
    rows = nn.Parameter(p.detach()[1:3], requires_grad=False)
    applying = SliceUpdater(torch.optim.SGD([rows], lr=1.0), {0: [rows]})
    applying.snapshot(1)
    loss = (p * p).sum()
    applying(0, 1, torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_elementwise_ones_need_no_barrier(name: str) -> None:
    assert why_barrier(OPTIMIZERS[name]([nn.Parameter(torch.zeros(2, 2))])) is None


class Lamb(torch.optim.SGD):
    pass


class Own(torch.optim.Adam):
    pass


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS cannot update slices: it calls a closure"),
        (lambda p: torch.optim.SparseAdam(p), "sparse"),
        (lambda p: torch.optim.Adafactor(p), "rows and columns"),
        (lambda p: torch.optim.Muon(p), "orthogonal"),
        (lambda p: Lamb(p, lr=1.0), "Lamb cannot update slices: it needs the norm"),
        (lambda p: Own(p), "Own cannot update slices: it is not known"),
    ],
)
def test_others_say_why(make: Make, why: str) -> None:
    optimizer = make([nn.Parameter(torch.zeros(2, 2))])
    reason = why_barrier(optimizer)
    assert reason is not None
    assert why in reason
    assert reason.endswith("update whole parameters after a barrier.")


def test_hooks_of_the_step_need_all_parameters() -> None:
    a = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([a], lr=1.0)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(ValueError, match="hooks of its step"):
        SliceUpdater(optimizer, {0: [a]})
