"""Tries activation checkpointing if no plan of `auto` fits the devices' memory.

If that does not help either, an error says how much memory is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from raddle.errors import InputError, OutOfTime
from raddle.program.lower import lower
from raddle.searches.attempts import reasons
from raddle.searches.auto.candidates import Candidate, CandidateSimulator
from raddle.simulation.memory.persistent import state_bytes

BLOCK_COUNTS = (2, 4, 8, 16)  # numbers of blocks (recomputation.py) to try


def recompute_to_fit(
    simulator: CandidateSimulator, ranked: Sequence[Candidate], groups: int
) -> Candidate:
    """Returns the fastest candidate that fits memory when activations are recomputed in the backward.

    The two fastest candidates and the three with the lowest peak memory are tried. ranked: candidates, the
    fastest first. groups: number of groups of the graph, which is the largest number of blocks. Raises
    InputError if none fits. When the time of the search is used up, the best so far is returned; OutOfTime
    is raised if there is none.
    """
    simulated: list[Candidate] = []
    with suppress(OutOfTime):
        for c in ranked:
            if simulator.simulate(c):
                simulated.append(c)
    if not simulated and any(not c.failed for c in ranked):
        raise OutOfTime("no candidate could be simulated")
    ranked = simulated
    if not ranked:
        raise InputError(
            f"auto found no plan for '{simulator.graph.name}' at batch {simulator.graph.batch} on "
            f"'{simulator.cluster.name}': {reasons(simulator.attempts.failures)}."
        )
    smallest = sorted(ranked, key=lambda c: max(c.peaks))[:3]
    to_recompute = list({id(c): c for c in [*ranked[:2], *smallest]}.values())
    best = min((c for c in ranked if c.fits), key=lambda c: c.simulated_seconds, default=None)
    variants = (
        replace(c, recompute=count, step_seconds=None, name=f"{c.name}, recomputed")
        for c in to_recompute
        for count in BLOCK_COUNTS
        if count <= groups
    )
    try:
        for recomputed in variants:
            if not simulator.simulate(recomputed):
                continue
            smallest.append(recomputed)
            if recomputed.fits and (
                best is None or recomputed.simulated_seconds < best.simulated_seconds
            ):
                best = recomputed
    except OutOfTime:
        if best is None:
            raise
    if best is None:
        raise InputError(too_large_message(simulator, min(smallest, key=lambda c: max(c.peaks))))
    return best


def too_large_message(simulator: CandidateSimulator, least: Candidate) -> str:
    """Returns the error sentence: by how much the smallest plan does not fit, and what would help.

    least: the smallest plan, which is the candidate with the lowest peak memory.
    """
    device = max(
        range(len(least.peaks)), key=lambda d: least.peaks[d] - simulator.cluster.devices[d].memory
    )
    peak, capacity = least.peaks[device], simulator.cluster.devices[device].memory
    program = lower(simulator.graph, simulator.plan(least.tiles, least.recompute, least.sync))
    state = int(state_bytes(program)[device])  # bytes that do not depend on the batch
    # The largest batch that fits: memory beyond `state` is in proportion to the batch.
    batch = (
        int(simulator.graph.batch * (capacity - state) / max(1, peak - state))
        if capacity > state
        else 0
    )
    remedy = (
        f"a batch of about {batch} would fit"
        if batch >= 1
        else f"a smaller batch would not fit: use devices with {_size(peak)} of memory, or more devices"
    )
    return (
        f"no plan that was found for '{simulator.graph.name}' at batch {simulator.graph.batch} fits "
        f"'{simulator.cluster.name}': the smallest ({least.name}) needs {_size(peak)} on device {device}, "
        f"which has {_size(capacity)}; {remedy}."
    )


def _size(nbytes: int) -> str:
    """Returns a number of bytes as text, in GiB or MiB."""
    unit, name = (2**30, "GiB") if nbytes >= 2**30 else (2**20, "MiB")
    return f"{nbytes / unit:.3g} {name}"
