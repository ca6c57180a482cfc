"""The shortest step of a pipeline with a flush is that of the best of all pipelines of small graphs."""

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
        "state_factor": st.sampled_from([1.0, 2.0]),
    }
)


def estimated_step(
    costs: LayerCosts, device_chain: DeviceChain, partition: StepPartition, rules
) -> float:
    chain = [frozenset[int]()]
    for stage in partition.stages:
        chain.append(chain[-1] | set(stage.layers))
    rs = [len(stage.devices) for stage in partition.stages]
    recompute = [stage.recompute for stage in partition.stages]
    return reference.step(costs, device_chain, chain, rs, recompute, **rules)


@given(reference.layer_costs(2), reference.device_chains(2, 4), rules)
def test_no_pipeline_that_fits_has_a_shorter_step(costs, device_chain, rules) -> None:
    partition = partition_for_step(costs, device_chain, **rules)
    expected = reference.shortest_step(costs, device_chain, **rules)
    if not partition:
        assert expected == math.inf
        return
    assert partition.exact
    assert partition.seconds == pytest.approx(expected, rel=1e-11)
    assert estimated_step(costs, device_chain, partition, rules) == pytest.approx(
        expected, rel=1e-11
    )
    assert partition_for_step(costs, device_chain, **rules) == partition


@given(reference.layer_costs(2, 8), reference.device_chains(2, 6), rules)
def test_stages_are_convex_and_take_devices_in_order(costs, device_chain, rules) -> None:
    partition = partition_for_step(costs, device_chain, **rules)
    if partition:
        layers_in_order = [v for stage in partition.stages for v in stage.layers]
        before = reference.reads(costs.successors)
        assert sorted(layers_in_order) == list(range(len(costs.saved)))
        assert all(before[v] <= set(layers_in_order[:x]) for x, v in enumerate(layers_in_order))
        devices = [d for stage in partition.stages for d in stage.devices]
        assert devices == list(range(len(devices)))
        for stage in partition.stages:
            assert len({device_chain.kinds[d] for d in stage.devices}) == 1
            assert stage.memory <= min(device_chain.capacity[d] for d in stage.devices)


@given(
    reference.layer_costs(1, 8),
    reference.device_chains(1, 4),
    rules,
    st.sampled_from([1e2, 1e3, 1e4]),
)
def test_fewer_ideals_are_no_better_and_it_says_so(
    costs, device_chain, rules, max_operations
) -> None:
    all_of_them = partition_for_step(costs, device_chain, **rules)
    some = partition_for_step(costs, device_chain, **rules, max_operations=max_operations)
    one_order = partition_for_step(costs, device_chain, **rules, max_ideals=1)
    for partition in filter(None, (some, one_order)):
        assert all_of_them
        assert partition.seconds >= all_of_them.seconds * (1 - 1e-11)
        assert estimated_step(costs, device_chain, partition, rules) == pytest.approx(
            partition.seconds, rel=1e-11
        )
        if partition.exact:
            assert partition.seconds == pytest.approx(all_of_them.seconds, rel=1e-11)


def chain_of(layers: int, **columns: float) -> LayerCosts:
    row = {name: (float(x),) * layers for name, x in columns.items()}
    readers = (*((v + 1,) for v in range(layers - 1)), ())
    return LayerCosts(
        (row["forward"],),
        (row["backward"],),
        row["activation"],
        row["saved"],
        row["parameters"],
        readers,
    )


def test_equal_layers_are_shared_out() -> None:
    """Eight layers of 1 + 2 seconds, too large to replicate: two per device, (4 - 1 + 4) · 6 seconds."""
    costs = chain_of(8, forward=1, backward=2, activation=0, saved=1, parameters=1000)
    partition = partition_for_step(
        costs, DeviceChain.uniform(4, bandwidth=1.0), microbatches=4, state_factor=1.0
    )
    assert partition
    assert [stage.layers for stage in partition.stages] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert partition.seconds == 42
    assert [stage.memory for stage in partition.stages] == [2008, 2006, 2004, 2002]


