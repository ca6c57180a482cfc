"""Plans from which searches start: the named baselines, and further plans that an expert would try.

staged-2-n    groups in two stages of equal work, each stage split by sample on its half of the devices
staged-2-c    the same, split by channel
staged-2-nc   the same, split by sample over nodes and by channel inside of a node
uneven        data parallel, samples in proportion to the devices' speeds
fast          the same, on the fastest devices only

staged-4-... have four stages. These stages have no micro-batches: they only place groups on devices.
"""

# g: index of a group

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.searches.attempts import Attempts
from raddle.searches.baselines.data import data
from raddle.searches.baselines.layerwise import layerwise
from raddle.searches.configurations import Configuration
from raddle.searches.grids import Tiles
from raddle.searches.operator_times import whole_operator_seconds
from raddle.searches.plan_space import PlanSpace
from raddle.searches.settings import SearchResult

BaselineFunction = Callable[[Graph, Cluster], Tiles]
# Makes starts: tiles by name.
StartsFunction = Callable[[PlanSpace], dict[str, Tiles]]


def baseline_starts(
    space: PlanSpace, methods: Mapping[str, BaselineFunction], attempts: Attempts
) -> dict[str, Tiles]:
    """Returns the tiles of the baselines, with the user's pins.

    `attempts` records baselines that fail.
    """
    starts: dict[str, Tiles] = {}
    for name, method in methods.items():
        with attempts.attempt(name):  # a baseline may need more samples than there are
            starts[name] = space.with_pins(method(space.graph, space.cluster))
    return starts


def simple_result(space: PlanSpace) -> SearchResult:
    """Returns what a search gives whose time ends before it has any plan of its own.

    This is data parallelism, or layer-wise model parallelism if there are too few samples.
    """
    attempts = Attempts()
    starts = baseline_starts(space, {"data": data}, attempts)
    starts = starts or baseline_starts(space, {"layerwise": layerwise}, attempts)
    if not starts:
        raise InputError(attempts.failures[-1].error)
    name, tiles = next(iter(starts.items()))
    return SearchResult(tiles, name, stopped="budget")


def expert_starts(space: PlanSpace) -> dict[str, Tiles]:
    """Returns the starts that the top of this file lists, as far as the cluster allows them."""
    starts: dict[str, Tiles] = {}
    for stages in (2, 4):
        if (
            space.device_count % stages == 0
            and space.device_count >= stages
            and len(space.groups) >= stages
        ):
            for letters in ("n", "c", "nc"):
                starts[f"staged-{stages}-{letters}"] = staged_start(space, stages, letters)
    if not space.cluster.homogeneous:
        starts["uneven"] = split_by_speed(space, range(space.device_count))
        fastest = max(space.speeds)
        # Devices within 10 % of the fastest count as fast.
        fast = [d for d, speed in enumerate(space.speeds) if speed >= 0.9 * fastest]
        starts["fast"] = split_by_speed(space, fast)
    return starts


def staged_start(space: PlanSpace, stages: int, letters: str) -> Tiles:
    """Returns tiles with the groups in stages of equal work, each stage on its own devices.

    letters: "n", "c" or "nc". "nc" splits samples over nodes and channels inside of a node; where that is
    not possible, it is as "n".
    """
    devices_per_stage = space.device_count // stages
    configurations = []
    for g, stage in enumerate(stage_of_groups(space, stages)):
        devices = range(stage * devices_per_stage, (stage + 1) * devices_per_stage)
        configuration = _split_samples_and_channels(space, g, devices) if letters == "nc" else None
        configurations.append(configuration or split_one_letter(space, g, letters[0], devices))
    return _pinned_tiles(space, configurations)


def shift_to_stages(
    space: PlanSpace, stages: int, configurations: Sequence[Configuration]
) -> Tiles:
    """Returns tiles for configurations that were made for the number of devices of one stage.

    Each group's configuration moves from the first devices to the devices of the group's stage.
    """
    devices_per_stage = space.device_count // stages
    return _pinned_tiles(
        space,
        [
            c._replace(devices=tuple(stage * devices_per_stage + d for d in c.devices))
            for stage, c in zip(stage_of_groups(space, stages), configurations, strict=True)
        ],
    )


