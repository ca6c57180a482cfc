"""Proposes moves for a Markov chain: a move gives one or more groups other configurations.

uniform      a random group gets random degrees and devices (FlexFlow, arXiv 1807.05358, section 6)
neighbour    a group takes the configuration of a neighbour
spread       several neighbours in a row take the configuration of a group
block        all groups that share a weight change together
degree       a factor of the degrees moves from one letter to another, or is dropped or added
devices      a group keeps its degrees, on other devices
uneven       a group's samples are split in proportion to the devices' speeds

A configuration has the degrees of a group (the number of parts of each letter, i.e. dimension) and its
devices (configurations.py). All but `uniform` are guided moves, which the paper does not have. PlanSpace
(searches/plan_space.py) has all groups and their possible degrees; neighbours are groups that read each
other.
"""

# g, k, other: indices of groups. space.translate(g, other, c): the configuration c of group `other` for
# group g, letter by letter; None if g is too small. A pinned group is one whose tiles the user fixed.

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from raddle.searches.configurations import Configuration
from raddle.searches.plan_space import PlanSpace

ConfigurationChanges = dict[int, Configuration]  # index of a group -> its new configuration
# By index of a group, its current configuration; None if no configuration gives its tiles.
State = Sequence[Configuration | None]


class MoveProposer:
    """Proposes random moves. guided: the fraction of guided moves, from 0 to 1."""

    def __init__(self, space: PlanSpace, rng: random.Random, *, guided: float = 0.8) -> None:
        self.space, self.rng, self.guided = space, rng, guided
        self.guided_moves = [self.neighbour, self.block, self.degree, self.devices, self.spread]
        if not space.cluster.homogeneous:
            self.guided_moves.append(self.uneven)

    def propose(self, state: State) -> ConfigurationChanges:
        """Returns new configurations for one or more groups; empty if the drawn move is not possible."""
        if not self.space.unpinned:
            return {}
        g = self.rng.choice(self.space.unpinned)
        if self.rng.random() >= self.guided:
            return self.uniform(g)
        drawn = self.rng.choice(self.guided_moves)(g, state)
        return {k: c for k, c in drawn.items() if k not in self.space.pinned and c != state[k]}

    def uniform(self, g: int) -> ConfigurationChanges:
        """Returns random degrees and devices for group g."""
        return {g: self.space.on_random_devices(self.rng.choice(self.space.degrees(g)), self.rng)}

    def neighbour(self, g: int, state: State) -> ConfigurationChanges:
        """Returns for group g the configuration of a random neighbour."""
        neighbours = self.space.neighbours[g]
        if not neighbours:
            return {}
        other = self.rng.choice(neighbours)
        source = state[other]
        translated = None if source is None else self.space.translate(g, other, source)
        return {} if translated is None else {g: translated}

    def spread(self, g: int, state: State) -> ConfigurationChanges:
        """Returns g's configuration for all groups on a random walk of 1 to 16 steps between neighbours."""
        source = state[g]
        if source is None:
            return {}
        changes, last = ConfigurationChanges(), g
        for _ in range(self.rng.choice([1, 2, 4, 8, 16])):
            unvisited = [k for k in self.space.neighbours[last] if k not in changes and k != g]
            if not unvisited:
                break
            last = self.rng.choice(unvisited)
            translated = self.space.translate(last, g, source)
            if translated is None:
                break
            changes[last] = translated
        return changes

    def block(self, g: int, state: State) -> ConfigurationChanges:
        """Returns a random or changed configuration for g and all groups that share a weight with g."""
        is_new = self.rng.random() < 0.5
        new = self.uniform(g) if is_new else self.degree(g, state) or self.devices(g, state)
        if g not in new:
            return {}
        changes = dict(new)
        for other in self.space.sharing_weights[g]:
            translated = self.space.translate(other, g, new[g])
            if translated is not None:
                changes[other] = translated
        return changes

    def degree(self, g: int, state: State) -> ConfigurationChanges:
        """Returns g's degrees with a factor moved between letters, added or dropped; most devices stay."""
        current = state[g]
        if current is None:
            return self.uniform(g)
        group, parts = self.space.groups[g], list(current.degrees)
        # a: position of a letter; source and target below, too
        splittable = [
            a for a, letter in enumerate(group.letters)
            if self.space.settings.reduction or letter not in group.reduced
        ]  # fmt: skip
        if not splittable:
            return {}
        source, target = self.rng.choice(splittable), self.rng.choice(splittable)
        factors = [f for f in (2, 3, 4, 5, 7, 8) if parts[source] % f == 0]
        if factors and self.rng.random() < 0.8:
            factor = self.rng.choice(factors)
            parts[source] //= factor
        else:
            factor = 2
        if source != target or not factors:  # if source is the target, the factor is dropped
            parts[target] *= factor
        count = math.prod(parts)  # number of tiles, and of devices
        if count > self.space.device_count or parts[target] > group.sizes[target]:
            return {}
        if count == len(current.devices):
            return {g: Configuration(tuple(parts), current.devices)}
        if count < len(current.devices):
            return {g: Configuration(tuple(parts), current.devices[:count])}
        unused = [d for d in range(self.space.device_count) if d not in set(current.devices)]
        return {g: Configuration(tuple(parts), (*current.devices, *unused)[:count])}

    def devices(self, g: int, state: State) -> ConfigurationChanges:
        """Returns g's degrees on other devices, or on the same devices in another order."""
        current = state[g]
        if current is None:
            return {}
        # With the letters in reverse order, the parts of another letter are on different nodes.
        if self.rng.random() < 0.3:
            return {g: current._replace(devices=transposed_devices(current), shares=())}
        return {g: self.space.on_random_devices(current.degrees, self.rng)}

    def uneven(self, g: int, state: State) -> ConfigurationChanges:
        """Returns g's configuration with samples in proportion to the devices' speeds."""
        current = state[g]
        new = None if current is None else self.space.uneven(g, current)
        return {} if new is None else {g: new}


def transposed_devices(configuration: Configuration) -> tuple[int, ...]:
    """Returns the devices of the parts when the first letter varies fastest instead of the last."""
    devices = np.array(configuration.devices).reshape(configuration.degrees)
    return tuple(int(d) for d in devices.transpose().reshape(-1))
