"""The shortest flushed step, against all pipelines of small graphs."""

from __future__ import annotations

import math

import pipeline_reference as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.searches.pipeline.cap_search import CappedOptimum, least_total
from raddle.searches.pipeline.layers import DeviceChain, LayerCosts
from raddle.searches.pipeline.shortest_step import StepPartition, partition_for_step

rules = st.fixed_dictionaries(
    {
        "microbatches": st.integers(1, 5),
        "schedule": st.sampled_from(["1f1b", "gpipe"]),
        "static": st.sampled_from([1.0, 2.0]),
    }
)


def estimated(work: LayerCosts, line: DeviceChain, found: StepPartition, rules) -> float:
    chain = [frozenset[int]()]
    for stage in found.stages:
        chain.append(chain[-1] | set(stage.layers))
    rs = [len(stage.devices) for stage in found.stages]
    again = [stage.recompute for stage in found.stages]
    return reference.step(work, line, chain, rs, again, **rules)


@given(reference.works(2), reference.lines(2, 4), rules)
def test_no_pipeline_that_fits_has_a_shorter_step(work, line, rules) -> None:
    found = partition_for_step(work, line, **rules)
    expected = reference.shortest_step(work, line, **rules)
    if not found:
        assert expected == math.inf
        return
    assert found.exact
    assert found.seconds == pytest.approx(expected, rel=1e-11)
    assert estimated(work, line, found, rules) == pytest.approx(expected, rel=1e-11)
    assert partition_for_step(work, line, **rules) == found


@given(reference.works(2, 8), reference.lines(2, 6), rules)
def test_stages_are_convex_and_take_devices_in_order(work, line, rules) -> None:
    found = partition_for_step(work, line, **rules)
    if found:
        given_out = [v for stage in found.stages for v in stage.layers]
        before = reference.reads(work.successors)
        assert sorted(given_out) == list(range(len(work.kept)))
        assert all(before[v] <= set(given_out[:x]) for x, v in enumerate(given_out))
        devices = [d for stage in found.stages for d in stage.devices]
        assert devices == list(range(len(devices)))
        for stage in found.stages:
            assert len({line.kinds[d] for d in stage.devices}) == 1
            assert stage.memory <= min(line.capacity[d] for d in stage.devices)


@given(reference.works(1, 8), reference.lines(1, 4), rules, st.sampled_from([1e2, 1e3, 1e4]))
def test_fewer_ideals_are_no_better_and_it_says_so(work, line, rules, operations) -> None:
    all_of_them = partition_for_step(work, line, **rules)
    some = partition_for_step(work, line, **rules, max_operations=operations)
    one_order = partition_for_step(work, line, **rules, max_ideals=1)
    for found in filter(None, (some, one_order)):
        assert all_of_them
        assert found.seconds >= all_of_them.seconds * (1 - 1e-11)
        assert estimated(work, line, found, rules) == pytest.approx(found.seconds, rel=1e-11)
        if found.exact:
            assert found.seconds == pytest.approx(all_of_them.seconds, rel=1e-11)


def chain_of(layers: int, **columns: float) -> LayerCosts:
    row = {name: (float(x),) * layers for name, x in columns.items()}
    readers = (*((v + 1,) for v in range(layers - 1)), ())
    return LayerCosts(
        (row["forward"],),
        (row["backward"],),
        row["activation"],
        row["kept"],
        row["parameters"],
        readers,
    )


def test_equal_layers_are_shared_out() -> None:
    """Eight layers of 1 + 2 seconds, too dear to replicate: two a device, (4 - 1 + 4) · 6 seconds."""
    work = chain_of(8, forward=1, backward=2, activation=0, kept=1, parameters=1000)
    found = partition_for_step(
        work, DeviceChain.uniform(4, bandwidth=1.0), microbatches=4, state_factor=1.0
    )
    assert found
    assert [stage.layers for stage in found.stages] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert found.seconds == 42
    assert [stage.memory for stage in found.stages] == [2008, 2006, 2004, 2002]


def test_first_stages_recompute_where_memory_is_short() -> None:
    """Stage s keeps 2 (4 - s) layers' worth of values, or what it was given and 2."""
    work = chain_of(8, forward=1, backward=2, activation=0.5, kept=1, parameters=0)
    line = DeviceChain.uniform(4, bandwidth=1e9, capacity=5.0)
    found = partition_for_step(work, line, microbatches=4, max_replicas=1)
    assert found
    assert found.stages[0].recompute
    assert not found.stages[-1].recompute
    assert all(stage.memory <= 5 for stage in found.stages)
    never = partition_for_step(work, line, microbatches=4, max_replicas=1, recompute=(False,))
    assert never is None or never.seconds > found.seconds
    always = partition_for_step(work, line, microbatches=4, max_replicas=1, recompute=(True,))
    assert always
    assert all(stage.recompute for stage in always.stages)


def test_gpipe_keeps_every_microbatch() -> None:
    work = chain_of(4, forward=1, backward=2, activation=0, kept=1, parameters=0)
    line = DeviceChain.uniform(2, bandwidth=1.0, capacity=7.0)
    kept = {}
    for schedule in ("1f1b", "gpipe"):
        found = partition_for_step(work, line, microbatches=4, schedule=schedule, max_replicas=1)
        assert found
        kept[schedule] = [stage.recompute for stage in found.stages]
    assert kept == {"1f1b": [False, False], "gpipe": [True, True]}


def test_a_fast_device_has_more_layers() -> None:
    seconds = (1.0,) * 9, (2.0,) * 9
    plain = chain_of(9, forward=1, backward=1, activation=0, kept=0, parameters=0)
    work = LayerCosts(
        seconds, seconds, plain.activation, plain.saved, plain.parameters, plain.successors
    )
    line = DeviceChain((0, 1), (math.inf,) * 2, (1.0,), (0.0,))
    found = partition_for_step(work, line, microbatches=100)
    assert found
    assert [len(stage.layers) for stage in found.stages] == [6, 3]


def test_a_slow_link_is_not_cut() -> None:
    work = chain_of(4, forward=1, backward=1, activation=1, kept=0, parameters=0)
    stages = []
    for bandwidth in (1e3, 1e-3):
        line = DeviceChain.uniform(2, bandwidth=bandwidth)
        found = partition_for_step(work, line, microbatches=2, max_replicas=1)
        stages.append(found and len(found.stages))
    assert stages == [2, 1]


def test_nothing_fits() -> None:
    work = chain_of(2, forward=1, backward=1, activation=1, kept=1, parameters=8)
    assert (
        partition_for_step(
            work, DeviceChain.uniform(2, bandwidth=1.0, capacity=7.0), microbatches=2
        )
        is None
    )
    with pytest.raises(ValueError, match="at least one micro-batch, got 0"):
        partition_for_step(work, DeviceChain.uniform(2, bandwidth=1.0), microbatches=0)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=30), st.integers(0, 5))
def test_caps_find_the_least_total(solutions, repeats) -> None:
    def answer(cap: float) -> CappedOptimum[None] | None:
        within = [(total, largest) for largest, total in solutions if largest <= cap]
        return CappedOptimum(min(within)[1], min(within)[0], None) if within else None

    found = least_total(answer, repeats, low=0.5, high=100.0)
    expected = min((repeats * largest + total for largest, total in solutions), default=None)
    assert (found and repeats * found.largest + found.sum) == expected
