"""Times the sides of a case in turns, on a GPU or, for a trial with tiny models, on a CPU.

A side is one way to train. In a round every side makes some steps in a row, as training does: only after
the last one the host waits for the GPU. The order of the sides changes from round to round.
On a CPU there is no memory to count, and no wait for a GPU to find.
"""

from __future__ import annotations

import os
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

Step = Callable[[], object]
WARMUP = 4  # steps of each side before the timed ones: they compile
IN_A_ROW = 5  # steps of a side in a round


class Prepared(NamedTuple):
    """The sides of a case that are ready to be timed, and what is known of the others."""

    steps: dict[str, Step]
    state_bytes: dict[str, int]  # of parameters, gradients and optimizer states
    first_steps_s: dict[str, float]  # seconds of the first steps, which compile
    failed: dict[str, str]


def place() -> str:
    """Return the torch device of this bench: the GPU, or the CPU where there is none."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def prepare(makers: Mapping[str, Callable[[], Step]]) -> Prepared:
    """Make every side and run its first steps. A side that raises is in `failed`."""
    prepared = Prepared({}, {}, {}, {})
    for side, make in makers.items():
        before, start = _allocated(), time.perf_counter()
        try:
            step = make()
            for _ in range(WARMUP):
                step()
            synchronize()
            prepared.steps[side] = step
        except Exception as error:
            prepared.failed[side] = f"{type(error).__name__}: {str(error)[:300]}"
        _empty_cache()
        prepared.first_steps_s[side] = round(time.perf_counter() - start, 1)
        prepared.state_bytes[side] = _allocated() - before
    return prepared


def measure(prepared: Prepared, rounds: int) -> dict[str, Any]:
    """Time the sides in turns; return ms a step, peaks of memory and waits for the GPU."""
    steps = prepared.steps
    times: dict[str, list[float]] = {side: [] for side in steps}
    peaks: dict[str, float] = {}
    for number in range(-3, rounds):  # rounds -3 to -1 are not recorded
        for side in list(steps) if number % 2 else list(steps)[::-1]:
            synchronize()
            before, start = _reset_peak(), time.perf_counter()
            for _ in range(IN_A_ROW):
                steps[side]()
            synchronize()
            if number >= 0:
                times[side].append(1e3 * (time.perf_counter() - start) / IN_A_ROW)
                # The memory of this side alone: its states, and the bytes that a step adds.
                peak = _peak() - before + prepared.state_bytes[side]
                peaks[side] = max(peaks.get(side, 0.0), peak / 2**20)
    return {
        "ms": {side: round(statistics.median(t), 3) for side, t in times.items()},
        "quartiles": {
            side: [round(q, 3) for q in statistics.quantiles(t, n=4)[::2]]
            for side, t in times.items()
        },
        "peak_mib": {side: round(peak) for side, peak in peaks.items()},
        "first_steps_s": prepared.first_steps_s,
        "host_waits": {side: host_waits(step) for side, step in steps.items() if "raddle" in side},
        "recompiles": {
            side: recompiles(step) for side, step in steps.items() if "compiled" in side
        },
        "failed": prepared.failed,
    }


def host_waits(step: Step) -> str:
    """Return the file and line where a step waits for the GPU; "" if it never waits."""
    if not torch.cuda.is_available():
        return ""
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.line}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def recompiles(step: Step) -> str:
    """Return why another step compiles something again; "" if it does not."""
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            step()
    except RuntimeError as error:
        return str(error)[:300]
    return ""


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _empty_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _reset_peak() -> int:
    """Reset the peak of memory; return the bytes that are allocated now."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    return _allocated()


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
