"""Rounds of annealing from several starts, within a budget of time.

The first round is short and gives the scale of temperatures. Rounds alternate between all axes and samples
and filters alone, which are the best for most layers; every third one goes on from the best that is known.
"""

# p: part

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter

import numpy as np

from raddle.searches.hypergraph.mixed_annealing import CoolingSchedule, anneal
from raddle.searches.hypergraph.mixed_blocks import MixedBlocks
from raddle.searches.hypergraph.mixed_model import Array, MixedModel
from raddle.searches.hypergraph.mixed_states import State, part_work
from raddle.searches.hypergraph.mixed_volume import volume
from raddle.searches.settings import Clock, OnProgress

ROUNDS = 6  # of a budget
FIRST, LONGEST = (
    20_000,
    10_000,
)  # steps of the first round; of others, by block and root of the parts
# As multiples of a part's volume in the best partition:
HOT, WARM, COLD = 0.8, 0.16, 0.002  # temperatures
PRICE = 120.0  # of as much work as there is, beyond the balance


def rounds(
    blocks: MixedBlocks,
    m: MixedModel,
    most: Array,
    starts: Mapping[str, State],
    clock: Clock,
    seed: int,
    heard: OnProgress,
) -> Iterator[tuple[str, State]]:
    """What each round found, by the name of its start; all are in balance."""
    axes = [np.ones(m.letter.shape, np.bool_), _axes(blocks, m, "nc")]
    names = list(starts)
    best, best_volume = names[0], _reference(m, most, starts)
    known = {name: state.copy() for name, state in starts.items()}
    best_state = known[best]
    steps, number = FIRST, 0
    while number == 0 or not clock.expired:
        goes_on = number % 3 == 2
        name = best if goes_on else names[number % len(names)]
        state = (best_state if goes_on else known[name]).copy()
        begun, scale = perf_counter(), best_volume / len(most)
        hot = WARM if goes_on else HOT
        schedule = CoolingSchedule(steps, hot * scale, COLD * scale, PRICE * scale / m.work.sum())
        found = anneal(
            m, state.axis, state.x, most, axes[number % 2], schedule, seed * 1000 + number
        )
        rate = steps / max(1e-6, perf_counter() - begun)
        if found < np.inf:
            if found < best_volume:
                best, best_volume, best_state = name, found, state.copy()
            yield name, state
        heard(
            {
                "step": f"from {name}, best {best_volume / 2**20:.4g} MiB",
                "done": min(clock.seconds, clock.budget),
                "of": clock.budget,
            }
        )
        number += 1
        left = max(0.0, clock.budget - clock.seconds)
        longest = LONGEST * len(blocks.blocks) * len(most) ** 0.5
        steps = int(min(longest, max(FIRST, rate * min(left, clock.budget / ROUNDS))))


def _reference(m: MixedModel, most: Array, starts: Mapping[str, State]) -> float:
    """The least volume of a start that is in balance, or the largest of all."""
    volumes = {name: volume(m, *state) for name, state in starts.items()}
    fair = [
        volumes[name]
        for name, state in starts.items()
        if bool((np.array(part_work(m, state)) <= most * (1 + 1e-9)).all())
    ]
    return max(1.0, min(fair) if fair else max(volumes.values()))


def _axes(blocks: MixedBlocks, m: MixedModel, letters: str) -> Array:
    found = np.zeros(m.letter.shape, np.bool_)
    for b, block in enumerate(blocks.blocks):
        for a, letter in enumerate(block.axes):
            found[b, a] = letter in letters
    return found
