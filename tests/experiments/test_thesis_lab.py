"""The second half of `thesis`: its arithmetic on made-up findings, and its ways to train on one rank."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from experiments.experiment import RunOptions
from experiments.thesis import lab, lab_plans, lab_table, training
from experiments.thesis.core_sharing import crowding, step_seconds
from experiments.thesis.lab_grid import Grid, RatePair, micro_batch_graph
from experiments.thesis.training_rank import train
from experiments.thesis.training_runs import PLAIN, ReplicatedRun, start_run, updates_between
from experiments.thesis.training_task import batches, build_network, digits
from raddle.api.loading import capture_model
from raddle.clusters import cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.plans.pipelining import is_asynchronous
from raddle.reports.experiments.markdown import markdown
from raddle.reports.experiments.result import Result
from raddle.searches.predict import simulate_steps
from raddle.sync.item import UpdateEvent

LABELS = (lab_table.SINGLE, *lab_plans.ROWS)


def shown(section) -> str:
    return markdown(Result("x", "x", [], [], [section], "here", True, 0.0))


# -- the lab -----------------------------------------------------------------------------------------


def test_the_printed_table_is_whole_and_its_single_rank_is_slowest_at_large_batches():
    rows = [(n, row) for n, seconds_by_row in lab_table.SECONDS.items() for row in seconds_by_row]
    assert len(rows) == 1 + 7 + 7
    for n, row in rows:
        assert len(lab_table.SECONDS[n][row]) == len(lab_table.BATCHES)
        assert row in LABELS  # so every printed row has a measured one
        assert lab.printed_speedup(n, row, 512) >= 1
    assert lab_table.images_per_second(4, lab_table.COARSE, 64) == 102_400 / 2050
    assert lab_table.images_per_second(2, lab_plans.DDP, 64) is None
    assert lab_table.images_per_second(2, lab_table.COARSE, 48) is None


def test_the_printed_crossover_is_where_the_text_of_the_thesis_has_it():
    ratios = {batch: lab.printed_ratio(4, batch) for batch in lab_table.BATCHES}
    assert lab.batches_won(ratios) == "at batch 16, 32, 64, 128"
    assert lab.batches_won({16: 0.5}) == "at no batch"
    assert lab.batches_won({16: 1.5, 32: 2.0}) == "at every batch"


@pytest.fixture(scope="module")
def small():
    graph = capture_model("vgg16-tiny", 8)
    return graph, lab_plans.plans_by_row(graph, cluster("local:2"), budget=0.3)


def test_every_row_has_a_plan_that_can_be_simulated(small):
    graph, plans = small
    assert list(plans) == list(lab_plans.ROWS)
    for label, plan in plans.items():
        assert is_asynchronous(plan) == (lab_plans.ROWS[label].schedule != ""), label
        assert (
            simulate_steps(micro_batch_graph(graph, plan), plan, cluster("local:2")).step_seconds
            > 0
        )
    assert plans[lab_plans.COARSE].tiles == plans[lab_plans.SERIAL_COARSE].tiles
    assert not plans[lab_plans.ASYNC_ALL].parsed_sync.synchronous
    assert plans[lab_plans.SYNC_ONE].server == 0


def test_ranks_with_a_core_each_are_simulated_as_ever_and_sharing_one_costs_time(small):
    graph, plans = small
    plan, on, profile = plans[lab_plans.DDP], cluster("local:2"), Profile()
    alone = simulate_steps(graph, plan, on, profile).step_seconds
    assert step_seconds(graph, plan, on, profile, cores=2) == alone
    measured = Profile(profile_of(graph, plan, on.devices[0].kind))
    shared = [step_seconds(graph, plan, on, measured, cores=c) for c in (1, 2)]
    assert 1.5 * shared[1] < shared[0] < 2.5 * shared[1]


def profile_of(graph, plan, kind):
    """A millisecond for every operator, forward and backward."""
    from raddle.costs.profile import profile_key
    from raddle.graph.gradients import active_values

    active, seconds = active_values(graph), {}
    for op in graph.ops:
        wanted = tuple(i for i, name in enumerate(op.inputs) if name in active)
        for box in plan.tiles[op.name].boxes:
            seconds[profile_key(op, box, "F", None, kind)] = 1e-3
            seconds[profile_key(op, box, "B", wanted, kind)] = 1e-3
    return seconds


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), min_size=1, max_size=6),
    st.integers(1, 3),
)
def test_crowding_is_what_counting_moment_by_moment_gives(intervals, cores):
    start = np.array([a for a, _ in intervals])
    end = np.array([a + length for a, length in intervals])
    busy = [sum(a <= t < a + length for a, length in intervals) for t in range(41)]
    expected = sum(k * max(1.0, k / cores) for k in busy) / sum(busy)
    assert crowding(start, end, cores) == pytest.approx(expected)


def grid(ranks, factor):
    labels = LABELS[:1] if ranks == 1 else LABELS[1:]
    link = None if ranks == 1 else {"bandwidth": 2.5e8, "latency": 2e-4}
    cells = {
        (label, batch): RatePair(100.0 * factor + at, 110.0 * factor + at)
        for (at, label), batch in itertools.product(enumerate(labels), (16, 128))
    }
    return Grid(ranks, cells, link)


def test_a_section_says_what_its_figures_say():
    grids = [grid(1, 1.0), grid(2, 1.5), grid(4, 1.8)]
    text = shown(lab.section(grids, (16, 128)))
    assert "250 MB/s and 0.20 ms at N = 2" in text
    assert "N = 1: the simulation is off by 10% (median of 2), at most 10%." in text
    assert "at no batch (thesis: at every batch)" in text  # later rows are faster in `grid`
    assert "the fastest of all is auto at batch 16, 160 images/s" in text
    assert lab.speedup(grids, 2, lab_table.LAYERS, 16) == 1.5
    assert lab.speedup(grids, 2, lab_table.SINGLE, 16) is None


def test_without_a_lab_the_section_is_skipped(monkeypatch):
    def none():
        raise InputError("a lab needs root.")

    monkeypatch.setattr(lab, "check_system", none)
    assert lab.make(RunOptions(quick=True)).skipped == "a lab needs root."


# -- accuracy over time ------------------------------------------------------------------------------


def test_the_target_is_reached_between_two_looks():
    curve = [(0.0, 0.1, 2.3), (2.0, 0.8, 1.0), (4.0, 1.0, 0.1)]
    assert training.seconds_to_target(curve) == pytest.approx(3.0)
    assert training.seconds_to_target(curve[:2]) is None
    assert training.seconds_to_target([(0.0, 0.95, 0.1)]) == 0.0


def run(seconds, end=1.0, staleness=()):
    return training.TrainingCurve([(0.0, 0.0, 2.3), (seconds / 0.9, end, 0.2)], staleness)


def test_the_verdict_follows_from_the_seconds():
    runs_by_kind = {
        (1, training.SINGLE): [run(10)],
        (2, training.COARSE): [run(6, staleness=(-1, 3)), run(8), run(4)],
        (2, training.SYNC): [run(3)],
        (2, training.ASYNC): [run(9)],
        (4, training.COARSE): [run(5, end=0.5)],
        (4, training.TORCH): [run(2)],
    }
    text = shown(training.section(runs_by_kind, training.QUICK, 1792))
    assert "With N = 2 servers, synchronous is first (3.0 s)" in text
    assert "servers, synchronous: 0.50 x as long (thesis: 2.25 x)" in text
    assert "takes 6.0 s; servers, asynchronous: 1.50 x as long (thesis: 1.2 x)" in text
    assert (
        "With N = 4 DDP is first (2.0 s), and the asynchronous coarse hypergraph does not" in text
    )
    assert (
        "| 2 | coarse hypergraph, asynchronous | 6.00 | 32 | 1.67 | 1.00 | – | – | -1 to 3 |"
        in text
    )
    assert "| 4 | coarse hypergraph, asynchronous | – | 32 | – | – | – | 44 | – |" in text


def test_updates_of_others_between_two_of_a_worker():
    workers = [0, 1, 0, 0, 1]  # item 0; item 1 has updates of sums, which nobody is late for
    log = [UpdateEvent(0, worker, 0, at + 1) for at, worker in enumerate(workers)]
    assert updates_between([*log, UpdateEvent(1, -1, 0, 1)]) == [0, 1, 1, 0, 2]


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_single_rank_learns_and_its_curve_is_measured_block_by_block(alone):
    images, labels = digits()
    assert images.shape == (1792, 1, 16, 16)
    assert float(images.max()) <= 1
    training_run = start_run(PLAIN, 16, seed=0)
    assert isinstance(training_run, ReplicatedRun)
    curve = train(training_run, (images[:256], labels[:256]), seed=0, blocks=2)
    assert len(curve) == 3
    assert 0 == curve[0][0] < curve[1][0] < curve[2][0]
    assert curve[2][1] > curve[0][1] + 0.15  # of the images right
    assert curve[2][2] < 0.9 * curve[0][2]  # the loss


def test_every_epoch_has_every_image_once_in_another_order():
    order = batches(96, seed=3)
    first, second = (torch.cat(list(itertools.islice(order, 3))) for _ in range(2))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(96))
    assert first.tolist() != second.tolist()


def test_networks_of_a_seed_are_equal():
    a, b, c = (
        torch.cat([p.flatten() for p in build_network(4, s).parameters()]) for s in (1, 1, 2)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_without_scikit_learn_the_section_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "pip install scikit-learn" in training.make(RunOptions(quick=True)).skipped
