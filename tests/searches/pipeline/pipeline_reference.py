"""What the partitioners are held against: all pipelines of small graphs, and PipeDream's dynamic program.

Everything is written down from the definitions, with Python sets, and nothing is clever.
"""

# s: a stage, r: replicas, k: machines, a, b: ideals

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
    return [{u for u, row in enumerate(successors) if v in row} for v in range(len(successors))]


def down(successors: Successors, v: int) -> Ideal:
    """v, and all before it."""
    return frozenset({v}).union(*(down(successors, u) for u in reads(successors)[v]))


def ideals(successors: Successors) -> list[Ideal]:
    """All sets with all that their layers read, by size."""
    read = reads(successors)
    result = level = {frozenset[int]()}
    while level:
        level = {a | {v} for a in level for v in range(len(read)) if v not in a and read[v] <= a}
        result = result | level
    return sorted(result, key=lambda a: (len(a), sorted(a)))


def crossing(successors: Successors, activation: Sequence[float], a: Ideal) -> float:
    return sum(activation[u] for u in a if set(successors[u]) - a)


def antichain(successors: Successors, activation: Sequence[float], a: Ideal) -> float:
    last = {v for v in a if not set(successors[v]) & a}
    counted = set(last)
    for v in last:
        before = down(successors, v)
        counted |= {u for u in before - {v} if set(successors[u]) - before}
    return sum(activation[u] for u in counted)


def chains(all_ideals: Sequence[Ideal], most: int) -> Iterator[list[Ideal]]:
    """All ways from nothing to everything in at most so many stages."""

    def extend(chain: list[Ideal]) -> Iterator[list[Ideal]]:
        if chain[-1] == all_ideals[-1]:
            yield chain
        elif len(chain) <= most:
            for a in all_ideals:
                if chain[-1] < a:
                    yield from extend([*chain, a])

    return extend([all_ideals[0]])


def replications(stages: int, devices: int) -> Iterator[tuple[int, ...]]:
    """All numbers of replicas, by stage, that need no more devices than there are."""
    for rs in product(range(1, devices + 1), repeat=stages):
        if sum(rs) <= devices:
            yield rs


def stage_seconds(layers: Layers, stage: Ideal, r: int, bandwidth: float) -> float:
    work = sum(layers.forward[v] + layers.backward[v] for v in stage)
    parameters = sum(layers.parameters[v] for v in stage)
    return (work + 4 * (r - 1) * parameters / (r * bandwidth)) / r


def period(
    layers: Layers, chain: list[Ideal], rs: Sequence[int], bandwidth: float, counting: str
) -> float:
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
    return min(
        period(layers, chain, rs, bandwidth, counting)
        for chain in chains(ideals(layers.successors), devices)
        for rs in replications(len(chain) - 1, devices)
    )


def pipedream(layers: Layers, machines: int, bandwidth: float) -> float:
    """The period that PipeDream's optimizer finds with activations counted, all machines in use.

    Its states are the ideals that it meets when it starts with the first layer that reads nothing, and
    goes on to a layer that reads one of the state's, with all before that; a stage is between a state and
    one that can be met from it. Where one layer reads nothing, these are all ideals but the empty one.
    """
    successors = layers.successors
    first = next(v for v, read in enumerate(reads(successors)) if not read)
    before = [down(successors, v) for v in range(len(successors))]
    met: dict[Ideal, set[Ideal]] = {}  # by state, those from which it can be met
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
    """The estimated step, infinite where it does not fit or a stage has devices of two kinds."""
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
    return min(
        step(costs, device_chain, chain, rs, recompute, **rules)  # type: ignore[arg-type]
        for chain in chains(ideals(costs.successors), len(device_chain.kinds))
        for rs in replications(len(chain) - 1, len(device_chain.kinds))
        for recompute in product((False, True), repeat=len(rs))
    )


@st.composite
def graphs(draw: st.DrawFn, most: int) -> tuple[tuple[int, ...], ...]:
    """Acyclic graphs whose layers are not numbered in a topological order."""
    n = draw(st.integers(1, most))
    order = draw(st.permutations(range(n)))
    successors: list[list[int]] = [[] for _ in range(n)]
    for x in range(n):
        for y in range(x + 1, n):
            if draw(st.integers(0, 2)) == 0 or (y == x + 1 and draw(st.booleans())):
                successors[order[x]].append(order[y])
    return tuple(tuple(row) for row in successors)


def columns(n: int, most: int = 9) -> st.SearchStrategy[tuple[int, ...]]:
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
