"""Other configurations of one group, one after the other, while everything else stays as it is."""

# g: group; d: device

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from raddle.costs.memory import peak_bytes
from raddle.errors import InputError
from raddle.evaluation.evaluator import Evaluator
from raddle.explanation.whole import average, bytes_by_purpose
from raddle.plan.notation import write_tiling
from raddle.plan.pipelining import flat
from raddle.plan.plan import Plan
from raddle.plan.tiling import Tiling
from raddle.program.lower import lower
from raddle.searches.configurations import Configuration, tiles
from raddle.searches.placing import Tiles
from raddle.searches.planspace import PlanSpace
from raddle.simulation.timeline import Timeline, simulate

NEXT_BEST = 5  # alternatives that are shown
MOST_ALTERNATIVES = 300  # that are timed


class Reading(NamedTuple):
    """What the evaluator says of the tiles that it holds."""

    time: int
    compute: int  # of the busiest device
    link: int  # messages on the busiest link; sums of gradients are not among them
    held: np.ndarray  # estimated bytes by device


class Timed(NamedTuple):
    """Another configuration, the tiles that it changes, and what the evaluator says."""

    configuration: Configuration
    changes: Tiles
    reading: Reading


class Held:
    """A plan as the evaluator holds it, to be changed group by group."""

    def __init__(self, space: PlanSpace, plan: Plan, judged: Timeline) -> None:
        self.space = space
        # What the evaluator does not know is left out of what is lowered, too.
        self.plan = replace(
            flat(plan), microbatches=1, recompute=(), split_backward=False, sums={}, steps=1
        )
        settings = space.settings
        self.evaluator = Evaluator(
            space.graph, space.cluster, plan.tiles, bucket=plan.bucket, profile=settings.profile,
            **settings.plan,
        )  # fmt: skip
        self.base = self.read()
        self.step_ms = 1e3 * judged.step_seconds
        # of an estimate to a peak
        self.scale = max(peak_bytes(judged)) / max(1, int(self.base.held.max()))

    def read(self) -> Reading:
        time = self.evaluator.time()
        assert time is not None
        load, count = self.evaluator.load, self.space.count
        link = int(load[count:].max()) if len(load) > count else 0
        return Reading(time, int(load[:count].max()), link, self.evaluator.memory.copy())


class Alternatives:
    """Other configurations of one group, with everything else as in the plan."""

    def __init__(self, held: Held, g: int, *, brief: bool = False) -> None:
        self.held, self.space, self.plan = held, held.space, held.plan
        self.g, self.group = g, held.space.groups[g]
        self.anchor = self.group.members[0].op
        self.brief = brief  # says nothing that takes a simulation of its own
        self.refused: dict[str, list[Configuration]] = {}
        self.large: list[Timed] = []

    def explained(self) -> dict[str, Any]:
        wanted = configurations(self.space, self.g, self.plan.tiles)
        timed = self._timed(wanted[:MOST_ALTERNATIVES])
        timed.sort(key=lambda t: t.reading.time)
        return {
            "step_ms": self.held.step_ms,
            "base": self._figures(self.held.base, self.plan.tiles),
            "alternatives": [self._row(t) for t in timed[:NEXT_BEST]],
            "timed": len(timed),
            "faster": sum(t.reading.time < self.held.base.time for t in timed),
            "excluded": {
                "refused": [
                    {"reason": reason, "count": len(own), "example": self._text(own[0])}
                    for reason, own in self.refused.items()
                ],
                "memory": self._too_large(),
                "untimed": max(0, len(wanted) - MOST_ALTERNATIVES),
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
            try:
                undo = self.held.evaluator.move(changes)
            except InputError as error:
                self.refused.setdefault(str(error), []).append(configuration)
                continue
            own = Timed(configuration, changes, self.held.read())
            self.held.evaluator.restore(undo)
            fits = (self.held.scale * own.reading.held <= memory).all()
            (found if fits else self.large).append(own)
        return found

    def _figures(self, reading: Reading, own: Mapping[str, Tiling]) -> dict[str, Any]:
        found = {
            "step_ms": reading.time / 1e6,
            "compute_ms": reading.compute / 1e6,
            "link_ms": reading.link / 1e6,
            "memory_bytes": round(self.held.scale * int(reading.held.max())),
        }
        if self.brief:
            return found
        program = lower(self.space.graph, replace(self.plan, tiles=own))
        timeline = simulate(program, self.space.cluster, self.space.settings.profile)
        return {
            **found,
            "average": average(timeline.breakdown()),
            "bytes": bytes_by_purpose(program),
        }

    def _row(self, own: Timed) -> dict[str, Any]:
        difference = own.reading.time - self.held.base.time
        return {
            "tiles": self._text(own.configuration),
            **self._figures(own.reading, {**self.plan.tiles, **own.changes}),
            "difference_ms": difference / 1e6,
            "difference": difference / self.held.base.time,
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
                round(self.held.scale * int(t.reading.held.max())) for t in self.large
            ),
            "memory_bytes": min(device.memory for device in self.space.cluster.devices),
            "fastest": self._text(fastest.configuration),
            "difference_ms": (fastest.reading.time - self.held.base.time) / 1e6,
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
        new = space.translated(g, other, own) if own else None
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
