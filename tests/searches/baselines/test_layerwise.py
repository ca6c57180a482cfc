"""Layer-wise model parallelism: the largest load of a run is the smallest possible."""

from __future__ import annotations

from itertools import combinations_with_replacement

from hypothesis import given
from hypothesis import strategies as st

from raddle import zoo
from raddle.clusters import Cluster
from raddle.graph.capture import capture
from raddle.searches.baselines.layerwise import balanced_runs, layerwise


def load(loads: list[list[int]], cut: list[tuple[int, int]]) -> int:
    return max(sum(row[a:b]) for row, (a, b) in zip(loads, cut, strict=True))


@given(st.data(), st.integers(1, 4), st.integers(1, 7))
def test_no_other_runs_have_a_smaller_load(data: st.DataObject, devices: int, layers: int) -> None:
    row = st.lists(st.integers(0, 20), min_size=layers, max_size=layers)
    loads = data.draw(st.lists(row, min_size=devices, max_size=devices))
    runs = balanced_runs(loads)
    assert [a for a, _ in runs] == [0, *(b for _, b in runs[:-1])]
    assert runs[-1][1] == layers
    all_runs = (
        list(zip((0, *points), (*points, layers), strict=True))
        for points in combinations_with_replacement(range(layers + 1), devices - 1)
    )
    assert load(loads, runs) == min(load(loads, cut) for cut in all_runs)


def mixed(slow: int, fast: int) -> Cluster:
    def kind(flops: float) -> dict[str, object]:
        return {"flops": {"float32": flops}, "memory": "16 GiB", "bandwidth": "700 GB/s"}

    return Cluster.from_dict(
        {
            "name": "mixed",
            "devices": {"slow": kind(1e12), "fast": kind(4e12)},
            "nodes": [
                {
                    "devices": ["slow"] * slow + ["fast"] * fast,
                    "link": {"bandwidth": "10 GB/s", "latency": "5 us"},
                }
            ],
        }
    )


def test_faster_devices_get_more() -> None:
    w = zoo.load("vgg16", batch=32)
    graph = capture(w.model, w.batch, w.loss)
    tiles = layerwise(graph, mixed(1, 1))
    convolutions = [op for op in graph.ops if op.kind == "conv2d"]
    slow = sum(tiles[op.name].devices == (0,) for op in convolutions)
    assert 1 <= slow < len(convolutions) / 2


def test_layers_of_a_recurrent_network_may_be_cut_apart_and_composites_not() -> None:
    w = zoo.load("rnntc-tiny")
    graph = capture(w.model, w.batch, w.loss)
    tiles = layerwise(graph, mixed(0, 3))
    devices_of = {op.name: tiles[op.name].devices for op in graph.ops}
    assert len({devices_of[op.name] for op in graph.ops if op.composite_kind == "lstm"}) > 1
    for layer in range(4):
        devices = {devices_of[op.name] for op in graph.ops if op.name.startswith(f"lstm.l{layer}.")}
        assert len(devices) == 1
