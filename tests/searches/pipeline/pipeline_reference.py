"""References for the tests of the partitioners: all pipelines of small graphs, and PipeDream's program.

Everything follows the definitions, with Python sets and without optimisations. At the end are hypothesis
strategies that draw graphs, costs and device chains.
"""

# s: a stage, r: replicas of a stage, rs: replicas of all stages, k: number of machines, a, b: ideals,
# u, v, w: layers, d: the first device of a stage, x: any index

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from hypothesis import strategies as st

from raddle.searches.pipeline.layers import DeviceChain, LayerCosts, Layers

PROFILES = Path(__file__).resolve().parents[4] / "shared" / "data" / "pipedream"
Ideal = frozenset[int]
Successors = Sequence[Sequence[int]]


def reads(successors: Successors) -> list[set[int]]:
    """For each layer, return the layers that it reads."""
    return [{u for u, row in enumerate(successors) if v in row} for v in range(len(successors))]


def down(successors: Successors, v: int) -> Ideal:
    """Return v and all its direct and indirect predecessors."""
    return frozenset({v}).union(*(down(successors, u) for u in reads(successors)[v]))


def ideals(successors: Successors) -> list[Ideal]:
    """Return all ideals, the smallest first: sets that contain all layers that their layers read."""
    read = reads(successors)
    result = level = {frozenset[int]()}
    while level:
        level = {a | {v} for a in level for v in range(len(read)) if v not in a and read[v] <= a}
        result = result | level
    return sorted(result, key=lambda a: (len(a), sorted(a)))


def crossing(successors: Successors, activation: Sequence[float], a: Ideal) -> float:
    """Return the bytes that cross the cut after ideal a; see cuts.py."""
    return sum(activation[u] for u in a if set(successors[u]) - a)


def antichain(successors: Successors, activation: Sequence[float], a: Ideal) -> float:
    """Return the bytes that PipeDream counts at the cut after ideal a; see cuts.py."""
    last = {v for v in a if not set(successors[v]) & a}
    counted = set(last)
    for v in last:
        before = down(successors, v)
        counted |= {u for u in before - {v} if set(successors[u]) - before}
    return sum(activation[u] for u in counted)


def chains(all_ideals: Sequence[Ideal], most: int) -> Iterator[list[Ideal]]:
    """Yield all pipelines with at most `most` stages, as chains of ideals from the first to the last."""

    def extend(chain: list[Ideal]) -> Iterator[list[Ideal]]:
        if chain[-1] == all_ideals[-1]:
            yield chain
        elif len(chain) <= most:
            for a in all_ideals:
                if chain[-1] < a:
                    yield from extend([*chain, a])

    return extend([all_ideals[0]])


def replications(stages: int, devices: int) -> Iterator[tuple[int, ...]]:
    """Yield all numbers of replicas, by stage, that need at most `devices` devices."""
    for rs in product(range(1, devices + 1), repeat=stages):
        if sum(rs) <= devices:
            yield rs


def stage_seconds(layers: Layers, stage: Ideal, r: int, bandwidth: float) -> float:
    """Return the seconds of a stage per micro-batch; see shortest_period.py."""
    work = sum(layers.forward[v] + layers.backward[v] for v in stage)
    parameters = sum(layers.parameters[v] for v in stage)
    return (work + 4 * (r - 1) * parameters / (r * bandwidth)) / r


def period(
    layers: Layers, chain: list[Ideal], rs: Sequence[int], bandwidth: float, counting: str
) -> float:
    """Return the period of one pipeline; see shortest_period.py."""
    count = antichain if counting == "pipedream" else crossing
    times = []
    for s, r in enumerate(rs):
        times.append(stage_seconds(layers, chain[s + 1] - chain[s], r, bandwidth))
        sent = [2 * count(layers.successors, layers.activation, a) for a in chain[s : s + 2]]
        if s > 0:
            times.append(sent[0] / bandwidth / r)
        if s < len(rs) - 1 and (s > 0 or counting == "crossing"):
            times.append(sent[1] / bandwidth / r)
    return max(times)


def shortest_period(layers: Layers, devices: int, bandwidth: float, counting: str) -> float:
    """Return the shortest period of all pipelines."""
    return min(
        period(layers, chain, rs, bandwidth, counting)
        for chain in chains(ideals(layers.successors), devices)
        for rs in replications(len(chain) - 1, devices)
    )


def pipedream(layers: Layers, machines: int, bandwidth: float) -> float:
    """Return the period that PipeDream's optimizer finds if it uses all machines and counts activations.

    Its states are ideals. It starts with the first layer that reads no other layer. From a state it goes to
    states that add a layer which reads one of the state's layers, with all its predecessors. A stage is
    between a state and one that can be reached from it. If only one layer reads no other, the states are
    all ideals except the empty one.
    """
    successors = layers.successors
    first = next(v for v, read in enumerate(reads(successors)) if not read)
    before = [down(successors, v) for v in range(len(successors))]
    met: dict[Ideal, set[Ideal]] = {}  # by state, the states from which it can be reached
    todo = [frozenset({first})]
    onward: dict[Ideal, set[Ideal]] = {}
    for a in todo:
        if a not in onward:
            outside = {w for u in a for w in successors[u]} - a
            onward[a] = {a | before[w] for w in outside}
            todo.extend(onward[a])
    states = sorted(onward, key=lambda a: (len(a), sorted(a)))
    met = {a: set() for a in states}
    for a in states:
        for b in onward[a]:
            met[b] |= {a, *met[a]}
    sent = {a: 2 * antichain(successors, layers.activation, a) / bandwidth for a in states}
    sent[states[-1]] = 0.0
    work = {a: sum(layers.forward[v] + layers.backward[v] for v in a) for a in states}
    parameters = {a: sum(layers.parameters[v] for v in a) for a in states}
    alpha = [0.0, *(4 * (r - 1) / (r * bandwidth) for r in range(1, machines + 1))]
    best = {
        (a, k): (work[a] + alpha[k] * parameters[a]) / k
        for a in states
        for k in range(1, machines + 1)
    }
    for b in states:
        for k in range(2, machines + 1):
            for a in met[b]:
                for r in range(1, k):
                    seconds = work[b] - work[a] + alpha[r] * (parameters[b] - parameters[a])
                    last = max(seconds, sent[a], sent[b]) / r
                    best[b, k] = min(best[b, k], max(best[a, k - r], last))
    return best[states[-1], machines]