def first_devices(cluster: Cluster, count: int) -> Cluster:
    """Returns a cluster of the first `count` devices of another cluster, with a name that says so."""
    return replace(cluster.first_devices(count), name=f"{count} of {cluster.name}")


def stage_of_groups(space: PlanSpace, stages: int) -> list[int]:
    """Returns the stage of each group: consecutive groups, with about equal work in every stage.

    Groups that share weights are in one stage: the time steps of a recurrent layer stay together.
    """
    seconds = whole_operator_seconds(space.graph)
    device = space.cluster.devices[0]
    work = [sum(seconds(m.op, device) for m in group.members) for group in space.groups]
    blocks: dict[tuple[int, ...], float] = {}  # groups that share weights -> their work
    for g, sharing in enumerate(space.sharing_weights):
        key = tuple(sharing) or (g,)
        blocks[key] = blocks.get(key, 0.0) + work[g]
    total, stage = sum(work), [0] * len(work)
    # work_so_far: the work up to the end of this block. The block is in the stage in which its middle lies.
    for key, work_so_far in zip(blocks, accumulate(blocks.values()), strict=True):
        block_stage = min(stages - 1, int(stages * (work_so_far - blocks[key] / 2) / total))
        for g in key:
            stage[g] = block_stage
    return stage


def _split_samples_and_channels(space: PlanSpace, g: int, devices: range) -> Configuration | None:
    """Returns the configuration with samples split over nodes and channels inside of a node.

    None if the group is too small or has no such letters, or if the devices are not several whole nodes.
    """
    group = space.groups[g]
    devices_per_node = len(space.cluster.members(space.cluster.devices[devices[0]].node))
    node_count = len(devices) // devices_per_node
    if (
        node_count < 2
        or node_count * devices_per_node != len(devices)
        or not {"n", "c"} <= set(group.letters)
    ):
        return None
    sizes = dict(zip(group.letters, group.sizes, strict=True))
    if sizes["n"] < node_count or sizes["c"] < devices_per_node:
        return None
    parts = tuple(
        {"n": node_count, "c": devices_per_node}.get(letter, 1) for letter in group.letters
    )
    return Configuration(parts, tuple(devices))


def split_by_speed(space: PlanSpace, devices: Sequence[int] | range) -> Tiles:
    """Returns tiles with every group split by sample, in proportion to the devices' speeds."""
    configurations = []
    for g in range(len(space.groups)):
        even = split_one_letter(space, g, "n", devices)
        configurations.append(space.uneven(g, even) or even)
    return _pinned_tiles(space, configurations)


def split_one_letter(
    space: PlanSpace, g: int, letter: str, devices: Sequence[int] | range
) -> Configuration:
    """Returns the configuration of a group split along one letter, with one part for each device.

    If that dimension is too small or missing, n or c is split instead; if these are too small as well, the
    group is whole, on the first device.
    """
    group = space.groups[g]
    letters_to_try = [letter, *(x for x in "nc" if x != letter)]
    for split_letter in letters_to_try:
        if split_letter in group.letters and group.sizes[group.letters.index(split_letter)] >= len(
            devices
        ):
            parts = tuple(len(devices) if x == split_letter else 1 for x in group.letters)
            return Configuration(parts, tuple(devices))
    return Configuration((1,) * len(group.letters), (devices[0],))


def random_start(space: PlanSpace, seed: int) -> Tiles:
    """Returns tiles with a random configuration for every group."""
    rng = random.Random(f"{seed} random")
    return _pinned_tiles(
        space,
        [
            space.on_random_devices(rng.choice(space.degrees(g)), rng)
            for g in range(len(space.groups))
        ],
    )


def _pinned_tiles(space: PlanSpace, configurations: Sequence[Configuration]) -> Tiles:
    """Returns the tiles of the configurations, with the user's pins instead where there are any."""
    return space.tiles([space.pinned.get(g, c) for g, c in enumerate(configurations)])
