"""bench/exchanges: the reference of max-min fair sharing, and predictions of what was measured."""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

FOLDER = pathlib.Path(__file__).parents[2] / "bench" / "exchanges"
sys.path.insert(0, str(FOLDER))

from exchanges import PATTERNS, TOPOLOGIES, Topology  # noqa: E402
from fair import Flow, fair_seconds, share_links  # noqa: E402
from predictions import measured_step, predict  # noqa: E402

from raddle.clusters import Cluster  # noqa: E402
from raddle.program.lower import lower  # noqa: E402
from raddle.simulation.timeline import simulate  # noqa: E402

LINKS = 5


@given(
    st.lists(st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=3), min_size=1, max_size=8),
    st.lists(st.integers(1, 100), min_size=LINKS, max_size=LINKS),
)
def test_shares_are_max_min_fair(routes: list[list[int]], capacities: list[int]) -> None:
    """No link is overloaded, and each flow has a full link on which no other flow is faster."""
    flows = [Flow(Counter(route), 1.0, 0.0, (i,)) for i, route in enumerate(routes)]
    share_links(flows, dict(enumerate(capacities)))
    load = [sum(flow.rate * flow.uses[link] for flow in flows) for link in range(LINKS)]
    full = {i for i in range(LINKS) if load[i] == pytest.approx(capacities[i])}
    assert all(
        used <= capacity * (1 + 1e-9) for used, capacity in zip(load, capacities, strict=True)
    )
    for flow in flows:
        fastest = {i: max(f.rate for f in flows if i in f.uses) for i in full & set(flow.uses)}
        assert any(flow.rate == pytest.approx(rate) for rate in fastest.values())


def test_messages_that_share_nothing_take_as_long_as_in_the_simulation() -> None:
    """Two hosts with one rank each: in every exchange at most one message is on each link."""
    topology = Topology("2x1", 2, 1, "1gbit", {})
    device = {"flops": {"float32": 1e10}, "memory": 1e9, "bandwidth": 1e10, "overhead": 1e-6}
    cluster = Cluster.from_dict(
        {
            "name": "two",
            "devices": {"cpu": device},
            "nodes": [{"count": 2, "devices": ["cpu"]}],
            "network": {"bandwidth": 1e8, "latency": 1e-3},
        }
    )
    for pattern in ("all-gather", "all-to-all", "halo"):
        exchange = PATTERNS[pattern](topology)
        program = lower(exchange.graph, exchange.plan)
        seconds = simulate(program, cluster).total_seconds
        assert fair_seconds(program, cluster) == pytest.approx(seconds, rel=1e-6), pattern


def test_predictions_are_near_what_was_measured() -> None:
    """12 exchanges whose ranks kept the cores less than 60 % busy: median 10 %, worst 25 %."""
    results = json.loads((FOLDER / "results.json").read_text())["topologies"]
    errors = []
    for topology in TOPOLOGIES:
        runs = results[topology.name]
        for pattern in PATTERNS:
            measured = measured_step(runs, pattern)
            assert measured.by_ranks < 0.6
            predicted = predict(topology, pattern, runs)["first-fit"]
            errors.append(abs(predicted / measured.seconds - 1))
    assert len(errors) == 12
    assert statistics.median(errors) <= 0.10
    assert max(errors) <= 0.25
