"""Anneals mixed partitions in rounds, from several starts, within a time budget.

A *mixed* partition splits each layer along an axis of its own: samples, filters, input channels, height or
width. A *block* is a layer with the operators that follow it; a *part* is a device's share
(mixed_blocks.py). A *state* says, for each block, its axis and the units (samples, filters, ...) of each
part. The *volume* is the bytes that cross parts in a step.

The first round is short; it measures how many steps annealing makes in a second. Every second round allows
only splits by sample and by filter, which are best for most layers; the others allow all axes. Every third
round continues from the best state so far.
"""

# b: block; a: axis; m: the cost model (mixed_model.py); x: units of the axis, by block and part

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from raddle.searches.hypergraph.mixed_annealing import CoolingSchedule, anneal
from raddle.searches.hypergraph.mixed_blocks import MixedBlocks
from raddle.searches.hypergraph.mixed_model import Array, MixedModel
from raddle.searches.hypergraph.mixed_states import MixedState, part_work
from raddle.searches.hypergraph.mixed_volume import volume
from raddle.searches.settings import OnProgress
from raddle.searches.stopwatch import Clock

ROUNDS = 6  # in a budget, at least
FIRST_STEPS = 20_000  # of the first round
MAX_STEPS = 10_000  # of a later round, per block and per square root of the number of parts
# The following four are multiples of the average volume of a part in the best partition so far.
# Temperatures: the first; the first of a round that continues from the best state; the last
HOT, WARM, COLD = 0.8, 0.16, 0.002
# Price of overload (work above the parts' maxima): what it would cost if all work were overload
PRICE = 120.0


def annealing_rounds(
    blocks: MixedBlocks,
    m: MixedModel,
    max_work: Array,
    starts: Mapping[str, MixedState],
    clock: Clock,
    seed: int,
    on_progress: OnProgress,
) -> Iterator[tuple[str, MixedState]]:
    """Yields the name of the start and the best state of each round that found a balanced state.

    max_work: by part; a state is balanced if no part has more.
    """
    # Masks of allowed axes: of rounds with even and with odd numbers
    axes = [np.ones(m.letter.shape, np.bool_), _allowed_axes(blocks, m, "nc")]
    names = list(starts)
    best_name, best_volume = _best_start(m, max_work, starts)
    states = {name: state.copy() for name, state in starts.items()}
    best_state = states[best_name]
    steps, number = FIRST_STEPS, 0
    while number == 0 or not clock.expired:
        from_best = number % 3 == 2
        name = best_name if from_best else names[number % len(names)]
        state = (best_state if from_best else states[name]).copy()
        started_at, part_volume = clock.seconds, best_volume / len(max_work)
        hot = WARM if from_best else HOT
        schedule = CoolingSchedule(
            steps, hot * part_volume, COLD * part_volume, PRICE * part_volume / m.work.sum()
        )
        new_volume = anneal(
            m, state.axis, state.x, max_work, axes[number % 2], schedule, seed * 1000 + number
        )
        steps_per_second = steps / max(1e-6, clock.seconds - started_at)
        if new_volume < np.inf:
            if new_volume < best_volume:
                best_name, best_volume, best_state = name, new_volume, state.copy()
            yield name, state
        on_progress(clock.progress(f"from {name}, best {best_volume / 2**20:.4g} MiB"))
        number += 1
        seconds_left = max(0.0, clock.budget - clock.seconds)
        max_steps = MAX_STEPS * len(blocks.blocks) * len(max_work) ** 0.5
        steps = int(
            min(
                max_steps,
                max(FIRST_STEPS, steps_per_second * min(seconds_left, clock.budget / ROUNDS)),
            )
        )


def _best_start(
    m: MixedModel, max_work: Array, starts: Mapping[str, MixedState]
) -> tuple[str, float]:
    """Returns the balanced start with the least volume, and its volume, which is at least 1.

    If no start is balanced: the one with the largest volume, so that the first balanced state that the
    rounds find is most likely the best so far.
    """
    volumes = {name: volume(m, *state) for name, state in starts.items()}
    balanced = [
        name
        for name, state in starts.items()
        if bool((np.array(part_work(m, state)) <= max_work * (1 + 1e-9)).all())
    ]
    name = (
        min(balanced, key=volumes.__getitem__)
        if balanced
        else max(volumes, key=volumes.__getitem__)
    )
    return name, max(1.0, volumes[name])


def _allowed_axes(blocks: MixedBlocks, m: MixedModel, letters: str) -> Array:
    """Returns a mask [block, axis] of the axes with one of the letters."""
    allowed = np.zeros(m.letter.shape, np.bool_)
    for b, block in enumerate(blocks.blocks):
        for a, letter in enumerate(block.axes):
            allowed[b, a] = letter in letters
    return allowed
