"""Elimination with small and large tables, and branch and bound, against enumeration of all choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.searches.optcnn import branch_and_bound, elimination
from raddle.searches.optcnn.elimination import min_plus, solve
from raddle.searches.optcnn.problem import Edge, incident_edges
from raddle.searches.stopwatch import Clock, Stopwatch

Pairs = list[tuple[int, int]]
Problem = tuple[list[np.ndarray], list[Edge]]


def all_costs(nodes: list[np.ndarray], edges: list[Edge]) -> np.ndarray:
    """The cost of every choice, in one table over all nodes."""
    total = np.zeros([len(node) for node in nodes])
    for i, node in enumerate(nodes):
        total += node.reshape([-1 if k == i else 1 for k in range(len(nodes))])
    for i, j, cost in edges:
        in_order = cost if i < j else cost.T
        total += in_order.reshape([len(nodes[k]) if k in (i, j) else 1 for k in range(len(nodes))])
    return total


def exhaustive(nodes: list[np.ndarray], edges: list[Edge]) -> float:
    return float(all_costs(nodes, edges).min())


def added_up(nodes: list[np.ndarray], edges: list[Edge], choice: tuple[int, ...]) -> float:
    node_costs = sum(float(node[x]) for node, x in zip(nodes, choice, strict=True))
    return node_costs + sum(float(cost[choice[i], choice[j]]) for i, j, cost in edges)


# -- graphs --------------------------------------------------------------------------------------


def complete(count: int) -> Pairs:
    return list(combinations(range(count), 2))


def grid(rows: int, columns: int) -> Pairs:
    at = {(r, c): r * columns + c for r in range(rows) for c in range(columns)}
    return [(at[p], at[r, c]) for r, c in at for p in ((r - 1, c), (r, c - 1)) if p in at]


def hub(spokes: int) -> Pairs:
    """A cycle whose nodes all have an edge to one more node."""
    return [(i, (i + 1) % spokes) for i in range(spokes)] + [(i, spokes) for i in range(spokes)]


@st.composite
def series_parallel(draw: st.DrawFn) -> Pairs:
    """A random series-parallel graph: edges are put in series or in parallel, and dead ends added."""
    pairs, count = [(0, 1)], 2
    while count < 8 and draw(st.booleans() if count > 5 else st.just(True)):
        i, j = pairs[draw(st.integers(0, len(pairs) - 1))]
        how = draw(st.sampled_from(["series", "bypass", "parallel", "end"]))
        if how == "series":
            pairs.remove((i, j))
        if how in ("series", "bypass"):
            pairs += [(i, count), (count, j)]
        else:
            pairs.append((j, i) if how == "parallel" else (i, count))
        count += how != "parallel"
    return pairs


@st.composite
def multigraphs(draw: st.DrawFn) -> Pairs:
    count = draw(st.integers(2, 7))
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    return draw(st.lists(ends.filter(lambda pair: pair[0] != pair[1]), max_size=16))


WIDE = [complete(4), complete(5), complete(6), grid(2, 4), grid(3, 3), hub(6)]


def whole(shape: tuple[int, ...], seed: np.random.Generator) -> np.ndarray:
    return seed.integers(-3, 12, shape).astype(np.float32)


def real(shape: tuple[int, ...], seed: np.random.Generator) -> np.ndarray:
    return (seed.random(shape) * 10.0 ** seed.integers(-3, 4)).astype(np.float32)


def filled(
    pairs: Pairs,
    seed: int,
    make: Callable[..., np.ndarray] = whole,
    *,
    single: int = 0,
    least: int = 1,
) -> Problem:
    """Random costs for a graph whose nodes have `least` to four configurations.

    single: number of further nodes without edges.
    """
    rng = np.random.default_rng(seed)
    count = max((i for pair in pairs for i in pair), default=-1) + 1 + single
    sizes = rng.integers(least, 5, count)
    nodes = [make((n,), rng) for n in sizes]
    return nodes, [Edge(i, j, make((sizes[i], sizes[j]), rng)) for i, j in pairs]


def check(problem: Problem, **options: Any) -> None:
    solution = solve(*problem, **options)
    assert solution.certified
    assert solution.cost == solution.bound == exhaustive(*problem)
    assert added_up(*problem, solution.choice) == solution.cost


# -- the optimum ---------------------------------------------------------------------------------

seeds = st.integers(0, 2**32)


@given(series_parallel(), seeds)
def test_nothing_is_left_of_series_parallel_graphs(pairs: Pairs, seed: int) -> None:
    problem = filled(pairs, seed)
    check(problem)
    eliminated = solve(*problem).counts
    assert (eliminated.nodes, eliminated.remaining) == (len(problem[0]), 0)


@given(st.one_of(multigraphs(), st.sampled_from(WIDE)), seeds, st.integers(0, 2))
def test_any_graph(pairs: Pairs, seed: int, single: int) -> None:
    check(filled(pairs, seed, single=single))


@given(
    st.one_of(multigraphs(), st.sampled_from([*WIDE, complete(7)])),
    seeds,
    st.sampled_from([1, 3]),
    st.sampled_from([0, 30]),
)
def test_branches_where_tables_would_be_too_large(
    pairs: Pairs, seed: int, least: int, limit: int
) -> None:
    check(filled(pairs, seed, least=least), limit=limit)


@contextmanager
def without_guesses() -> Iterator[pytest.MonkeyPatch]:
    """Switches off the heuristics: a choice is good only if the search itself has found it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (branch_and_bound, elimination):
            patch.setattr(
                module, "improve_locally", lambda nodes, edges, choice: tuple(map(int, choice))
            )
        patch.setattr(branch_and_bound, "_greedy_choice", lambda nodes, *others: (0,) * len(nodes))
        yield patch


