"""The solvers of coarse partitions, compared with a search through all partitions of tiny networks."""

# l, t: layers; v: map; p: part

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raddle.searches.hypergraph import coarse, coarse_annealing, coarse_starts, exact
from raddle.searches.hypergraph.counts import CountModel, elements_received, volume
from raddle.searches.hypergraph.kahypar_blocks import (
    build_hypergraph,
    partition_blocks,
    run_mtkahypar,
)
from raddle.searches.hypergraph.lower_bound import volume_bounds

tiny = settings(max_examples=25, deadline=None, derandomize=True)


def build_model(units, work, maps):
    """Builds a model; maps: (cost, layers of the pieces, dense readers, elementwise (piece, layer))."""

    def lists(rows):
        at = np.cumsum([0, *(len(row) for row in rows)])
        return at.astype(np.int64), np.array([i for row in rows for i in row], np.int64)

    elementwise_start, elementwise_piece = lists([[i for i, _ in v[3]] for v in maps])
    return CountModel(
        np.array(units, np.int64),
        np.array(work, np.float64),
        np.array([v[0] for v in maps], np.int64),
        *lists([v[1] for v in maps]),
        *lists([v[2] for v in maps]),
        elementwise_start,
        elementwise_piece,
        np.array([t for v in maps for _, t in v[3]], np.int64),
    )


@st.composite
def models(draw, elementwise=True):
    """Draws a chain of layers, sometimes with a concatenation, a second reader or residual adds."""
    layers = draw(st.integers(3, 4))
    units = draw(st.lists(st.integers(1, 4), min_size=layers, max_size=layers))
    work = draw(st.lists(st.sampled_from([1.0, 1.5, 2.0, 5.0]), min_size=layers, max_size=layers))
    cost = st.integers(1, 9)
    maps = [(draw(cost), [l], [l + 1], []) for l in range(layers - 1)]
    kind = draw(
        st.sampled_from(["chain", "cat", "readers", "residual", "twice"][: 5 if elementwise else 3])
    )
    if kind == "cat":
        maps[-1] = (draw(cost), [0, layers - 2], [layers - 1], [])
    if kind == "readers":
        maps[0] = (draw(cost), [0], [1, layers - 1], [])
    if kind == "residual":
        units[layers - 2] = units[0]
        maps[0] = (draw(cost), [0], draw(st.sampled_from([[], [1]])), [(0, layers - 2)])
    if kind == "twice":
        units[1] = units[layers - 2] = units[0]
        maps[0] = (draw(cost), [0], [layers - 1], [(0, layers - 2)])
        maps += [(draw(cost), [0], [], [(0, 1)])]
    return build_model(units, work, maps)


@st.composite
def problems(draw, elementwise=True):
    m, parts = draw(models(elementwise)), draw(st.integers(2, 3))
    shares = draw(st.sampled_from([None, [2, 1, 1][:parts]]))
    return m, coarse.capacities(m, parts, draw(st.sampled_from([0.1, 0.4])), shares)


def least_volume(m, capacity):
    """Returns the least volume of all partitions within the capacities, or infinity."""
    splits = [list(all_splits(int(n), len(capacity))) for n in m.units]
    received_by_column = {}

    def elements(column):
        if column not in received_by_column:
            received_by_column[column] = elements_received(m, np.array(column))
        return received_by_column[column]

    smallest = math.inf
    for rows in itertools.product(*splits):
        columns = list(zip(*rows, strict=True))
        if all(np.dot(m.work, c) <= w * (1 + 1e-9) for c, w in zip(columns, capacity, strict=True)):
            smallest = min(smallest, sum(elements(column) for column in columns))
    return smallest


def all_splits(n, parts):
    if parts == 1:
        yield (n,)
        return
    for k in range(n + 1):
        for other_counts in all_splits(n - k, parts - 1):
            yield (k, *other_counts)


def annealed(m, capacity, seed, moves=20_000):
    capacity = capacity * (1 + 1e-9)
    walk = coarse_annealing.start_walk(m, coarse_starts.balanced(m, capacity), capacity, seed)
    for _ in coarse_annealing.anneal(
        m, coarse_annealing.build_neighbours(m), capacity, walk, moves, 20.0, 0.2
    ):
        pass
    return walk


@tiny
@given(problems(), st.integers(0, 99))
def test_volume_is_kept_up_move_by_move(problem, seed):
    m, capacity = problem
    walk = annealed(m, capacity, seed, moves=997)
    assert walk.totals[coarse_annealing.VOLUME] == volume(m, walk.x.T)
    assert np.allclose(walk.work, walk.x @ m.work)
    assert (walk.x.sum(axis=0) == m.units).all()
    assert (walk.x >= 0).all()
    if math.isfinite(walk.totals[coarse_annealing.BEST_VOLUME]):
        assert walk.totals[coarse_annealing.BEST_VOLUME] == volume(m, walk.best.T)
        assert (walk.best @ m.work <= capacity * (1 + 2e-9)).all()


@tiny
@given(problems())
def test_annealing_finds_the_best_of_tiny_networks(problem):
    m, capacity = problem
    best = least_volume(m, capacity)
    annealed_volume = min(
        annealed(m, capacity, seed).totals[coarse_annealing.BEST_VOLUME] for seed in range(3)
    )
    assert annealed_volume == best


