"""The shortest period is that of the best of all pipelines of small graphs, and never above PipeDream's."""

from __future__ import annotations

from itertools import pairwise

import pipeline_reference as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.searches.pipeline.layers import Layers
from raddle.searches.pipeline.pipedream_profiles import read_profile
from raddle.searches.pipeline.shortest_period import PeriodPartition, partition_for_period

bandwidths = st.sampled_from([0.5, 1.0, 3.0, 50.0])
countings = st.sampled_from(["pipedream", "crossing"])


def chain(partition: PeriodPartition) -> list[frozenset[int]]:
    result = [frozenset[int]()]
    for stage in partition.stages:
        result.append(result[-1] | set(stage.layers))
    return result


@given(reference.layered(), st.integers(1, 4), bandwidths, countings)
def test_no_pipeline_has_a_shorter_period(layers, devices, bandwidth, counting) -> None:
    partition = partition_for_period(layers, devices, bandwidth=bandwidth, counting=counting)
    expected = reference.shortest_period(layers, devices, bandwidth, counting)
    assert partition.exact
    assert partition.period == pytest.approx(expected, rel=1e-11)
    rs = [stage.replicas for stage in partition.stages]
    recomputed = reference.period(layers, chain(partition), rs, bandwidth, counting)
    assert recomputed == pytest.approx(expected, rel=1e-11)


@given(reference.layered(9), st.integers(1, 6), bandwidths)
def test_stages_are_convex_and_have_every_layer_once(layers, devices, bandwidth) -> None:
    partition = partition_for_period(layers, devices, bandwidth=bandwidth)
    all_ideals = set(reference.ideals(layers.successors))
    assert all(a in all_ideals for a in chain(partition))
    layers_in_order = [v for stage in partition.stages for v in stage.layers]
    assert sorted(layers_in_order) == list(range(len(layers.forward)))
    before = reference.reads(layers.successors)
    assert all(before[v] <= set(layers_in_order[:x]) for x, v in enumerate(layers_in_order))
    assert sum(stage.replicas for stage in partition.stages) <= devices


@given(reference.layered(8), bandwidths, countings)
def test_more_devices_are_never_worse(layers, bandwidth, counting) -> None:
    periods = [
        partition_for_period(layers, devices, bandwidth=bandwidth, counting=counting).period
        for devices in range(1, 7)
    ]
    assert all(b <= a * (1 + 1e-11) for a, b in pairwise(periods))


@given(reference.layered(8), st.integers(1, 5), bandwidths)
def test_never_worse_than_pipedream(layers, devices, bandwidth) -> None:
    first = next(v for v, read in enumerate(reference.reads(layers.successors)) if not read)
    others = {v for v, read in enumerate(reference.reads(layers.successors)) if not read} - {first}
    graph = list(layers.successors)
    graph[first] = (
        *graph[first],
        *others - set(graph[first]),
    )  # all layers can be reached from the first one: PipeDream's optimizer ignores others
    layers = Layers(
        layers.forward, layers.backward, layers.activation, layers.parameters, tuple(graph)
    )
    ours = partition_for_period(layers, devices, bandwidth=bandwidth).period
    assert ours <= reference.pipedream(layers, devices, bandwidth) * (1 + 1e-11)
    fewer = min(reference.pipedream(layers, k, bandwidth) for k in range(1, devices + 1))
    assert ours == pytest.approx(fewer, rel=1e-11)