@given(st.sampled_from([*WIDE, complete(7)]), seeds, st.sampled_from([0, 30]))
def test_nothing_that_is_better_is_cut_off(pairs: Pairs, seed: int, limit: int) -> None:
    with without_guesses():
        check(filled(pairs, seed, least=3), limit=limit)


@given(st.sampled_from(WIDE), seeds, st.sampled_from([0.001, 0.01, 0.1, 0.5]))
def test_bounds_hold_for_all_choices(pairs: Pairs, seed: int, quantile: float) -> None:
    """No choice that costs less than `cost` is dropped, and no choice costs less than the bound."""
    nodes, edges = filled(pairs, seed, least=2)
    costs = all_costs(nodes, edges)
    cost = float(np.quantile(costs, quantile, method="higher"))
    incident = incident_edges(nodes, edges)
    zeros = [[np.zeros(len(nodes[end])) for end in edge[:2]] for edge in edges]
    allowed = [np.arange(len(node)) for node in nodes]
    root = branch_and_bound.Subproblem(
        1, branch_and_bound._bound(nodes, edges, zeros), 0, allowed, zeros
    )
    assert root.bound <= costs.min()
    part = branch_and_bound._tighten(nodes, edges, incident, root, cost, lambda: False)
    assert part.bound <= max(cost, costs.min()) + 1e-6
    if part.bound < cost:
        assert part.bound <= costs.min() + 1e-6
        for node, kept in enumerate(part.allowed):
            assert set(np.nonzero(costs < cost)[node]) <= set(kept)
        few_nodes, few_edges = branch_and_bound._restrict(nodes, edges, part.allowed)
        if any(len(kept) > 1 for kept in part.allowed):
            for child in branch_and_bound._branch(few_nodes, few_edges, incident, part, count()):
                assert child.bound <= costs[np.ix_(*child.allowed)].min() + 1e-6
    else:
        assert costs.min() >= cost


