"""Other configurations of one group, one after the other, while everything else stays as it is."""

# g: group; d: device

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from raddle.errors import InputError
from raddle.plans.notation import write_tiling
from raddle.plans.pipelining import is_asynchronous
from raddle.plans.tiling import Tiling
from raddle.searches.configurations import Configuration, tiles
from raddle.searches.explanation.explain_plan import average
from raddle.searches.explanation.timing import Reading, Timer
from raddle.searches.grids import Tiles
from raddle.searches.plan_space import PlanSpace
from raddle.searches.purposes import bytes_by_purpose

NEXT_BEST = 5  # alternatives that are shown


class Timed(NamedTuple):
    """Another configuration, the tiles that it changes, and what a step takes with them."""

    configuration: Configuration
    changes: Tiles
    reading: Reading


class Alternatives:
    """Other configurations of one group, with everything else as in the plan.

    `brief` ones say nothing that takes a simulation besides; `enough` says when to time no more of them.
    """

    def __init__(
        self,
        space: PlanSpace,
        timer: Timer,
        g: int,
        *,
        brief: bool = False,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.space, self.timer, self.plan = space, timer, timer.plan
        self.g, self.group = g, space.groups[g]
        self.anchor = self.group.members[0].op
        self.brief, self.enough = brief, enough
        self.untimed = 0
        self.refused: dict[str, list[Configuration]] = {}
        self.large: list[Timed] = []

    def explained(self) -> dict[str, Any]:
        timed = self._timed(configurations(self.space, self.g, self.plan.tiles))
        timed.sort(key=lambda t: t.reading.time)
        return {
            "simulated": self.timer.simulated,
            "overlapping": is_asynchronous(self.plan),
            "base": self._figures(self.timer.base, {}),
            "alternatives": [self._row(t) for t in timed[:NEXT_BEST]],
            "timed": len(timed),
            "faster": sum(t.reading.time < self.timer.base.time for t in timed),
            "excluded": {
                "refused": [
                    {"reason": reason, "count": len(own), "example": self._text(own[0])}
                    for reason, own in self.refused.items()
                ],
                "memory": self._too_large(),
                "untimed": self.untimed,
            },
        }

    def _timed(self, wanted: Iterable[Configuration]) -> list[Timed]:
        """Those that are a plan and fit, each set of tiles once."""
        found: list[Timed] = []
        seen: set[tuple[Tiling, ...]] = set()
        memory = np.array([device.memory for device in self.space.cluster.devices])
        for configuration in wanted:
            changes = self.space.changes(self.plan.tiles, {self.g: configuration})
            key = tuple(changes.values())
            if key in seen or all(self.plan.tiles[n] == own for n, own in changes.items()):
                continue
            seen.add(key)
            if len(seen) > self.timer.most or (found and self.enough()):
                self.untimed += 1
                continue
            try:
                own = Timed(configuration, changes, self.timer.read(changes))
            except InputError as error:
                self.refused.setdefault(str(error), []).append(configuration)
                continue
            fits = (self.timer.scale * own.reading.held <= memory).all()
            (found if fits else self.large).append(own)
        return found

    def _figures(self, reading: Reading, changes: Tiles) -> dict[str, Any]:
        found = {
            "step_ms": reading.time / 1e6,
            "compute_ms": reading.compute / 1e6,
            "link_ms": reading.link / 1e6,
            "memory_bytes": round(self.timer.scale * int(reading.held.max())),
        }
        if self.brief:
            return found
        timeline = self.timer.timeline(changes)
        return {
            **found,
            "average": average(timeline.breakdown()),
            "bytes": bytes_by_purpose(timeline.program),
        }

    def _row(self, own: Timed) -> dict[str, Any]:
        base = self.timer.base.time
        difference = own.reading.time - base
        return {
            "tiles": self._text(own.configuration),
            **self._figures(own.reading, own.changes),
            "difference_ms": difference / 1e6,
            "difference": difference / base,
            "partial": self._partial(own.configuration),
        }

    def _partial(self, configuration: Configuration) -> bool:
        """Whether sums are split, which optcnn does with --reduction alone."""
        pairs = zip(self.group.letters, configuration.degrees, strict=True)
        return any(parts > 1 and letter in self.group.reduced for letter, parts in pairs)

    def _text(self, configuration: Configuration) -> str:
        return write_tiling(self.anchor, tiles(self.group, configuration)[self.anchor.name])

    def _too_large(self) -> dict[str, Any] | None:
        """How much the smallest of those that do not fit needs, and what the fastest would take."""
        if not self.large:
            return None
        fastest = min(self.large, key=lambda t: t.reading.time)
        return {
            "count": len(self.large),
            "least_bytes": min(
                round(self.timer.scale * int(t.reading.held.max())) for t in self.large
            ),
            "memory_bytes": min(device.memory for device in self.space.cluster.devices),
            "fastest": self._text(fastest.configuration),
            "difference_ms": (fastest.reading.time - self.timer.base.time) / 1e6,
        }


def configurations(space: PlanSpace, g: int, now: Mapping[str, Tiling]) -> list[Configuration]:
    """What a group could be set to: its neighbours' configurations, and all powers of two.

    They lie on the devices that the group is on, or on the first ones where those are too few. Those of
    about as many parts as now come first, and those that split sums last.
    """
    given, group = space.configuration_of(g, now), space.groups[g]
    devices = given.devices if given else tuple(dict.fromkeys(now[group.name].devices))
    found: dict[Configuration, None] = {}
    for other in space.neighbours[g]:
        own = space.configuration_of(other, now)
        new = space.translate(g, other, own) if own else None
        if new is not None:
            found[new] = None

    def far(parts: Sequence[int]) -> tuple[bool, float]:
        summed = any(
            n > 1 and x in group.reduced for x, n in zip(group.letters, parts, strict=True)
        )
        return summed, abs(math.log2(math.prod(parts) / len(devices)))

    for parts in sorted(space.degrees(g), key=far):
        found[Configuration(parts, _first(devices, math.prod(parts)))] = None
    return list(found)


def _first(devices: tuple[int, ...], count: int) -> tuple[int, ...]:
    if count == len(devices):
        return devices
    distinct = tuple(dict.fromkeys(devices))
    return distinct[:count] if count <= len(distinct) else tuple(range(count))
