"""Sentences and cells that several parts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GIB, MIB = 2**30, 2**20


def by_device(peaks: Sequence[int], unit: int) -> str:
    """1234, 567 bytes in MiB -> "0.00 / 0.00"; as many digits as are worth reading."""
    return " / ".join(size(peak, unit) for peak in peaks)


def size(nbytes: float, unit: int) -> str:
    value = nbytes / unit
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def times(value: float, base: float) -> str:
    """How many times another, in a sentence."""
    return f"{value / base:.2f} x"


def best(figures: Mapping[str, float]) -> str:
    """The name of the largest."""
    return max(figures, key=figures.__getitem__)


def gems_sentence(where: str, rates: Mapping[str, float], peaks: Mapping[str, float]) -> str:
    """Images a second and memory of MASTER beside those it is to be compared with, from the figures."""
    gems, name = "GEMS MASTER", best(rates)
    if gems not in rates:
        return ""
    words = [
        f"{times(rates[gems], rates[base])} the images a second of {base} at "
        f"{times(peaks[gems], peaks[base])} its peak memory"
        for base in ("model parallel", "GPipe", "1F1B", "spatial by image")
        if base in rates
    ]
    fastest = f"The fastest is {name}, {times(rates[name], rates[gems])} GEMS MASTER."
    return f"{where}: GEMS MASTER has {', '.join(words)}. {fastest}"