@tiny
@given(problems())
def test_the_exact_program_finds_the_best(problem):
    m, capacity = problem
    best = least_volume(m, capacity)
    result = exact.solve(
        m, capacity * (1 + 1e-9), seconds=20, start=annealed(m, capacity, 0).best.T
    )
    if math.isinf(best):
        assert result.x is None
    else:
        assert result.proven
        assert volume(m, result.x) == best
        assert result.lower_bound <= best + 1e-6


@settings(tiny, max_examples=60)
@given(problems())
def test_no_bound_is_above_the_best(problem):
    m, capacity = problem
    best = least_volume(m, capacity)
    assume(math.isfinite(best))
    columns = annealed(m, capacity, 0).best
    lower_bounds = list(itertools.islice(volume_bounds(m, capacity, columns, best), 60))
    assert lower_bounds == sorted(lower_bounds)
    assert lower_bounds[-1] <= best + 1e-6


def test_bounds_are_tight_where_whole_layers_fit():
    m = build_model([4, 4, 4], [1.0, 1.0, 1.0], [(5, [0], [1], []), (2, [1], [2], [])])
    capacity = coarse.capacities(m, 3, 0.0, None)
    assert (
        list(volume_bounds(m, capacity, [], 100.0))[-1]
        == pytest.approx(least_volume(m, capacity))
        == 28
    )


@tiny
@given(models(elementwise=False), st.integers(2, 3))
def test_connectivity_of_single_filters_is_the_volume(m, parts):
    h = build_hypergraph(m, blocks=100)
    part = run_mtkahypar(m, h, parts, 0.5, seed=3)
    km1 = sum(
        cost * (len({part[i] for i in net}) - 1) for net, cost in zip(h.nets, h.cost, strict=True)
    )
    x = np.zeros((m.num_layers, parts), np.int64)
    np.add.at(x, (h.layer, part), h.units)
    assert (h.units == 1).all()
    assert km1 == volume(m, x)


def test_blocks_that_are_read_elementwise_are_in_one_net():
    m = build_model([4, 4], [1.0, 1.0], [(3, [0], [], [(0, 1)])])
    assert build_hypergraph(m, 2).nets == [[0, 2], [1, 3]]
    assert build_hypergraph(m, 2).cost == [6, 6]
    x = partition_blocks(m, 2, 0.1, 2, seed=0)
    assert volume(m, x) == 0
    assert x.tolist() in ([[2, 2], [2, 2]],)


def test_equal_seeds_give_equal_partitions():
    m = build_model([12, 16, 8], [2.0, 1.0, 3.0], [(5, [0], [1], []), (2, [1], [2], [])])
    capacity = coarse.capacities(m, 4, 0.1, None)
    one, two = (annealed(m, capacity, 7) for _ in range(2))
    assert (one.x == two.x).all()
    assert (one.best == two.best).all()
    assert (annealed(m, capacity, 8).x != one.x).any()
    blocks = [partition_blocks(m, 4, 0.1, 8, seed=5) for _ in range(2)]
    assert (blocks[0] == blocks[1]).all()


@pytest.mark.usefixtures("thread_clock")
@settings(tiny, max_examples=8)
@given(models(), st.sampled_from([None, [3, 1], [1, 1, 2]]))
def test_the_portfolio_is_best_and_says_so(m, shares):
    parts = len(shares or "ab")
    steps = []
    solution = coarse.solve(
        m,
        parts,
        epsilon=0.3,
        budget=0.4,
        shares=shares,
        on_progress=lambda step: steps.append(step),
    )
    capacity = coarse.capacities(m, parts, 0.3, shares)
    best = least_volume(m, capacity)
    assert (solution.x.sum(axis=1) == m.units).all()
    assert solution.volume == volume(m, solution.x)
    assert solution.feasible == math.isfinite(best)
    if solution.feasible:
        assert (m.work @ solution.x <= capacity * (1 + 2e-9)).all()
        assert solution.lower_bound <= best == solution.volume
        volumes = [step["volume"] for step in steps]
        assert volumes == sorted(volumes, reverse=True)


def test_a_start_is_never_made_worse():
    m = build_model([8, 8, 8], [1.0, 1.0, 1.0], [(5, [0], [1], []), (2, [1], [2], [])])
    start = coarse_starts.chain(m, coarse.capacities(m, 4, 0.1, None))
    solution = coarse.solve(m, 4, starts=[start], budget=0.01)
    assert solution.volume <= volume(m, start)


def test_one_part_has_everything():
    m = build_model([2, 3], [1.0, 1.0], [(5, [0], [1], [])])
    solution = coarse.solve(m, 1)
    assert solution.proven
    assert solution.x.tolist() == [[2], [3]]


BEST_KNOWN = {2: 24.5, 4: 63.1, 8: 160.1, 16: 393, 32: 877.3, 64: 1831, 128: 3706}  # Mi elements


@pytest.mark.usefixtures("thread_clock")
@pytest.mark.slow
@pytest.mark.parametrize("parts", BEST_KNOWN)
def test_vgg16_is_within_a_hundredth_of_the_best_known(parts):
    from raddle.api.loading import capture_model
    from raddle.searches.hypergraph.counts import build_count_model
    from raddle.searches.hypergraph.network import build_network

    m = build_count_model(build_network(capture_model("vgg16", 32)))
    solution = coarse.solve(m, parts)
    assert solution.feasible
    assert solution.volume / 2**20 <= 1.01 * BEST_KNOWN[parts]
    assert solution.proven == (parts <= 4)
    tight = coarse.solve(m, parts, epsilon=0.03, budget=2.0)
    assert tight.feasible
    assert tight.volume >= solution.lower_bound