def test_first_stages_recompute_where_memory_is_short() -> None:
    """Stage s saves activations of 2 (4 - s) layers; if it recomputes, its inputs and those of 2 layers."""
    costs = chain_of(8, forward=1, backward=2, activation=0.5, saved=1, parameters=0)
    device_chain = DeviceChain.uniform(4, bandwidth=1e9, capacity=5.0)
    partition = partition_for_step(costs, device_chain, microbatches=4, max_replicas=1)
    assert partition
    assert partition.stages[0].recompute
    assert not partition.stages[-1].recompute
    assert all(stage.memory <= 5 for stage in partition.stages)
    never = partition_for_step(
        costs, device_chain, microbatches=4, max_replicas=1, recompute=(False,)
    )
    assert never is None or never.seconds > partition.seconds
    always = partition_for_step(
        costs, device_chain, microbatches=4, max_replicas=1, recompute=(True,)
    )
    assert always
    assert all(stage.recompute for stage in always.stages)


def test_gpipe_saves_every_microbatch() -> None:
    costs = chain_of(4, forward=1, backward=2, activation=0, saved=1, parameters=0)
    device_chain = DeviceChain.uniform(2, bandwidth=1.0, capacity=7.0)
    recomputes = {}
    for schedule in ("1f1b", "gpipe"):
        partition = partition_for_step(
            costs, device_chain, microbatches=4, schedule=schedule, max_replicas=1
        )
        assert partition
        recomputes[schedule] = [stage.recompute for stage in partition.stages]
    assert recomputes == {"1f1b": [False, False], "gpipe": [True, True]}


def test_a_fast_device_has_more_layers() -> None:
    seconds = (1.0,) * 9, (2.0,) * 9
    one_kind = chain_of(9, forward=1, backward=1, activation=0, saved=0, parameters=0)
    costs = LayerCosts(
        seconds,
        seconds,
        one_kind.activation,
        one_kind.saved,
        one_kind.parameters,
        one_kind.successors,
    )
    device_chain = DeviceChain((0, 1), (math.inf,) * 2, (1.0,), (0.0,))
    partition = partition_for_step(costs, device_chain, microbatches=100)
    assert partition
    assert [len(stage.layers) for stage in partition.stages] == [6, 3]


def test_a_slow_link_is_not_cut() -> None:
    costs = chain_of(4, forward=1, backward=1, activation=1, saved=0, parameters=0)
    stages = []
    for bandwidth in (1e3, 1e-3):
        device_chain = DeviceChain.uniform(2, bandwidth=bandwidth)
        partition = partition_for_step(costs, device_chain, microbatches=2, max_replicas=1)
        stages.append(partition and len(partition.stages))
    assert stages == [2, 1]


def test_nothing_fits() -> None:
    costs = chain_of(2, forward=1, backward=1, activation=1, saved=1, parameters=8)
    assert (
        partition_for_step(
            costs, DeviceChain.uniform(2, bandwidth=1.0, capacity=7.0), microbatches=2
        )
        is None
    )
    with pytest.raises(ValueError, match="at least one micro-batch, got 0"):
        partition_for_step(costs, DeviceChain.uniform(2, bandwidth=1.0), microbatches=0)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=30), st.integers(0, 5))
def test_caps_find_the_least_total(solutions, repeats) -> None:
    def solve(cap: float) -> CappedOptimum[None] | None:
        within = [(total, largest) for largest, total in solutions if largest <= cap]
        return CappedOptimum(min(within)[1], min(within)[0], None) if within else None

    optimum = least_total(solve, repeats, low=0.5, high=100.0)
    expected = min((repeats * largest + total for largest, total in solutions), default=None)
    assert (optimum and repeats * optimum.largest + optimum.sum) == expected
