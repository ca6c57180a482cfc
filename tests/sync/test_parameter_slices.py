"""Unit tests of slices, of the optimizer that updates them, and of buckets, in a single process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raddle.plans.sync import read_sync
from raddle.sync.gradient_buckets import Buckets, cut_buckets
from raddle.sync.parameter_slices import ParameterSlices
from raddle.sync.sliced_optimizer import SlicedOptimizer, absent_like, is_absent


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).view(6, 2))
        self.scale = nn.Parameter(torch.tensor(2.0))


def slices_of(model: Model, text: str = "p3:slice=4") -> ParameterSlices:
    parameters = [model.weight, model.scale]
    return ParameterSlices(["weight", "scale"], parameters, read_sync(text), 2, [1, 0])


def test_slices_cover_parameters_once() -> None:
    model = Model()
    slices = slices_of(model)
    # The scale, which is used first, is joined with the first rows of the weight: five elements.
    assert [i.name for i in slices.items] == ["weight[2:4]", "weight[4:6]", "scale and 1 more"]
    assert [i.priority for i in slices.items] == [1, 1, 0]
    assert [i.elements for i in slices.items] == [4, 4, 5]
    assert slices.item_numbers == {0: [0, 1, 2], 1: [2]}
    assert slices.slices_of_item == [[1], [2], [3, 0]]
    assert torch.equal(torch.cat([slices.rows(n) for n in (0, 1, 2)]), model.weight)
    slices.rows(1).zero_()
    assert model.weight[2:4].abs().sum() == 0  # they are the parameter's own memory
    assert slices.rows(3).shape == ()


def test_a_recorder_knows_items_by_name() -> None:
    noted: list[tuple[Any, ...]] = []
    slices = slices_of(Model())
    assert slices.record_by_item(None) is None
    record = slices.record_by_item(lambda *line: noted.append(line))
    assert record is not None
    record(0, "sum", 0.0, 1.0)
    assert noted == [("weight[2:4]", "sum", 0.0, 1.0)]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_slices_are_updated_as_the_whole_is(kind: Any) -> None:
    whole, cut = Model(), Model()
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    plain, optimizer = (kind(m.parameters(), lr=0.1, **options) for m in (whole, cut))
    slices = slices_of(cut)
    updates = SlicedOptimizer(slices, optimizer, {n: slices.item_rows(n) for n in range(3)})
    gathering = slices.gathering()
    for clock in range(1, 4):
        gradients = [torch.full((6, 2), 0.5 * clock), torch.tensor(float(clock))]
        plain.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.1 / clock
        updates.snapshot_settings(clock)
        for index, p in enumerate(whole.parameters()):
            p.grad = gradients[index]
            for number in slices.slices_of[index]:
                rows = slices.select_rows(gradients[index], number)
                if (complete := gathering.add(number, rows)) is not None:
                    updates(complete[0], clock, complete[1])
        plain.step()
        for a, b in zip(whole.parameters(), cut.parameters(), strict=True):
            assert torch.equal(a, b)
    optimizer.state.update(updates.join_states(updates.states()))
    ours, theirs = optimizer.state_dict()["state"], plain.state_dict()["state"]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    updates.scatter_state()
    assert not optimizer.state
    assert updates.states().keys() == {0, 1, 2, 3}


def test_what_nobody_has_handed_in_is_left_as_it_is() -> None:
    model = Model()
    weight, scale = model.weight.detach().clone(), model.scale.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    slices = slices_of(model)
    updates = SlicedOptimizer(slices, optimizer, {n: slices.item_rows(n) for n in (0, 1, 2)})
    updates.snapshot_settings(1)
    nothing = absent_like(slices.rows(0))
    assert is_absent(nothing + nothing)
    assert not is_absent(nothing + torch.zeros(2, 2))
    updates(0, 1, nothing + nothing)
    updates(1, 1, torch.zeros(2, 2))
    # Of the bundle of the scale and the first rows, only the scale has a gradient.
    updates(2, 1, torch.cat([torch.zeros(1), (nothing + nothing).view(-1)]))
    assert torch.equal(model.weight[:4], weight[:4])
    assert not torch.equal(model.weight[4:], weight[4:])
    assert not torch.equal(model.scale, scale)


def test_a_setting_that_changes_in_a_step_is_named() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    updates = SlicedOptimizer(slices_of(model), optimizer, {})
    updates.snapshot_settings(1)
    assert updates.changed_setting() == ""
    optimizer.param_groups[0]["lr"] = 0.2
    assert updates.changed_setting() == "lr"


def test_buckets_are_cut_by_bytes_and_type() -> None:
    parameters = [torch.zeros(n, dtype=d) for n, d in (
        (10, torch.float32), (10, torch.float64), (10, torch.float32), (30, torch.float32),
    )]  # fmt: skip
    names = list("abcd")
    buckets = cut_buckets([2, 0], names, parameters, nbytes=100, compressed_dtype=None)
    assert [list(b.members) for b in buckets] == [[2, 0], [1], [3]]
    assert buckets[0].name == "the gradients of 'c' to 'a'"
    narrow = cut_buckets([0, 1], names, parameters, nbytes=1000, compressed_dtype=torch.bfloat16)
    assert [list(b.members) for b in narrow] == [[0, 1, 2, 3]]
    assert narrow[0].flat.dtype == torch.bfloat16


class Alone:
    """A transport of one of two ranks. The other rank contributes the same values to each sum."""

    size = 2

    def __init__(self) -> None:
        self.names: list[str] = []

    def all_reduce(self, ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = "") -> Any:
        self.names.append(what)
        buffer.mul_(2)
        return self

    def wait(self) -> None:
        pass


class Patient:
    @contextlib.contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        yield


def test_averages_are_put_into_gradients_and_what_nobody_has_is_left() -> None:
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    transport, late = Alone(), Patient()
    buckets = Buckets(
        ["a", "b", "c"], parameters, transport, lambda mine: [mine], late, nbytes=8,  # type: ignore[arg-type]
    )  # fmt: skip
    for step in range(2):
        for index in (2, 0):
            parameters[index].grad = torch.full((2,), 3.0 + step)
            buckets.submit(index)
        buckets.finish([2, 0])
        assert [p.grad is None for p in parameters] == [False, True, False]
        assert parameters[0].grad.tolist() == [3.0 + step] * 2  # type: ignore[union-attr]
    assert transport.names[:3] == [f"the gradients of '{name}'" for name in "cab"]
    assert buckets.sum_count == 6
