"""Tests of RankSlices: where slices are on a rank, without a synchroniser."""

from __future__ import annotations

import warnings

import pytest
import torch

from raddle.graph.box import Box
from raddle.plans.sync import read_sync
from raddle.program.parameter_region import ParameterRegion
from raddle.runtime.actions import ParameterSlice
from raddle.runtime.parameter_sync import ParameterSync
from raddle.runtime.rank_slices import RankSlices
from raddle.transport.thread_transport import Hub

CPU = torch.device("cpu")

ALONE = [(0,), (1,)]  # bundles of one slice


def make_slices(*, servers: tuple[int, ...] = (0, 1)) -> list[ParameterSlice]:
    """Two slices of a parameter with four rows in slot 0."""
    slices = []
    for index, server in enumerate(servers):
        region = ParameterRegion(Box((2 * index, 0), (2 * index + 2, 3)), (0, 1), server)
        rows = slice(2 * index, 2 * index + 2)
        slices.append(ParameterSlice("w", region, torch.float32, 0, 0, rows))
    return slices


def slots() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(4, 3)), torch.nn.Parameter(torch.ones(2, 3))]


def test_a_rank_gives_all_and_updates_its_own() -> None:
    parameters = slots()
    rank_slices = RankSlices(make_slices(), ALONE, parameters, read_sync("ps:sliced"), 1)
    assert rank_slices.slices_by_slot == {0: [0, 1]}
    assert list(rank_slices.updated) == [1]
    with torch.no_grad():
        rank_slices.updated[1].fill_(7)
    assert parameters[0][:, 0].tolist() == [0, 0, 7, 7]  # a view of the parameter
    assert rank_slices.source_of(1).box == Box((2, 0), (4, 3))
    assert [item.name for item in rank_slices.items()] == ["w[0:2]", "w[2:4]"]
    assert all(
        into is not None and copied is None for into, copied in rank_slices.bindings().values()
    )


def test_without_servers_every_holder_updates_all() -> None:
    rank_slices = RankSlices(
        make_slices(servers=(-1, -1)), ALONE, slots(), read_sync("p3:collective"), 1
    )
    assert list(rank_slices.updated) == [0, 1]


def test_where_others_do_not_wait_a_copy_is_updated() -> None:
    parameters = slots()
    rank_slices = RankSlices(make_slices(), ALONE, parameters, read_sync("ps:async"), 1)
    with torch.no_grad():
        rank_slices.updated[1].fill_(7)
    assert parameters[0].sum() == 0
    rank_slices.refresh_server_copies()
    assert rank_slices.updated[1].sum() == 0
    (into, copied) = rank_slices.bindings()[1]
    assert into is not None
    assert copied is not None
    assert into[0].data_ptr() != copied[0].data_ptr()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_schedulers_see_that_steps_are_taken(make: type[torch.optim.Optimizer]) -> None:
    """The optimizer's own `step` is called, but does not change parameters."""
    parameters = [torch.nn.Parameter(torch.zeros(2, 3))]
    region = ParameterRegion(Box((0, 0), (2, 3)), (0,), 0)
    slices = [ParameterSlice("w", region, torch.float32, 0, 0, slice(0, 2))]
    parameter_sync = ParameterSync(
        slices, [(0,)], parameters, Hub(1).transport(0), read_sync("ps"), CPU
    )
    optimizer = make([p for _, p in parameter_sync.updated], lr=1.0)  # type: ignore[call-arg]
    parameter_sync.start(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    parameter_sync.begin_step()
    assert parameters[0].sum() == 0
    parameter_sync.submit(0, torch.ones(2, 3))
    parameter_sync.finish_step(lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()
    torch.testing.assert_close(parameters[0].detach(), torch.full((2, 3), -1.0))
    parameter_sync.close()
