"""Reads pins: splits that the user fixes before the search, for all operators whose names match a pattern.

features.*=n/4            the samples in four parts, on devices 0 to 3
classifier.*=c/4          the channels in four parts, on devices 0 to 3
layer1.*=n/2 h/2 @4-7     samples and height in two parts each, on devices 4 to 7

A letter such as n, c or h names a dimension. A pin applies to the whole group of a matching operator
(groups.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from raddle.errors import InputError
from raddle.plans.notation import read_devices
from raddle.searches.configurations import Configuration
from raddle.searches.groups import Group

_SPLIT = re.compile(r"([a-z])/(\d{1,9})")


class Pin(NamedTuple):
    """A split, fixed by the user, for all operators whose names match a pattern."""

    pattern: str
    parts: tuple[tuple[str, int], ...]  # (letter, number of parts)
    devices: tuple[int, ...]  # empty: the first devices

    def __str__(self) -> str:
        splits = " ".join(f"{letter}/{count}" for letter, count in self.parts)
        return f"{self.pattern}={splits}"


def read_pin(text: str) -> Pin:
    """Returns the pin of a text such as `PATTERN=n/4 c/2 @0-7`.

    >>> read_pin("features.*=n/4")
    Pin(pattern='features.*', parts=(('n', 4),), devices=())
    """
    pattern, equal, split_text = text.partition("=")
    splits, at, device_text = split_text.partition("@")
    if not equal or not pattern.strip() or (not splits.strip() and not at):
        raise InputError(f"'{text}' is no pin: write a pattern and a split, as 'features.*=n/4'.")
    parts = []
    for word in splits.split():
        match = _SPLIT.fullmatch(word)
        if not match or int(match[2]) < 1:
            raise InputError(f"'{word}' in the pin '{text}' is no split: write n/4 or c/2.")
        parts.append((match[1], int(match[2])))
    if len({letter for letter, _ in parts}) < len(parts):
        raise InputError(f"the pin '{text}' splits a letter twice: write each letter once.")
    devices = read_devices(device_text) if at else ()
    part_count = math.prod(n for _, n in parts)
    if devices and len(devices) != part_count:
        raise InputError(
            f"the pin '{text}' has {part_count} parts on {len(devices)} devices: name one device for each."
        )
    return Pin(pattern.strip(), tuple(parts), devices)


def pinned_configurations(
    groups: Sequence[Group], pins: Sequence[Pin], device_count: int
) -> dict[int, Configuration]:
    """Returns the configuration of each pinned group, by index of the group; the last matching pin counts.

    Raises InputError for a pin that matches no operator, or that splits into too many parts.
    """
    configurations: dict[int, Configuration] = {}
    for pin in pins:
        matching = [g for g, group in enumerate(groups) if _matches(group, pin)]
        if not matching:
            names = ", ".join(group.name for group in list(groups)[:3])
            raise InputError(
                f"the pin '{pin}' matches no operator: some names of operators are {names}."
            )
        for g in matching:
            configurations[g] = _configuration(groups[g], pin, device_count)
    return configurations


def _matches(group: Group, pin: Pin) -> bool:
    return any(fnmatchcase(name, pin.pattern) for name in group.ops)


def _configuration(group: Group, pin: Pin, device_count: int) -> Configuration:
    """Returns the configuration that a pin gives to a group which it matches."""
    parts_of = dict(pin.parts)
    for letter, count in pin.parts:
        if letter not in group.letters:
            available = " ".join(group.letters) or "none"
            raise InputError(
                f"the pin '{pin}' splits {letter}, but '{group.name}' can be split along: {available}."
            )
        size = group.sizes[group.letters.index(letter)]
        if count > size:
            raise InputError(
                f"the pin '{pin}' cuts {letter} of '{group.name}' into {count} parts: {size} are the most."
            )
    total = math.prod(parts_of.values())
    devices = pin.devices or tuple(range(total))
    if total > device_count or max(devices) >= device_count:
        raise InputError(
            f"the pin '{pin}' needs {max(total, max(devices) + 1)} devices and the cluster has "
            f"{device_count}: use a larger cluster or fewer parts."
        )
    return Configuration(tuple(parts_of.get(letter, 1) for letter in group.letters), devices)
