"""Times other splits of one group of operators, for `raddle explain` and the HTML report.

A group (searches/groups.py) is a set of operators that are split together; the first one is its *anchor*. A
configuration says into how many parts each dimension of the anchor is split (its *degrees*), and on which
devices. A `PlanSpace` has all groups of a graph and their possible configurations. Each alternative changes
the configuration of one group and leaves the other groups of the plan as they are.
"""

# g: number of the group in space.groups; n: number of parts; x: letter of a dimension

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

MAX_SHOWN = 5  # alternatives in the explanation


class TimedAlternative(NamedTuple):
    """Another configuration of the group, and the time of a step with it."""

    configuration: Configuration
    changes: Tiles  # tilings of the operators, by name, that differ from the plan
    timing: StepTiming


class Alternatives:
    """Times the alternatives of one group.

    without_details: leave out the metrics that need another simulation.
    stop: returns True when no more alternatives are to be timed.
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
        self.untimed = 0  # how many alternatives were not timed
        self.refused: dict[str, list[Configuration]] = {}  # impossible ones, by the reason
        self.too_large: list[TimedAlternative] = []  # those that do not fit in memory

    def explain(self) -> dict[str, Any]:
        """Time the alternatives and return the part of the explanation about them; see `explain_op`.

        `base`: the metrics of the plan itself; `timed`: how many alternatives were timed; `faster`: how
        many of these have a shorter step than the plan.
        """
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
        """Return the possible alternatives that fit in memory; equal tilings are timed once."""
        timed: list[TimedAlternative] = []
        seen: set[tuple[Tiling, ...]] = set()
        memory = np.array([device.memory for device in self.space.cluster.devices])
        for configuration in candidates:
            changes = self.space.changes(self.plan.tiles, {self.g: configuration})
            key = tuple(changes.values())
            if key in seen or all(
                self.plan.tiles[op_name] == tiling for op_name, tiling in changes.items()
            ):
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
            # memory_scale x held_bytes: peak memory (plan_timers.py)
            fits = (self.timer.memory_scale * alternative.timing.held_bytes <= memory).all()
            (timed if fits else self.too_large).append(alternative)
        return timed

    def _metrics(self, timing: StepTiming, changes: Tiles) -> dict[str, Any]:
        """Return times and memory of a step; with details also the average device and the bytes sent."""
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
        """Return the metrics of an alternative and its differences from the plan.

        `difference`: as a fraction of the plan's step time; `partial`: whether there are partial sums.
        """
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
        """Whether a summed dimension is split; the method optcnn does so only with --reduction."""
        pairs = zip(self.group.letters, configuration.degrees, strict=True)
        # reduced: the letters of summed dimensions.
        return any(parts > 1 and letter in self.group.reduced for letter, parts in pairs)

    def _tiles_text(self, configuration: Configuration) -> str:
        """Return the anchor's tiles in the notation of plans, such as "n/4 @0-3"."""
        return write_tiling(self.anchor, tiles(self.group, configuration)[self.anchor.name])

    def _too_large_summary(self) -> dict[str, Any] | None:
        """Return how many alternatives do not fit, the least memory they need, and the fastest of them.

        None if all fit.
        """
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
    """Return the configurations to try: those of neighbouring groups, and all powers of two as degrees.

    current: the tilings of the plan. A configuration uses the present devices of the group; if these are
    too few, the first devices of the cluster. Degrees with about as many parts as devices come first, and
    degrees that split a sum come last.
    """
    current_configuration, group = space.configuration_of(g, current), space.groups[g]
    devices = (
        current_configuration.devices
        if current_configuration
        else tuple(dict.fromkeys(current[group.name].devices))
    )
    candidates: dict[Configuration, None] = {}
    for other in space.neighbours[g]:  # the groups that g reads, and those that read g
        neighbour_configuration = space.configuration_of(other, current)
        # The same split for group g, letter by letter; None if g is too small for it.
        translated = (
            space.translate(g, other, neighbour_configuration) if neighbour_configuration else None
        )
        if translated is not None:
            candidates[translated] = None

    def preference(parts: Sequence[int]) -> tuple[bool, float]:
        """Return a sort key; parts: the number of parts for each letter of the group."""
        splits_sum = any(
            n > 1 and x in group.reduced for x, n in zip(group.letters, parts, strict=True)
        )
        return splits_sum, abs(math.log2(math.prod(parts) / len(devices)))

    for parts in sorted(space.degrees(g), key=preference):
        candidates[Configuration(parts, _first_devices(devices, math.prod(parts)))] = None
    return list(candidates)


def _first_devices(devices: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the first `count` of the devices; if they are too few, devices 0 to count - 1."""
    if count == len(devices):
        return devices
    distinct = tuple(dict.fromkeys(devices))
    return distinct[:count] if count <= len(distinct) else tuple(range(count))
