"""OptCNN done again: rank correlations, its own cost, what is said of several methods."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import simulate_methods, ten_plans
from experiments.cost_models.plans import PlanGroup
from experiments.optcnn import PARTS, additive
from experiments.optcnn.calibrated import MEASURED, Calibrated, compare
from experiments.optcnn.plans import draw, printed_split, split
from experiments.optcnn.search import log10_plan_count
from experiments.optcnn.throughput import ModelThroughput, byte_ratios, scaling_factor
from experiments.rank_correlation import kendall, ranks, spearman
from experiments.simulate_methods import (
    WeakScalingCase,
    fastest,
    gain_over_best,
    simulate_method,
    throughput_chart,
)
from experiments.timing import StepTimes
from raddle.api.calibrating import Measurement, read_measurements, with_values
from raddle.api.loading import capture_model
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.searches.optcnn.method import choose_configurations
from raddle.searches.optcnn.tables import Tables, build_tables

figures = st.lists(st.integers(0, 5), min_size=2, max_size=8)


# -- ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "rho", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0, 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0, -1.0),
        # 1 - 6 Σd² / n(n² - 1), d = 0 1 1 0 0; one pair of ten is the other way round
        ([1, 2, 3, 4, 5], [1, 3, 2, 4, 5], 1 - 6 * 2 / (5 * 24), 0.8),
        # ties, by hand: x = -1.5 0 0 1.5, y = -1.5 -0.5 0.5 1.5; 5 pairs agree, of 5 and of 6
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5), 5 / math.sqrt(5 * 6)),
    ],
)
def test_correlations_by_hand(a: list[float], b: list[float], rho: float, tau: float) -> None:
    assert spearman(a, b) == pytest.approx(rho)
    assert kendall(a, b) == pytest.approx(tau)


def test_ties_share_the_mean_of_their_places() -> None:
    assert ranks([3, 1, 3, 0]) == [3.5, 2.0, 3.5, 1.0]


@given(figures.flatmap(lambda a: st.tuples(st.just(a), st.permutations(a))))
def test_correlations_are_symmetric_bounded_and_turn_with_the_sign(
    both: tuple[list[int], list[int]],
) -> None:
    a, b = both
    for measure in (spearman, kendall):
        correlation = measure(a, b)
        if len(set(a)) == 1:
            assert math.isnan(correlation)
            continue
        assert -1 - 1e-12 <= correlation <= 1 + 1e-12
        assert correlation == pytest.approx(measure(b, a))
        assert correlation == pytest.approx(-measure(a, [-x for x in b]))
        assert correlation == pytest.approx(measure([x**3 for x in a], b)), "only the order counts"
        assert measure(a, a) == pytest.approx(1)


@given(st.integers(2, 7).flatmap(lambda n: st.permutations(range(n))))
def test_kendall_counts_the_swaps_of_a_sort(order: list[int]) -> None:
    left, swaps = list(order), 0
    for _ in order:
        for at in range(len(left) - 1):
            if left[at] > left[at + 1]:
                left[at : at + 2] = left[at + 1], left[at]
                swaps += 1
    pairs = len(order) * (len(order) - 1) / 2
    assert kendall(sorted(order), order) == pytest.approx(1 - 2 * swaps / pairs)


# -- OptCNN's cost ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lenet() -> Tables:
    return build_tables(capture_model("lenet-tiny", 8), cluster("p100:1x2"), paper=True)


def test_optimum_costs_what_it_adds_up_to_and_no_baseline_is_less(lenet: Tables) -> None:
    chosen, solution = choose_configurations(lenet)
    assert additive.additive_cost(lenet, chosen) == pytest.approx(solution.cost, rel=1e-5)
    for name, configurations in additive.baselines(lenet).items():
        assert additive.additive_cost(lenet, configurations) >= solution.cost * (1 - 1e-6), name


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_cost_is_the_sum_of_nodes_and_edges(lenet: Tables, data: Any) -> None:
    at = [
        data.draw(st.integers(0, len(configurations) - 1))
        for configurations in lenet.configurations
    ]
    chosen = [configurations[x] for configurations, x in zip(lenet.configurations, at, strict=True)]
    total = math.fsum(lenet.nodes[g][x] for g, x in enumerate(at))
    for source, target, cost in lenet.edges:
        total += float(cost[at[source]][at[target]])
    assert additive.additive_cost(lenet, chosen) == pytest.approx(total)


def test_baselines_split_one_letter(lenet: Tables) -> None:
    every = additive.baselines(lenet)
    for letter, name in (("n", "data"), ("c", "model")):
        for group, configuration in zip(lenet.groups, every[name], strict=True):
            assert set(additive.split_letters(group, configuration)) <= {letter}
    weird = [additive.split_letters(g, c) for g, c in zip(lenet.groups, every["owt"], strict=True)]
    assert {"n": 2} in weird
    assert {"c": 2} in weird


def test_configured_finds_parts_or_says_that_there_are_none(lenet: Tables) -> None:
    configurations = additive.configurations_with(lenet, lambda group: {"n": 2})
    assert configurations == additive.baselines(lenet)["data"]
    assert additive.configurations_with(lenet, lambda group: {"n": 3}) is None


def test_number_of_plans_is_the_product_of_configurations(lenet: Tables) -> None:
    product = math.prod(len(configurations) for configurations in lenet.configurations)
    assert log10_plan_count(lenet) == pytest.approx(math.log10(product))


# -- the printed plan ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("features.0", {"n": 4}), ("features.23", {"n": 4}), ("features.24", {"h": 2, "w": 2}),
        ("features.30", {"h": 2, "w": 2}), ("avgpool", {"h": 2, "w": 2}), ("classifier.0", {"c": 4}),
        ("classifier.3", {"c": 4}), ("classifier.6", {"c": 2}),
    ],
)  # fmt: skip
def test_printed_plan(name: str, parts: dict[str, int]) -> None:
    group: Any = SimpleNamespace(name=name)
    assert printed_split(group) == parts


def test_drawing_has_a_line_a_group_and_says_how_it_is_split(lenet: Tables) -> None:
    data, model = (additive.baselines(lenet)[m] for m in ("data", "model"))
    lines = draw(lenet.groups, [data, model, None])
    assert len(lines) == 1 + len(lenet.groups)
    first = lines[1].split()
    assert first[0] == lenet.groups[0].name
    assert lines[1].index("n=2  samples") < lines[1].index("c=2  channels")
    assert lines[1].endswith("–")
    assert split({}) == "one GPU"


# -- throughput ------------------------------------------------------------------------------------


def _step(rate: float, nbytes: int = 0) -> Any:
    return SimpleNamespace(seconds=1 / rate, samples_per_s=rate, comm_bytes=nbytes)


FOUND: Any = {
    ("data", 1): _step(10), ("data", 16): _step(100, 80), ("model", 16): None,
    ("owt", 16): _step(120, 40), ("optcnn", 1): _step(10), ("optcnn", 16): _step(150, 20),
}  # fmt: skip


def test_gains_are_over_the_fastest_other_that_fits() -> None:
    others = ("data", "model", "owt")
    winner = fastest(FOUND, others, 16)
    assert winner is not None
    assert winner[0] == "owt"
    assert gain_over_best(FOUND, "optcnn", others, 16) == pytest.approx(1.25)
    assert gain_over_best(FOUND, "auto", others, 16) is None
    assert fastest(FOUND, ["model"], 16) is None


def test_scaling_and_communication() -> None:
    throughput = ModelThroughput("alexnet", "allreduce", FOUND, 16)
    assert scaling_factor(throughput) == pytest.approx(15)
    assert byte_ratios(throughput) == [2, 4]


def test_chart_has_a_line_a_method_in_the_order_of_devices() -> None:
    drawn = throughput_chart(
        "images", FOUND, {"data": "data", "model": "model", "optcnn": "OptCNN"}
    )
    assert [line.name for line in drawn.lines] == ["data", "OptCNN"], "what never fits has no line"
    assert drawn.lines[0].points == [(1.0, 10), (16.0, 100)]


def test_step_of_a_method() -> None:
    case = WeakScalingCase("lenet-tiny", "p100", 2, 4)
    assert case.graph.batch == 8
    assert len(case.cluster.devices) == 2
    simulated = simulate_method(case, "optcnn-paper", "server", 1.0)
    assert simulated is not None
    assert simulated.samples_per_s == pytest.approx(8 / simulated.seconds)
    assert simulated.plan.sync == "server"


def test_what_cannot_be_or_does_not_fit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"step_ms": 2.0, "samples_per_s": 5.0, "comm_bytes": 7, "search_s": 3.0, "proposals": 9}
    row["history"] = [[0.1, 1, 4.0], [0.5, 2, 2.0]]

    def planned(graph: Any, on: Any, method: str, **options: Any) -> Any:
        if method == "never":
            raise InputError("it cannot be.")
        return None, {**row, "fits": method == "small"}, None

    monkeypatch.setattr(simulate_methods, "plan_and_predict", planned)
    case = WeakScalingCase("lenet-tiny", "p100", 2, 4)
    assert simulate_method(case, "never", "server", 1.0) is None
    assert simulate_method(case, "large", "server", 1.0) is None
    simulated = simulate_method(case, "small", "server", 1.0)
    assert simulated is not None
    assert (simulated.seconds, simulated.proposals, simulated.improved_s) == (0.002, 9, 0.5)
    assert simulated.search_s >= 3
    assert simulate_method(case, "small", "server", 1.0) is simulated, "remembered"


def test_clusters_have_nodes_of_four() -> None:
    nodes = {n: WeakScalingCase("lenet-tiny", "p100", n, 1).cluster.nodes for n in (1, 2, 4, 8, 16)}
    assert nodes == {1: 1, 2: 1, 4: 1, 8: 2, 16: 4}


# -- ten plans -------------------------------------------------------------------------------------


def test_ten_plans_differ() -> None:
    group = PlanGroup("alexnet", 16, 2, 0)
    graph = group.graph()
    plans = ten_plans.make_ten_plans(group, graph, ("data", "owt", "layerwise"), changed_groups=4)
    assert len(plans) == 10
    assert list(plans)[:3] == ["data", "owt", "layerwise"]
    every = [tuple(sorted((k, repr(v)) for k, v in plan.tiles.items())) for plan in plans.values()]
    assert len(set(every)) == 10


def test_section_says_how_well_the_order_is_kept() -> None:
    results = [
        ten_plans.PlanTimes(name, StepTimes(real, real, real, [], []), guess)
        for name, real, guess in (("a", 1.0, 1.1), ("b", 2.0, 4.0), ("c", 3.0, 3.0))
    ]
    section = ten_plans.section("order", PlanGroup("alexnet", 16, 2, 0), results, "")
    assert "Spearman's correlation is 0.50" in section.text
    assert "100 % at most" in section.text
    assert "a, takes 1.00 x the fastest" in section.text
    assert [row[-2:] for row in section.parts[0].rows] == [[1, 1], [2, 3], [3, 2]]  # type: ignore[union-attr]


def test_parts_have_different_names() -> None:
    names = ["throughput", "calibrated", "search", "plans", "ranking"]
    assert [part.name for part in PARTS] == names


# -- calibrated ------------------------------------------------------------------------------------


def test_cells_of_the_paper_are_compared_with_what_was_simulated() -> None:
    steps: Any = {("data", 1): _step(10), ("optcnn-paper", 16): _step(150), ("model", 16): None}
    result = Calibrated("net", 1e12, True, steps)
    one, all_of, model = (
        Measurement("net", 32 * n, str(n), method, "", "allreduce", speed, ms, n > 1)
        for n, method, speed, ms in (
            (1, "data", 8.0, 0.0), (16, "optcnn", 0.0, 512 / 0.12), (16, "model", 5.0, 0.0),
        )
    )  # fmt: skip
    other = one._replace(model="another net")
    cells = compare(result, [one, all_of, model, other])
    assert [(c.method, c.gpus, c.held_out) for c in cells] == [
        ("data", 1, False), ("optcnn-paper", 16, True)
    ]  # fmt: skip
    assert [c.off for c in cells] == pytest.approx([0.25, 0.25])


def test_what_was_measured_is_fitted_to_one_gpu_alone() -> None:
    measurements = read_measurements(str(MEASURED))
    assert {m.devices for m in measurements if not m.held_out} == {"1"}
    assert {m.model for m in measurements} <= {"alexnet", "vgg16", "inception_v3"}


def test_a_case_on_a_fitted_cluster() -> None:
    fitted = with_values(cluster("p100:4x4"), {"peak": 4e13})
    on = WeakScalingCase("vgg16", "p100", 6, 32, fitted).cluster
    assert (len(on.devices), on.nodes) == (6, 2)
    assert on.devices[0].flops["float32"] == 4e13