@given(st.one_of(multigraphs(), series_parallel(), st.sampled_from(WIDE)), seeds)
def test_tables_that_are_shared_in_both_directions(pairs: Pairs, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, tables = [whole((3,), rng) for _ in range(2)], [whole((3, 3), rng) for _ in range(2)]
    nodes = [vectors[rng.integers(2)] for _ in range(10)]
    edges = [Edge(*rng.permutation(pair).tolist(), tables[rng.integers(2)]) for pair in pairs]
    check((nodes, edges))


@given(st.one_of(series_parallel(), multigraphs(), st.sampled_from(WIDE)), seeds)
def test_real_costs_are_exact_up_to_rounding(pairs: Pairs, seed: int) -> None:
    problem = filled(pairs, seed, real)
    for limit in (0, 2**20):
        solution = solve(*problem, limit=limit)
        assert solution.certified
        assert solution.cost == pytest.approx(exhaustive(*problem), rel=1e-5)
        assert solution.bound == pytest.approx(solution.cost, rel=1e-5)


@given(st.one_of(multigraphs(), st.sampled_from(WIDE)), seeds, st.sampled_from([0, 2**20]))
def test_infinite_costs_forbid(pairs: Pairs, seed: int, limit: int) -> None:
    def some(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.random(shape) < 0.2, np.inf, whole(shape, rng)).astype(np.float32)

    check(filled(pairs, seed, some), limit=limit)


def test_a_wide_graph_is_really_branched() -> None:
    problem = filled(complete(7), 1, least=3)
    assert solve(*problem).counts.branches == 0
    solution = solve(*problem, limit=0)
    assert solution.cost == solve(*problem).cost == exhaustive(*problem)
    assert solution.counts.branches > 5
    assert solution.counts.remaining == 7


def test_no_nodes_and_no_edges() -> None:
    assert solve([], []).choice == ()
    assert solve([], []).certified
    solution = solve([np.array([3, 1, 2]), np.array([5])], [])
    assert (solution.choice, solution.cost, solution.bound) == ((1, 0), 6.0, 6.0)


def test_an_edge_joins_two_nodes() -> None:
    with pytest.raises(AssertionError, match="node 0 has an edge to itself"):
        solve([np.zeros(2)], [Edge(0, 0, np.zeros((2, 2)))])
    with pytest.raises(AssertionError, match=r"edge 0-1 is \(3, 2\)"):
        solve([np.zeros(2), np.zeros(3)], [Edge(0, 1, np.zeros((3, 2)))])


# -- time ----------------------------------------------------------------------------------------


@given(st.one_of(series_parallel(), st.sampled_from(WIDE)), seeds)
def test_after_the_deadline_there_is_a_choice_and_a_bound(pairs: Pairs, seed: int) -> None:
    problem = filled(pairs, seed)
    solution = solve(*problem, clock=Clock(0.0))
    least = exhaustive(*problem)
    assert solution.bound <= least <= solution.cost == added_up(*problem, solution.choice)
    assert solution.certified == (solution.bound == solution.cost)


@given(st.sampled_from(WIDE), seeds, st.integers(0, 40), st.sampled_from([0, 2**20]))
def test_whenever_it_is_interrupted(pairs: Pairs, seed: int, looks: int, limit: int) -> None:
    """The budget is used up when the clock has been read `looks` times."""
    problem = filled(pairs, seed, least=3)
    times = iter([*[0.0] * (2 + looks), *[1.0] * 10**4])  # making a clock reads the time twice
    clock = Clock(1.0, Stopwatch(lambda: next(times)))
    with without_guesses():
        solution = solve(*problem, limit=limit, clock=clock)
    least = exhaustive(*problem)
    assert solution.bound <= least <= solution.cost
    assert not solution.certified or solution.cost == least


def test_a_part_that_was_interrupted_stays_open() -> None:
    problem = filled(complete(4), 0, least=3)
    calls = []

    def interrupted(nodes: Sequence[np.ndarray], edges: Any) -> tuple[tuple[int, ...], bool]:
        calls.append(True)
        return (0,) * len(nodes), False

    with without_guesses():
        result = branch_and_bound.branch_and_bound(
            *problem,
            solve_by_elimination=interrupted,
            out_of_time=lambda: bool(calls),
            on_progress=lambda step: None,
        )
    assert calls
    assert not result.certified
    assert result.bound <= exhaustive(*problem) < added_up(*problem, result.choice)


def test_the_bound_before_any_work_is_what_each_table_costs_at_least() -> None:
    differ = np.array([[0, -1], [-1, 0]], np.float32)  # three nodes cannot all differ
    edges = [Edge(i, j, differ) for i, j in complete(3)]
    solution = solve([np.zeros(2)] * 3, edges, clock=Clock(0.0))
    assert (solution.bound, solution.cost, solution.certified) == (-3, -2, False)
    assert solve([np.zeros(2)] * 3, edges).bound == -2


def test_progress_is_reported() -> None:
    steps: list[Any] = []
    solve(*filled([*complete(6), (5, 6)], 3, least=3), limit=0, on_progress=steps.append)
    assert {step["step"] for step in steps} == {"eliminate", "branch"}


# -- work ----------------------------------------------------------------------------------------


def blocks(count: int, configurations: int, *, shared: bool) -> Problem:
    """Residual blocks: a chain of nodes, in which every fourth node also has an edge to the next fourth."""
    rng = np.random.default_rng(0)
    square = (configurations, configurations)
    tables = [[rng.random(square, np.float32) for _ in range(5)] for _ in range(count)]
    nodes = [np.arange(configurations, dtype=np.float32)] * (4 * count + 1)
    edges = []
    for b in range(count):
        ends = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]
        for (i, j), table in zip(ends, tables[0 if shared else b], strict=True):
            edges.append(Edge(4 * b + i, 4 * b + j, table))
    return nodes, edges


def test_equal_products_are_done_once() -> None:
    separate, shared = (solve(*blocks(6, 3, shared=shared)) for shared in (False, True))
    assert separate.counts.products == 18  # three for each block
    assert shared.counts.products == 6  # the first and the last block are eliminated in other ways
    assert solve(*blocks(12, 3, shared=True)).counts.products == 6
    copied = [edge._replace(cost=edge.cost.copy()) for edge in blocks(6, 3, shared=True)[1]]
    assert solve(blocks(6, 3, shared=True)[0], copied).cost == shared.cost


def test_chains_and_trees_need_no_products() -> None:
    assert solve(*filled([(i, i + 1) for i in range(9)], 0)).counts.products == 0
    assert solve(*filled([(i // 2, i) for i in range(1, 9)], 0)).counts.products == 0


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (70, 9, 33), (65, 6, 1030), (40, 7, 3)])
def test_min_plus(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(shape[:2], np.float32), rng.random(shape[1:], np.float32)
    assert np.array_equal(min_plus(a, b), (a[:, :, None] + b[None]).min(axis=1))
