"""Parses and writes the rates of links in the notation of `tc`: 1gbit, 100mbit, 2.5gbit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from raddle.clusters.units import Quantity, parse
from raddle.errors import InputError

_UNITS = {"gbit": 10**9, "mbit": 10**6, "kbit": 10**3, "bit": 1}
_RATE = Quantity("bits/s", {unit: Decimal(f) for unit, f in _UNITS.items()}, "1gbit")

# Limits in bits per second. tbf is the token bucket of `tc` by which a lab limits its links
# (namespaces.py). At the lower limit, the burst that tbf lets through (256 KiB) already takes 21 s. tbf
# queues as many bytes as the link sends in 50 ms: 625 MB at the upper limit. tbf counts these bytes in 32
# bits, so from 687 Gbit/s on (2**32 bytes in 50 ms) `tc` would make a much shorter queue without an error.
SLOWEST = 100 * 10**3
FASTEST = 100 * 10**9


def parse_rate(text: str) -> int:
    """Return bits per second: "100mbit" -> 100_000_000."""
    try:
        rate = parse(text.lower().removesuffix("/s"), _RATE)
    except ValueError as error:
        raise InputError(f"the rate '{text}' cannot be read: {error}.") from None
    if not SLOWEST <= rate <= FASTEST:
        raise InputError(
            f"a rate of {text} is out of range: "
            f"write one from {rate_text(SLOWEST)} to {rate_text(FASTEST)}."
        )
    return round(rate)


def rate_text(rate: float) -> str:
    """Return bits per second as text: 1_500_000_000 -> "1.5gbit"."""
    unit = next(unit for unit, factor in _UNITS.items() if rate >= factor or factor == 1)
    return f"{rate / _UNITS[unit]:g}{unit}"


def host_rates(hosts: int, rate: str, rates: Mapping[int, str]) -> list[int]:
    """Return the bits per second of each host: `rates[host]` or, if there is none, `rate`."""
    for host in rates:
        if host not in range(hosts):
            raise InputError(
                f"a rate is given for host {host}, but the hosts are 0 to {hosts - 1}: "
                "name one of them, or ask for more hosts."
            )
    return [parse_rate(rates.get(host, rate)) for host in range(hosts)]


def parse_rates(texts: Sequence[str]) -> dict[int, str]:
    """Parse options HOST=RATE: ["2=100mbit"] -> {2: "100mbit"}."""
    rates: dict[int, str] = {}
    for text in texts:
        host, equals, rate = text.partition("=")
        if not (equals and host.isascii() and host.isdigit()):
            raise InputError(f"'{text}' is not HOST=RATE: write 2=100mbit, say.")
        if int(host) in rates:
            raise InputError(f"host {int(host)} is given two rates: keep one of them.")
        rates[int(host)] = rate
    return rates
