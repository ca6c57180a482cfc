"""Parses quantities of cluster files, as "16 GiB", "100 Gbit/s", "5 us", "15.7 TFLOP/s" or plain 12.5e9."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, Overflow

# Two groups: a number, and the unit after it, which may be missing.
_NUMBER = re.compile(
    r"\s*([+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.DOTALL
)

# Factors by prefix. They are Decimal, so that "5 us" becomes exactly the float 5e-6: fingerprints (hashes)
# of clusters depend on it.
_DECIMAL = {p: Decimal(1000) ** i for i, p in enumerate(("", "k", "M", "G", "T", "P"))}
_BINARY = {p: Decimal(1024) ** i for i, p in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)}

_SIZES = {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_BITS = {
    f"{prefix}{bit}": factor / 8
    for prefix, factor in _DECIMAL.items()
    for bit in ("bit/s", "b/s", "bps")  # with a small b: bits; units of bytes have a capital B
}


@dataclass(frozen=True)
class Quantity:
    """A kind of quantity: its base unit, the units that a user may write, and the range of its values."""

    unit: str  # the base unit, in which `parse` gives the result
    units: Mapping[str, Decimal]  # each unit that a user may write -> its value in base units
    example: str  # for error messages
    allows_zero: bool = False
    minimum: float = 0.0  # the smallest value other than 0
    maximum: float = math.inf


SIZE = Quantity("bytes", _SIZES, "16 GiB", maximum=2.0**60)
SIZE_OR_ZERO = Quantity("bytes", _SIZES, "64 MiB", allows_zero=True, maximum=2.0**60)
RATE = Quantity(
    "bytes/s",
    {**{f"{unit}/s": f for unit, f in _SIZES.items()}, **_BITS},
    "25 GB/s",
    minimum=1.0,
    maximum=1e18,
)
TIME = Quantity(
    "seconds",
    {
        unit: Decimal(1000) ** -i
        # Unicode has two signs for micro: U+00B5 and the Greek letter, U+03BC
        for unit, i in {"s": 0, "ms": 1, "us": 2, "µs": 2, "μs": 2, "ns": 3}.items()
    },
    "5 us",
    allows_zero=True,
    maximum=1e4,
)
SPEED = Quantity(
    "FLOP/s",
    {f"{prefix}{flop}": f for prefix, f in _DECIMAL.items() for flop in ("FLOP/s", "FLOPS")},
    "15 TFLOP/s",
    minimum=1.0,
    maximum=1e24,
)
FRACTION = Quantity("", {"%": Decimal("0.01")}, "0.6", minimum=1e-4, maximum=1.0)
# An efficiency may be up to 4, as FLOPs are counted by the definition of an operator: Winograd's algorithm,
# F(4 x 4, 3 x 3), needs 4 x fewer multiplications for a convolution, so it seems to run above the peak.
EFFICIENCY_SHARE = Quantity("", {"%": Decimal("0.01")}, "0.6", minimum=1e-4, maximum=4.0)
SHARE_OR_ZERO = Quantity(
    "", {"%": Decimal("0.01")}, "0.1", allows_zero=True, minimum=1e-9, maximum=1.0
)
MULTIPLE = Quantity("", {"%": Decimal("0.01")}, "1", allows_zero=True, maximum=1e4)


def parse(value: object, quantity: Quantity) -> float:
    """Converts a number, or a text with a unit, to base units; a ValueError says what to write instead."""
    number = _number(value, quantity)
    if not math.isfinite(number) or number < 0 or (number == 0 and not quantity.allows_zero):
        allowed = "a number from 0 on" if quantity.allows_zero else "a positive number"
        raise ValueError(f"write {allowed}{_of_unit(quantity)}, as {quantity.example}")
    if number and not quantity.minimum <= number <= quantity.maximum:
        what = "a share" if quantity in (FRACTION, EFFICIENCY_SHARE) else "a number"
        between = f"from {quantity.minimum:g} to {quantity.maximum:g}"
        raise ValueError(f"write {what}{_of_unit(quantity)} {between}, as {quantity.example}")
    return number


def _number(value: object, quantity: Quantity) -> float:
    """Converts a number, or a text with a unit, to base units, without a check of its range."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"write a number{_of_unit(quantity)}, as {quantity.example}")
    if not isinstance(value, str):
        try:
            return float(value)
        except OverflowError:  # an integer of more than 308 digits
            return math.inf
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise ValueError(f"write a number{_of_unit(quantity)}, as {quantity.example}")
    digits, unit = match.groups()
    if unit and unit not in quantity.units:
        # Not all units, so that the error stays short.
        examples = [unit for unit in quantity.units if unit[:1] not in "TP" and "bps" not in unit]
        raise ValueError(f"the unit {unit!r} is none of {', '.join(examples)}")
    if not unit:
        return float(digits)
    try:
        return float(Decimal(digits) * quantity.units[unit])
    except (
        Overflow,
        InvalidOperation,
    ):  # an exponent of a million, or one that Decimal cannot hold
        return float(digits)  # infinite or 0: no unit brings it back into range


def _of_unit(quantity: Quantity) -> str:
    """Returns the base unit as part of a sentence, as " of bytes", or "" if there is no unit."""
    return f" of {quantity.unit}" if quantity.unit else ""
