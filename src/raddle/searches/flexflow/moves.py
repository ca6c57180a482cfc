"""Moves of a search: the paper's uniform one, and guided ones beside it.

uniform      any group, any degrees, any devices (FlexFlow, arXiv 1807.05358, section 6)
neighbour    a group takes over what a neighbour has
spread       a run of neighbours takes over what a group has
block        all groups that share a weight change together
degree       a factor goes from one letter to another, or is dropped or added
devices      the same parts on other devices
uneven       parts in proportion to the devices' speed
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from raddle.searches.configurations import Configuration
from raddle.searches.plan_space import PlanSpace

Moves = dict[int, Configuration]
State = Sequence[Configuration | None]  # by group; None: tiles that are no configuration


class Mover:
    """Draws moves; `guided` is the share of those that are not uniform."""

    def __init__(self, space: PlanSpace, rng: random.Random, *, guided: float = 0.8) -> None:
        self.space, self.rng, self.guided = space, rng, guided
        self.kinds = [self.neighbour, self.block, self.degree, self.devices, self.spread]
        if not space.cluster.homogeneous:
            self.kinds.append(self.uneven)

    def draw(self, state: State) -> Moves:
        """Other configurations for one or more groups; may be empty."""
        if not self.space.free:
            return {}
        g = self.rng.choice(self.space.free)
        if self.rng.random() >= self.guided:
            return self.uniform(g)
        found = self.rng.choice(self.kinds)(g, state)
        return {k: c for k, c in found.items() if k not in self.space.pinned and c != state[k]}

    def uniform(self, g: int) -> Moves:
        return {g: self.space.anywhere(self.rng.choice(self.space.degrees(g)), self.rng)}

    def neighbour(self, g: int, state: State) -> Moves:
        others = self.space.neighbours[g]
        if not others:
            return {}
        other = self.rng.choice(others)
        given = state[other]
        taken = None if given is None else self.space.translated(g, other, given)
        return {} if taken is None else {g: taken}

    def spread(self, g: int, state: State) -> Moves:
        """A group's configuration is taken over by a run of its neighbours."""
        given = state[g]
        if given is None:
            return {}
        found, at = Moves(), g
        for _ in range(self.rng.choice([1, 2, 4, 8, 16])):
            others = [k for k in self.space.neighbours[at] if k not in found and k != g]
            if not others:
                break
            at = self.rng.choice(others)
            taken = self.space.translated(at, g, given)
            if taken is None:
                break
            found[at] = taken
        return found

    def block(self, g: int, state: State) -> Moves:
        """One configuration, new or its own changed, for all groups that share a weight with this one."""
        drawn = self.rng.random() < 0.5
        new = self.uniform(g) if drawn else self.degree(g, state) or self.devices(g, state)
        if g not in new:
            return {}
        found = dict(new)
        for other in self.space.alike[g]:
            taken = self.space.translated(other, g, new[g])
            if taken is not None:
                found[other] = taken
        return found

    def degree(self, g: int, state: State) -> Moves:
        """A factor moves from one letter to another; the number of parts stays, doubles or halves."""
        given = state[g]
        if given is None:
            return self.uniform(g)
        group, parts = self.space.groups[g], list(given.degrees)
        able = [
            a for a, letter in enumerate(group.letters)
            if self.space.settings.reduction or letter not in group.reduced
        ]  # fmt: skip
        if not able:
            return {}
        source, target = self.rng.choice(able), self.rng.choice(able)
        factors = [f for f in (2, 3, 4, 5, 7, 8) if parts[source] % f == 0]
        if factors and self.rng.random() < 0.8:
            factor = self.rng.choice(factors)
            parts[source] //= factor
        else:
            factor = 2
        if source != target or not factors:
            parts[target] *= factor
        size = math.prod(parts)
        if size > self.space.count or parts[target] > group.sizes[target]:
            return {}
        if size == len(given.devices):
            return {g: Configuration(tuple(parts), given.devices)}
        if size < len(given.devices):
            return {g: Configuration(tuple(parts), given.devices[:size])}
        others = [d for d in range(self.space.count) if d not in set(given.devices)]
        return {g: Configuration(tuple(parts), (*given.devices, *others)[:size])}

    def devices(self, g: int, state: State) -> Moves:
        given = state[g]
        if given is None:
            return {}
        if (
            self.rng.random() < 0.3
        ):  # the letters in another order: what was inside of nodes goes over them
            return {g: given._replace(devices=turned(given), shares=())}
        return {g: self.space.anywhere(given.degrees, self.rng)}

    def uneven(self, g: int, state: State) -> Moves:
        given = state[g]
        found = None if given is None else self.space.uneven(g, given)
        return {} if found is None else {g: found}


def turned(given: Configuration) -> tuple[int, ...]:
    """The devices with the last letter outermost."""
    places = np.array(given.devices).reshape(given.degrees)
    return tuple(int(d) for d in places.transpose().reshape(-1))
