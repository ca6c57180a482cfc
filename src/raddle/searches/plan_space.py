"""The space of plans that a search visits: a plan is one configuration for each group of operators.

PlanSpace turns configurations into tiles and back, lists the choices of a group, and knows which groups are
neighbours. A group is a set of operators that are split together; its first member is the anchor
(groups.py). A configuration has the group's degrees, which are the numbers of parts of each letter, and its
devices (configurations.py). Batch-independent operators read no samples and are in no group (grids.py).
"""

# g: index of a group; a list of configurations has one configuration for each group

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.plans.tiling import Grid, Tiling, even_cuts
from raddle.searches.configurations import Configuration, degrees, tiles
from raddle.searches.grids import BatchIndependentOps, Tiles, copies
from raddle.searches.groups import Group, find_groups
from raddle.searches.operator_times import device_speeds
from raddle.searches.pins import pinned_configurations
from raddle.searches.settings import Settings


class PlanSpace:
    """The groups of a graph, how they are connected, and which configurations they may have."""

    def __init__(self, graph: Graph, cluster: Cluster, settings: Settings) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.device_count = len(cluster.devices)
        self.groups = find_groups(graph)
        # By index of the group, the configuration that the user has fixed.
        self.pinned = pinned_configurations(self.groups, settings.pins, self.device_count)
        self.unpinned = [g for g in range(len(self.groups)) if g not in self.pinned]
        self.batch_independent = BatchIndependentOps(graph)
        # For each group, the batch-independent operators that it reads.
        self.independent_inputs = [
            self.batch_independent.read_by(group.ops) for group in self.groups
        ]
        # Cache of `degrees`, by letters and sizes of a group.
        self._degrees: dict[tuple[tuple[str, ...], tuple[int, ...]], list[tuple[int, ...]]] = {}

    # -- from configurations to tiles and back -----------------------------------------------------

    def tiles(self, configurations: Sequence[Configuration]) -> Tiles:
        """Returns the tiles of all operators, given the configuration of each group."""
        plan_tiles: Tiles = {}
        for group, configuration in zip(self.groups, configurations, strict=True):
            plan_tiles.update(tiles(group, configuration))
        independent = [
            op for op in reversed(self.graph.ops) if op.name in self.batch_independent.names
        ]
        for op in independent:  # if no operator reads it, `place` gives no tiles
            plan_tiles.update(
                self.batch_independent.place([op], plan_tiles)
                or {op.name: copies(op, range(self.device_count))}
            )
        return plan_tiles

    def changes(self, tiles_now: Mapping[str, Tiling], moves: Mapping[int, Configuration]) -> Tiles:
        """Returns the tiles that change when some groups get other configurations.

        They are the tiles of the groups' operators and of the batch-independent operators that these read.
        tiles_now: the present tiles, by operator. moves: by index of a group, its new configuration.
        """
        changed: Tiles = {}
        for g, configuration in moves.items():
            changed.update(tiles(self.groups[g], configuration))
        independent_ops = {op.name: op for g in moves for op in self.independent_inputs[g]}
        if independent_ops:
            readers_first = [op for op in reversed(self.graph.ops) if op.name in independent_ops]
            changed.update(self.batch_independent.place(readers_first, {**tiles_now, **changed}))
        return changed

    def with_pins(self, start: Mapping[str, Tiling]) -> Tiles:
        """Returns the tiles of a start (a plan to search from: starts.py), with the pins of the user."""
        return {**start, **self.changes(start, self.pinned)}

    def configuration_of(self, g: int, tiles_now: Mapping[str, Tiling]) -> Configuration | None:
        """Returns the configuration of a group, read from its anchor's tiles.

        None if no configuration gives the anchor these tiles.
        """
        group = self.groups[g]
        anchor = group.members[0].op
        tiling = tiles_now[anchor.name]
        if not isinstance(tiling, Grid) or tiling.copies > 1:
            return None
        # parts: number of parts by letter. uneven: sizes of unequal parts. order: the letters that are
        # split, in the order of the anchor's dimensions.
        parts, uneven, order = {}, None, []
        for dim, cuts in zip(anchor.space.dims, tiling.cuts, strict=True):
            if len(cuts) > 2:
                if dim.name not in group.letters:
                    return None
                parts[dim.name] = len(cuts) - 1
                order.append(dim.name)
                if cuts != even_cuts(dim.size, len(cuts) - 1):
                    uneven = tuple(b - a for a, b in pairwise(cuts))
        if uneven is not None and len(parts) > 1:
            return None
        if order != [letter for letter in group.letters if letter in parts]:
            return None  # the tiles are in the order of the anchor's dimensions, not of the letters
        counts = tuple(parts.get(letter, 1) for letter in group.letters)
        return Configuration(counts, tiling.devices, uneven or ())

    # -- choices -----------------------------------------------------------------------------------

    def degrees(self, g: int) -> list[tuple[int, ...]]:
        """Returns all degrees that a group may have; groups with equal letters and sizes share the list."""
        group = self.groups[g]
        key = (group.letters, group.sizes)
        if key not in self._degrees:
            settings = self.settings
            self._degrees[key] = list(
                degrees(
                    group,
                    self.device_count,
                    powers_of_two=settings.powers_of_two,
                    reduction=bool(settings.reduction),
                )
            )
        return self._degrees[key]

    def on_random_devices(self, parts: tuple[int, ...], rng: random.Random) -> Configuration:
        """Returns a configuration on random devices: consecutive ones with probability 0.7, else any."""
        count = math.prod(parts)  # of the tiles
        if rng.random() < 0.7:
            first = (
                rng.randrange(self.device_count // count) * count
                if self.device_count >= count
                else 0
            )
            return Configuration(parts, tuple(range(first, first + count)))
        return Configuration(parts, tuple(rng.sample(range(self.device_count), count)))

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Samples for each device in proportion to its speed.

        () if all devices are of one kind, or if there are fewer samples than devices.
        """
        if self.cluster.homogeneous or self.graph.batch < self.device_count:
            return ()
        return proportional_shares(self.graph.batch, self.speeds)

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """The speed of each device, in computations of the whole graph per second."""
        return device_speeds(self.graph, self.cluster)

    def uneven(self, g: int, configuration: Configuration) -> Configuration | None:
        """Returns the configuration with samples in proportion to its devices' speeds.

        The result is None if the configuration does not split the samples, splits other letters too, or has
        equally fast devices. It is also None if there are fewer samples than devices.
        """
        group = self.groups[g]
        split = [x for x, n in zip(group.letters, configuration.degrees, strict=True) if n > 1]
        if split != ["n"]:
            return None
        speeds = [self.speeds[d] for d in configuration.devices]
        if max(speeds) == min(speeds) or self.graph.batch < len(speeds):
            return None
        return configuration._replace(shares=proportional_shares(self.graph.batch, speeds))

    # -- connections between groups ----------------------------------------------------------------

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """For each group, the groups that it reads and those that read it."""
        group_of = {name: g for g, group in enumerate(self.groups) for name in group.ops}
        producer = {
            o: group_of[op.name] for op in self.graph.ops if op.name in group_of for o in op.outputs
        }
        adjacent: list[dict[int, None]] = [{} for _ in self.groups]
        for op in self.graph.ops:
            for name in op.inputs:
                if op.name in group_of and name in producer and producer[name] != group_of[op.name]:
                    adjacent[group_of[op.name]][producer[name]] = None
                    adjacent[producer[name]][group_of[op.name]] = None
        return [list(x) for x in adjacent]

    @cached_property
    def sharing_weights(self) -> list[list[int]]:
        """For each group, the groups that read one of its parameters, itself included; [] without any."""
        users: dict[str, list[int]] = {}  # by parameter, the groups that read it
        for g, group in enumerate(self.groups):
            for name in self._parameters_read(group):
                users.setdefault(name, []).append(g)
        return [
            sorted({user for name in self._parameters_read(group) for user in users[name]})
            for group in self.groups
        ]

    def _parameters_read(self, group: Group) -> Iterable[str]:
        for member in group.members:
            for name in member.op.inputs:
                if self.graph.values[name].role == "parameter":
                    yield name

    def translate(self, g: int, source: int, configuration: Configuration) -> Configuration | None:
        """Returns the configuration of group `source` for group `g`, letter by letter.

        Letters that g lacks are dropped; g then uses only the first of the devices. None if a dimension of
        g is too small, or if there are fewer devices than tiles.
        """
        group, source_group = self.groups[g], self.groups[source]
        parts = dict(zip(source_group.letters, configuration.degrees, strict=True))
        counts = tuple(parts.get(letter, 1) for letter in group.letters)
        if any(n > size for n, size in zip(counts, group.sizes, strict=True)):
            return None
        tile_count = math.prod(counts)
        if tile_count == math.prod(configuration.degrees):
            return Configuration(counts, configuration.devices, configuration.shares)
        return (
            Configuration(counts, configuration.devices[:tile_count])
            if tile_count <= len(configuration.devices)
            else None
        )


def proportional_shares(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Returns whole numbers in proportion to the weights, each at least 1, whose sum is `total`.

    >>> proportional_shares(64, [3, 3, 1, 1])
    (24, 24, 8, 8)
    """
    assert total >= len(weights), f"{total} cannot be shared out to {len(weights)}"
    weight_sum = math.fsum(weights)
    shares = [max(1, int(total * weight / weight_sum)) for weight in weights]
    while sum(shares) > total:
        shares[shares.index(max(shares))] -= 1
    # Each remaining unit goes where share / weight remains smallest: with speeds as weights, that is the
    # time of the device.
    while sum(shares) < total:
        best = min(range(len(shares)), key=lambda i: (shares[i] + 1) / weights[i])
        shares[best] += 1
    return tuple(shares)
