"""Where no plan fits the devices' memory: values are computed again; if that does not help, it says so."""

from __future__ import annotations

from dataclasses import replace

from raddle.errors import InputError
from raddle.program.lower import lower
from raddle.searches.attempts import reasons
from raddle.searches.auto.candidates import Candidate, Judge
from raddle.simulation.memory.lasting import state_bytes

RECOMPUTE = (2, 4, 8, 16)


def squeezed(judge: Judge, ranked: list[Candidate], groups: int) -> Candidate:
    """The fastest that fits of those that need least, with values computed again in the backward.

    There are at most as many blocks as groups. Raises InputError where nothing fits even so.
    """
    ranked = [c for c in ranked if judge.simulate(c)]
    if not ranked:
        raise InputError(
            f"auto found no plan for '{judge.graph.name}' at batch {judge.graph.batch} on "
            f"'{judge.cluster.name}': {reasons(judge.attempts.failures)}."
        )
    small = sorted(ranked, key=lambda c: max(c.peaks))[:3]
    chosen = list({id(c): c for c in [*ranked[:2], *small]}.values())
    best: Candidate | None = None
    for c in chosen:
        for recompute in RECOMPUTE:
            if recompute > groups:
                break
            new = replace(c, recompute=recompute, step=None, name=f"{c.name}, recomputed")
            if not judge.simulate(new):
                continue
            small.append(new)
            if new.fits and (best is None or new.seconds < best.seconds):
                best = new
    if best is None:
        raise InputError(too_large(judge, min(small, key=lambda c: max(c.peaks))))
    return best


def too_large(judge: Judge, least: Candidate) -> str:
    """By how much the smallest plan does not fit, and what would help."""
    over = max(
        range(len(least.peaks)), key=lambda d: least.peaks[d] - judge.cluster.devices[d].memory
    )
    peak, room = least.peaks[over], judge.cluster.devices[over].memory
    program = lower(judge.graph, judge.plan(least.tiles, least.recompute))
    fixed = int(state_bytes(program)[over])  # whatever the batch
    batch = int(judge.graph.batch * (room - fixed) / max(1, peak - fixed)) if room > fixed else 0
    helps = (
        f"a batch of about {batch} would fit"
        if batch >= 1
        else f"a smaller batch would not fit, but devices of {_size(peak)} or more of them would"
    )
    return (
        f"no plan that was found for '{judge.graph.name}' at batch {judge.graph.batch} fits "
        f"'{judge.cluster.name}': the smallest ({least.name}) needs {_size(peak)} on device {over}, "
        f"which has {_size(room)}; {helps}."
    )


def _size(nbytes: int) -> str:
    unit, name = (2**30, "GiB") if nbytes >= 2**30 else (2**20, "MiB")
    return f"{nbytes / unit:.3g} {name}"
