"""Writes numbers for people: about three digits and a unit."""

from __future__ import annotations

from collections.abc import Sequence


def count_text(count: float) -> str:
    """Return a count as text: 138357544 -> "138 M"."""
    return _scaled(count, 1000, ("", "k", "M", "G", "T", "P"))


def flops_text(flops: float) -> str:
    """Return a number of FLOPs as text: 30_960_000_000 -> "31.0 GFLOP"."""
    return _scaled(flops, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def bytes_text(nbytes: float) -> str:
    """Return a number of bytes as text: 1_572_864 -> "1.50 MiB"."""
    return _scaled(nbytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def rate_text(rate: float) -> str:
    """Return bytes per second as text, in powers of 1000, as in data sheets: 12.5e9 -> "12.5 GB/s"."""
    return _scaled(rate, 1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"))


def speed_text(speed: float) -> str:
    """Return FLOPs per second as text: 10.6e12 -> "10.6 TFLOP/s"."""
    return f"{flops_text(speed)}/s"


def seconds_text(seconds: float) -> str:
    """Return seconds as text: 5e-6 -> "5.00 us"."""
    return _scaled(seconds * 1e9, 1000, ("ns", "us", "ms", "s"))


def plural(count: int, noun: str) -> str:
    """Return a count and its noun: "1 rank", "2 ranks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    """Return the value in the largest unit in which it is at least 1, with three digits.

    In the smallest unit, units[0], the value is written as a whole number. base: ratio of a unit to the one
    before it in `units`.
    """
    scaled, unit = float(value), 0
    while round(scaled) >= base and unit < len(units) - 1:
        scaled, unit = scaled / base, unit + 1
    digits = 0 if unit == 0 or scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:.{digits}f} {units[unit]}".rstrip()
