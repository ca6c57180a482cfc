"""Works out which devices hold which regions of each parameter, and which regions are synchronised.

A region is a box of a parameter that is held by one set of devices. A program may run its micro-batches in
several variants: they differ in the size of the micro-batch, or in the devices that run it (variants.py). A
device holds what its tiles read in any variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from raddle.graph.box import Box
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.plans.regions import add_read_boxes
from raddle.program.lower_variant import LoweredVariant
from raddle.program.parameter_blocks import block_of_parameters
from raddle.program.parameter_region import ParameterRegion
from raddle.program.parameter_regions import parameter_regions, sharded_in_groups
from raddle.program.parameter_slices import ParameterSlices, check_order, cut_slices

# d: device, n: name of a parameter

# The sets of devices that hold regions of one parameter.
HolderSets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ParameterLayout:
    """The parameters of a graph, as a plan places them on devices."""

    graph: Graph
    plan: Plan
    lowered: Sequence[LoweredVariant]  # all variants of the program, with their messages

    @cached_property
    def trainable(self) -> list[str]:
        """The names of the parameters that have a gradient; a parameter's number is its index here."""
        values = self.graph.values
        # `contributors` has, by value with a gradient, the operators whose backward adds to this gradient.
        return [n for n in self.lowered[0].contributors if values[n].role == "parameter"]

    @cached_property
    def regions(self) -> dict[str, tuple[ParameterRegion, ...]]:
        """The regions of each parameter. A device holds the boxes that its tiles read, in any variant."""
        boxes_read: dict[str, dict[int, list[Box]]] = {}
        for lowered in self.lowered:
            for op in lowered.graph.ops:
                for operand, name in enumerate(op.inputs):
                    if self.graph.values[name].role == "parameter":
                        tiling = lowered.plan.tiles[op.name]
                        add_read_boxes(boxes_read.setdefault(name, {}), op, operand, tiling)
        regions = {
            name: parameter_regions(self.graph.values[name].shape, by_device, self.plan)
            for name, by_device in boxes_read.items()
        }
        return regions | {
            name: sharded_in_groups(regions[name], self.plan) for name in self.trainable
        }

    @cached_property
    def cut(self) -> ParameterSlices:
        """The slices and bundles; none if the sync kind synchronises whole parameters."""
        # Nothing is active, that is, needs a gradient, if the program has no backward.
        if not self.plan.parsed_sync.sliced or not self.lowered[0].active:
            return ParameterSlices({}, ())
        cut = cut_slices(self.regions, self.trainable, self.graph, self.plan.parsed_sync)
        # plan.order: the numbers of the bundles, in the order in which they are all-reduced.
        check_order(self.plan.order, cut.bundles)
        return cut

    @property
    def slices(self) -> dict[str, tuple[ParameterRegion, ...]]:
        """The slices of each parameter; empty if the sync kind synchronises whole parameters."""
        return self.cut.slices

    @cached_property
    def block_of(self) -> dict[str, int]:
        """The number of the block in which each parameter is synchronised; empty without shards."""
        if not self.plan.parsed_sync.shards:
            return {}
        lowered = self.lowered[0]
        stages = [lowered.ops_of(s) for s in sorted(set(lowered.stage_of.values()))]
        return block_of_parameters(stages, lowered.graph, lowered.plan, set(self.trainable))

    def synced_regions(self, name: str) -> tuple[ParameterRegion, ...]:
        """Returns the regions of a parameter whose gradients have to be summed or sent."""
        return tuple(region for region in self.regions[name] if region.needs_sync)

    @cached_property
    def groups(self) -> dict[str, tuple[HolderSets, int]]:
        """The group of each parameter that needs synchronisation.

        The gradients of a group are summed together. A group is given by the sets of devices that sum
        regions of the parameter, and the number of the parameter's block (without shards: 0).
        """
        synced = ((name, self.synced_regions(name)) for name in self.trainable)
        return {
            n: (tuple(dict.fromkeys(region.devices for region in regions)), self.block_of.get(n, 0))
            for n, regions in synced
            if regions
        }


def holders(regions: Iterable[ParameterRegion]) -> tuple[int, ...]:
    """Returns all devices that hold any of the regions, sorted."""
    return tuple(sorted({d for region in regions for d in region.devices}))