@given(reference.layered(8), st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_same_again_and_as_short_under_other_numbers(layers, devices, random) -> None:
    partition = partition_for_period(layers, devices, bandwidth=2.0)
    assert partition_for_period(layers, devices, bandwidth=2.0) == partition
    old = list(range(len(layers.forward)))  # by new number of a layer, its old number
    random.shuffle(old)
    columns = (layers.forward, layers.backward, layers.activation, layers.parameters)
    renamed = Layers(
        *(tuple(column[v] for v in old) for column in columns),
        tuple(tuple(old.index(w) for w in layers.successors[v]) for v in old),
    )
    again = partition_for_period(renamed, devices, bandwidth=2.0)
    assert again.period == pytest.approx(partition.period, rel=1e-11)


def test_beyond_the_limit_one_order_is_cut_and_it_says_so() -> None:
    """Independent layers whose parameters are too large to replicate: the best stages are 2 + 2 | 3 + 1."""
    layers = Layers((2, 3, 2, 1), (0,) * 4, (0,) * 4, (99,) * 4, ((),) * 4)
    partitions = [
        partition_for_period(layers, 2, bandwidth=1.0, max_ideals=limit) for limit in (16, 15)
    ]
    assert [(x.period, x.exact, x.ideals) for x in partitions] == [(4, True, 16), (5, False, 5)]
    assert sorted(stage.layers for stage in partitions[0].stages) == [(0, 2), (1, 3)]


def test_layers_that_take_no_time() -> None:
    nothing = Layers((0, 0), (0, 0), (0, 0), (0, 0), ((1,), ()))
    assert partition_for_period(nothing, 3, bandwidth=1.0).period == 0


def test_devices_and_bandwidth_are_needed() -> None:
    with pytest.raises(ValueError, match=r"0 devices, 1\.0 bytes"):
        partition_for_period(Layers((1,), (1,), (1,), (1,), ((),)), 0, bandwidth=1.0)


def test_a_profile_is_read_without_inputs_and_what_nobody_reads() -> None:
    rows = [  # forward and backward in ms, output and parameters in bytes
        ("node1", "Input0", 9, 9, "9.0", 9),
        ("node3", "LSTM(8, 8)", 2, 4, "[8.0; 1.0]", 64),
        ("node2", "Linear", 1, 0.5, "16.000", 8),
        ("node4", "__getitem__(0)", 0, 0, "8.0", 0),
        ("node5", "__getitem__(1)", 0, 0, "1.0", 0),
        ("node6", "Add", 0.1, 0, "8.0", 0),
    ]
    lines = [
        f"{name} -- {what} -- forward_compute_time={forward:.3f}, backward_compute_time={backward:.3f}, "
        f"activation_size={activation}, parameter_size={parameters:.3f}"
        for name, what, forward, backward, activation, parameters in rows
    ]
    lines += [f"\tnode{u} -- node{v}" for u, v in ((1, 2), (2, 3), (3, 4), (3, 5), (4, 6))]
    assert read_profile("\n".join(lines)) == Layers(
        forward=(0.002, 0.001, 0.0, 0.0001),
        backward=(0.004, 0.0005, 0.0, 0.0),
        activation=(9.0, 16.0, 8.0, 8.0),
        parameters=(64.0, 8.0, 0.0, 0.0),
        successors=((2,), (0,), (3,), ()),
    )


def profile(name: str) -> Layers:
    if not (path := reference.PROFILES / f"{name}.txt").exists():
        pytest.skip("needs PipeDream's profiles in ../shared/data/pipedream")
    return read_profile(path.read_text())


@pytest.mark.parametrize(
    ("devices", "speedup", "replicas"), [(4, 3.27, [3, 1]), (16, 11.90, [13, 2, 1])]
)
def test_vgg16_as_pipedream_splits_it(devices, speedup, replicas) -> None:
    layers = profile("vgg16")
    partition = partition_for_period(layers, devices, bandwidth=1e9)
    one_device_seconds = sum(layers.forward) + sum(layers.backward)
    assert round(one_device_seconds / partition.period, 2) >= speedup
    assert [stage.replicas for stage in partition.stages] == replicas


@pytest.mark.parametrize("name", ["alexnet", "gnmt", "vgg16"])
def test_profiles_as_pipedream_splits_them(name) -> None:
    layers = profile(name)
    theirs = reference.pipedream(layers, 4, 1e9)
    assert partition_for_period(layers, 4, bandwidth=1e9).period <= theirs * (1 + 1e-11)
