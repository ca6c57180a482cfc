"""Formats numbers and sentences that several parts of the experiment share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GIB, MIB = 2**30, 2**20


def sizes_text(peaks: Sequence[int], unit: int) -> str:
    """Returns the peak bytes of each device in `unit`, as "12 / 3.4": no decimals from 10 on."""
    return " / ".join(format_size(peak, unit) for peak in peaks)


def format_size(nbytes: float, unit: int) -> str:
    """Returns bytes in `unit` (GIB or MIB), without the unit's name: one decimal below 10, else none."""
    value = nbytes / unit
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def ratio_text(value: float, base: float) -> str:
    """Returns a ratio for a sentence: "1.23 x"."""
    return f"{value / base:.2f} x"


def largest_name(figures: Mapping[str, float]) -> str:
    """Returns the name with the largest value."""
    return max(figures, key=figures.__getitem__)


ByMethod = Mapping[str, float]  # a number for each method
GEMS = "GEMS MASTER"  # the variant of GEMS with several pairs of micro-batches (methods.py)


def gems_sentence(where: str, cases: Sequence[tuple[ByMethod, ByMethod]]) -> str:
    """Returns sentences about throughput and memory of GEMS MASTER relative to other methods.

    where: network and sizes, with which the sentence begins. cases: for each size, images per second and
    peak bytes by method.
    """
    words = []
    # names of methods (methods.py); "spatial by image": images one after the other, each split into tiles
    for base in ("model parallel", "GPipe", "1F1B", "spatial by image"):
        comparable = [(rates, peaks) for rates, peaks in cases if base in rates and GEMS in rates]
        if comparable:
            speed = range_text([rates[GEMS] / rates[base] for rates, _ in comparable])
            memory = range_text([peaks[GEMS] / peaks[base] for _, peaks in comparable])
            words.append(f"{speed} x the images a second of {base} at {memory} x its peak memory")
    names = list(dict.fromkeys(largest_name(rates) for rates, _ in cases))
    ahead = range_text([max(rates.values()) / rates[GEMS] for rates, _ in cases if GEMS in rates])
    fastest = f"The fastest is {' or '.join(names)}, {ahead} x GEMS MASTER."
    return f"{where}: GEMS MASTER has {', '.join(words)}. {fastest}"


def range_text(values: Sequence[float]) -> str:
    """Returns the range of some values as text: 1.234, 2 -> "1.23 to 2.00"."""
    least, most = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == most else f"{least} to {most}"
