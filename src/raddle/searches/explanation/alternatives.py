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
from raddle.searches.explanation.plan_timers import PlanTimer, StepTiming
from raddle.searches.grids import Tiles
from raddle.searches.plan_space import PlanSpace
from raddle.searches.purposes import bytes_by_purpose

MAX_SHOWN = 5  # alternatives that are shown


class TimedAlternative(NamedTuple):
    """Another configuration, the tiles that it changes, and what a step takes with them."""

    configuration: Configuration
    changes: Tiles
    timing: StepTiming


class Alternatives:
    """Other configurations of one group, with everything else as in the plan.

    `brief` ones say nothing that takes a simulation besides; `enough` says when to time no more of them.
    """

    def __init__(
        self,
        space: PlanSpace,
        timer: PlanTimer,
        g: int,
        *,
        without_details: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.space, self.timer, self.plan = space, timer, timer.plan
        self.g, self.group = g, space.groups[g]
        self.anchor = self.group.members[0].op
        self.without_details, self.stop = without_details, stop
        self.untimed = 0
        self.refused: dict[str, list[Configuration]] = {}
        self.too_large: list[TimedAlternative] = []

    def explain(self) -> dict[str, Any]:
        timed = self._time_all(candidate_configurations(self.space, self.g, self.plan.tiles))
        timed.sort(key=lambda t: t.timing.step_ns)
        return {
            "simulated": self.timer.why_simulated,
            "overlapping": is_asynchronous(self.plan),
            "base": self._metrics(self.timer.base, {}),
            "alternatives": [self._row(t) for t in timed[:MAX_SHOWN]],
            "timed": len(timed),
            "faster": sum(t.timing.step_ns < self.timer.base.step_ns for t in timed),
            "excluded": {
                "refused": [
                    {
                        "reason": reason,
                        "count": len(refused),
                        "example": self._tiles_text(refused[0]),
                    }
                    for reason, refused in self.refused.items()
                ],
                "memory": self._too_large_summary(),
                "untimed": self.untimed,
            },
        }

    def _time_all(self, candidates: Iterable[Configuration]) -> list[TimedAlternative]:
        """Those that are a plan and fit, each set of tiles once."""
        timed: list[TimedAlternative] = []
        seen: set[tuple[Tiling, ...]] = set()
        memory = np.array([device.memory for device in self.space.cluster.devices])
        for configuration in candidates:
            changes = self.space.changes(self.plan.tiles, {self.g: configuration})
            key = tuple(changes.values())
            if key in seen or all(self.plan.tiles[n] == tiling for n, tiling in changes.items()):
                continue
            seen.add(key)
            if len(seen) > self.timer.max_alternatives or (timed and self.stop()):
                self.untimed += 1
                continue
            try:
                alternative = TimedAlternative(
                    configuration, changes, self.timer.time_step(changes)
                )
            except InputError as error:
                self.refused.setdefault(str(error), []).append(configuration)
                continue
            fits = (self.timer.memory_scale * alternative.timing.held_bytes <= memory).all()
            (timed if fits else self.too_large).append(alternative)
        return timed

    def _metrics(self, timing: StepTiming, changes: Tiles) -> dict[str, Any]:
        metrics = {
            "step_ms": timing.step_ns / 1e6,
            "compute_ms": timing.compute_ns / 1e6,
            "link_ms": timing.link_ns / 1e6,
            "memory_bytes": round(self.timer.memory_scale * int(timing.held_bytes.max())),
        }
        if self.without_details:
            return metrics
        timeline = self.timer.timeline(changes)
        return {
            **metrics,
            "average": average(timeline.breakdown()),
            "bytes": bytes_by_purpose(timeline.program),
        }

    def _row(self, alternative: TimedAlternative) -> dict[str, Any]:
        base = self.timer.base.step_ns
        difference = alternative.timing.step_ns - base
        return {
            "tiles": self._tiles_text(alternative.configuration),
            **self._metrics(alternative.timing, alternative.changes),
            "difference_ms": difference / 1e6,
            "difference": difference / base,
            "partial": self._splits_sums(alternative.configuration),
        }

    def _splits_sums(self, configuration: Configuration) -> bool:
        """Whether sums are split, which optcnn does with --reduction alone."""
        pairs = zip(self.group.letters, configuration.degrees, strict=True)
        return any(parts > 1 and letter in self.group.reduced for letter, parts in pairs)

    def _tiles_text(self, configuration: Configuration) -> str:
        return write_tiling(self.anchor, tiles(self.group, configuration)[self.anchor.name])

    def _too_large_summary(self) -> dict[str, Any] | None:
        """How much the smallest of those that do not fit needs, and what the fastest would take."""
        if not self.too_large:
            return None
        fastest = min(self.too_large, key=lambda t: t.timing.step_ns)
        return {
            "count": len(self.too_large),
            "least_bytes": min(
                round(self.timer.memory_scale * int(t.timing.held_bytes.max()))
                for t in self.too_large
            ),
            "memory_bytes": min(device.memory for device in self.space.cluster.devices),
            "fastest": self._tiles_text(fastest.configuration),
            "difference_ms": (fastest.timing.step_ns - self.timer.base.step_ns) / 1e6,
        }


def candidate_configurations(
    space: PlanSpace, g: int, current: Mapping[str, Tiling]
) -> list[Configuration]:
    """What a group could be set to: its neighbours' configurations, and all powers of two.

    They lie on the devices that the group is on, or on the first ones where those are too few. Those of
    about as many parts as now come first, and those that split sums last.
    """
    current_configuration, group = space.configuration_of(g, current), space.groups[g]
    devices = (
        current_configuration.devices
        if current_configuration
        else tuple(dict.fromkeys(current[group.name].devices))
    )
    candidates: dict[Configuration, None] = {}
    for other in space.neighbours[g]:
        neighbour_configuration = space.configuration_of(other, current)
        translated = (
            space.translate(g, other, neighbour_configuration) if neighbour_configuration else None
        )
        if translated is not None:
            candidates[translated] = None

    def preference(parts: Sequence[int]) -> tuple[bool, float]:
        splits_sum = any(
            n > 1 and x in group.reduced for x, n in zip(group.letters, parts, strict=True)
        )
        return splits_sum, abs(math.log2(math.prod(parts) / len(devices)))

    for parts in sorted(space.degrees(g), key=preference):
        candidates[Configuration(parts, _first_devices(devices, math.prod(parts)))] = None
    return list(candidates)


def _first_devices(devices: tuple[int, ...], count: int) -> tuple[int, ...]:
    if count == len(devices):
        return devices
    distinct = tuple(dict.fromkeys(devices))
    return distinct[:count] if count <= len(distinct) else tuple(range(count))