def step(
    costs: LayerCosts,
    device_chain: DeviceChain,
    chain: list[Ideal],
    rs: Sequence[int],
    recompute: Sequence[bool],
    *,
    microbatches: int,
    schedule: str,
    state_factor: float,
) -> float:
    """Return the estimated seconds of a step; see shortest_step.py.

    It is infinite if a stage does not fit in memory, or has devices of two kinds.
    """
    times, other_seconds, d = [], 0.0, 0
    for s, (r, recomputes) in enumerate(zip(rs, recompute, strict=True)):
        devices, stage = range(d, d + r), chain[s + 1] - chain[s]
        input_bytes = crossing(costs.successors, costs.activation, chain[s])
        saved = sum(costs.saved[v] for v in stage)
        parameters = sum(costs.parameters[v] for v in stage)
        alive = microbatches if schedule == "gpipe" else min(microbatches, len(rs) - s)
        memory = (
            state_factor * parameters
            + (alive * input_bytes + saved if recomputes else alive * saved) / r
        )
        kinds = {device_chain.kinds[x] for x in devices}
        if len(kinds) > 1 or memory > min(device_chain.capacity[x] for x in devices) * (1 + 1e-12):
            return math.inf
        (kind,) = kinds
        forward = sum(costs.forward[kind][v] for v in stage)
        backward = sum(costs.backward[kind][v] for v in stage)
        times.append((forward + backward + (forward if recomputes else 0)) / r)
        if r > 1:
            slowest = min(device_chain.bandwidth[x] for x in devices[:-1])
            other_seconds += 2 * (r - 1) / r * parameters / slowest
        if s > 0:
            other_seconds += 2 * (
                device_chain.latency[d - 1] + input_bytes / device_chain.bandwidth[d - 1]
            )
        d += r
    return (microbatches - 1) * max(times) + sum(times) + other_seconds


def shortest_step(costs: LayerCosts, device_chain: DeviceChain, **rules: object) -> float:
    """Return the shortest estimated step of all pipelines; `rules` are the keyword arguments of `step`."""
    return min(
        step(costs, device_chain, chain, rs, recompute, **rules)  # type: ignore[arg-type]
        for chain in chains(ideals(costs.successors), len(device_chain.kinds))
        for rs in replications(len(chain) - 1, len(device_chain.kinds))
        for recompute in product((False, True), repeat=len(rs))
    )


@st.composite
def graphs(draw: st.DrawFn, most: int) -> tuple[tuple[int, ...], ...]:
    """Draw acyclic graphs of up to `most` layers, whose numbers are in no topological order."""
    n = draw(st.integers(1, most))
    order = draw(st.permutations(range(n)))
    successors: list[list[int]] = [[] for _ in range(n)]
    for x in range(n):
        for y in range(x + 1, n):
            if draw(st.integers(0, 2)) == 0 or (y == x + 1 and draw(st.booleans())):
                successors[order[x]].append(order[y])
    return tuple(tuple(row) for row in successors)


def columns(n: int, most: int = 9) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw a value from 0 to `most` for each of n layers."""
    return st.tuples(*[st.integers(0, most)] * n)


@st.composite
def layered(draw: st.DrawFn, most: int = 6) -> Layers:
    successors = draw(graphs(most))
    column = columns(len(successors))
    return Layers(draw(column), draw(column), draw(column), draw(column), successors)


@st.composite
def device_chains(draw: st.DrawFn, kinds: int, most: int) -> DeviceChain:
    devices = draw(st.integers(1, most))
    positive = st.sampled_from([0.5, 1.0, 4.0])
    kind = draw(st.tuples(*[st.integers(0, kinds - 1)] * devices))
    return DeviceChain(
        tuple(sorted(kind)) if draw(st.booleans()) else kind,
        draw(st.tuples(*[st.sampled_from([20.0, 40.0, 80.0, math.inf])] * devices)),
        draw(st.tuples(*[positive] * (devices - 1))),
        draw(st.tuples(*[st.sampled_from([0.0, 1.0])] * (devices - 1))),
    )


@st.composite
def layer_costs(draw: st.DrawFn, kinds: int, most: int = 5) -> LayerCosts:
    successors = draw(graphs(most))
    column = columns(len(successors))
    rows = st.tuples(*[column] * kinds)
    return LayerCosts(draw(rows), draw(rows), draw(column), draw(column), draw(column), successors)
