"""Tables of partitions of a model's filters, and hypergraphs for other partitioners."""

from __future__ import annotations

import pytest

from raddle.api.loading import capture_model
from raddle.api.partitioning import (
    GRAINS,
    METHODS,
    Partitioner,
    build_partitioner,
    check_export,
    check_methods,
    hypergraph,
    partition_table,
)
from raddle.errors import InputError


@pytest.fixture(scope="module")
def lenet() -> Partitioner:
    return build_partitioner(capture_model("lenet-tiny", 4), "flops")


def test_a_row_a_method_and_number_of_parts(lenet: Partitioner) -> None:
    steps: list[object] = []
    rows = partition_table(
        lenet,
        ["layerwise", "filter-horizontal"],
        [2, 3],
        on_progress=lambda step: steps.append(step["step"]),
    )
    cases = [("layerwise", 2), ("layerwise", 3), ("filter-horizontal", 2), ("filter-horizontal", 3)]
    assert [(row["method"], row["parts"]) for row in rows] == cases
    assert steps == [f"{method} in {parts}" for method, parts in cases]
    total = sum(lenet.model.work * [layer.units for layer in lenet.network.layers])
    assert all(row["work_avg"] * row["parts"] == pytest.approx(total) for row in rows)


def test_one_of_several_may_fail_and_one_alone_may_not(lenet: Partitioner) -> None:
    _, failed = partition_table(lenet, ["layerwise"], [1, 0])
    assert failed["error"] == "0 parts cannot be made: ask for at least one."
    with pytest.raises(InputError, match="0 parts cannot be made"):
        partition_table(lenet, ["layerwise"], [0])


def test_time_is_that_of_a_cluster_s_device(lenet: Partitioner) -> None:
    graph = lenet.graph
    one, other = (build_partitioner(graph, "time", cluster=name) for name in ("p100:1x1", "h100:1"))
    assert (one.model.work != other.model.work).any()
    assert (
        build_partitioner(graph, "flops", cluster="nowhere").model.work == lenet.model.work
    ).all()


def test_a_fine_hypergraph_has_more_vertices(lenet: Partitioner) -> None:
    coarse, fine = (hypergraph(lenet, grain) for grain in GRAINS)
    assert len(coarse.weight) == sum(layer.units for layer in lenet.network.layers)
    assert len(fine.weight) > len(coarse.weight)


def test_names_are_checked() -> None:
    check_methods(METHODS)
    check_export("patoh", "fine")
    with pytest.raises(InputError, match="no method 'row': choose layerwise"):
        check_methods(["row"])
    with pytest.raises(InputError, match="no format 'metis': choose patoh or hmetis"):
        check_export("metis", "fine")
    with pytest.raises(InputError, match="the grain is 'big': choose coarse or fine"):
        check_export("patoh", "big")
