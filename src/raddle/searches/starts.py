"""Where searches start: the named baselines, and what experts do beyond them.

staged-2-n    groups in two runs of equal work, each split by sample on half of the devices
staged-2-c    the same, each split by channel
uneven        samples in proportion to the devices' speed
fast          the same on the fastest devices alone, equally
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from raddle.clusters import Cluster
from raddle.graph.graph import Graph
from raddle.searches.attempts import Attempts
from raddle.searches.configurations import Configuration
from raddle.searches.grids import Tiles
from raddle.searches.operator_times import whole_operator_seconds
from raddle.searches.plan_space import PlanSpace

BaselineFunction = Callable[[Graph, Cluster], Tiles]
StartsFunction = Callable[[PlanSpace], dict[str, Tiles]]


def baseline_starts(
    space: PlanSpace, methods: Mapping[str, BaselineFunction], attempts: Attempts
) -> dict[str, Tiles]:
    """The tiles of the methods that can be applied, with the user's pins."""
    starts: dict[str, Tiles] = {}
    for name, method in methods.items():
        with attempts.attempt(name):  # there may be too few samples, say
            starts[name] = space.with_pins(method(space.graph, space.cluster))
    return starts


def expert_starts(space: PlanSpace) -> dict[str, Tiles]:
    """Runs of groups on devices of their own, and splits that follow the devices' speed."""
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
        fast = [d for d, speed in enumerate(space.speeds) if speed >= 0.9 * fastest]
        starts["fast"] = split_by_speed(space, fast)
    return starts


def staged_start(space: PlanSpace, stages: int, letters: str) -> Tiles:
    """Runs of groups with equal work; steps of a recurrent layer stay together, so that layers overlap."""
    each = space.device_count // stages
    chosen = []
    for g, stage in enumerate(stage_of_groups(space, stages)):
        devices = range(stage * each, (stage + 1) * each)
        configuration = _split_samples_and_channels(space, g, devices) if letters == "nc" else None
        chosen.append(configuration or split_one_letter(space, g, letters[0], devices))
    return _pinned_tiles(space, chosen)


def shift_to_stages(
    space: PlanSpace, stages: int, configurations: Sequence[Configuration]
) -> Tiles:
    """Configurations for a part of the devices, moved to the part that each group's run is on."""
    each = space.device_count // stages
    return _pinned_tiles(
        space,
        [
            c._replace(devices=tuple(at * each + d for d in c.devices))
            for at, c in zip(stage_of_groups(space, stages), configurations, strict=True)
        ],
    )


def first_devices(cluster: Cluster, count: int) -> Cluster:
    """A cluster of the first devices of another one, with a name of its own."""
    return replace(cluster.first_devices(count), name=f"{count} of {cluster.name}")


def stage_of_groups(space: PlanSpace, stages: int) -> list[int]:
    seconds = whole_operator_seconds(space.graph)
    device = space.cluster.devices[0]
    work = [sum(seconds(m.op, device) for m in group.members) for group in space.groups]
    blocks: dict[
        tuple[int, ...], float
    ] = {}  # groups that share weights, in the order of the first
    for g, sharing in enumerate(space.sharing_weights):
        key = tuple(sharing) or (g,)
        blocks[key] = blocks.get(key, 0.0) + work[g]
    total, stage = sum(work), [0] * len(work)
    for key, done in zip(blocks, accumulate(blocks.values()), strict=True):
        at = min(stages - 1, int(stages * (done - blocks[key] / 2) / total))
        for g in key:
            stage[g] = at
    return stage


def _split_samples_and_channels(space: PlanSpace, g: int, devices: range) -> Configuration | None:
    """Samples over nodes, channels inside of them."""
    group = space.groups[g]
    inside = len(space.cluster.members(space.cluster.devices[devices[0]].node))
    outside = len(devices) // inside
    if outside < 2 or outside * inside != len(devices) or not {"n", "c"} <= set(group.letters):
        return None
    sizes = dict(zip(group.letters, group.sizes, strict=True))
    if sizes["n"] < outside or sizes["c"] < inside:
        return None
    parts = tuple({"n": outside, "c": inside}.get(letter, 1) for letter in group.letters)
    return Configuration(parts, tuple(devices))


def split_by_speed(space: PlanSpace, devices: Sequence[int] | range) -> Tiles:
    """Every group by sample, in proportion to speed."""
    chosen = []
    for g in range(len(space.groups)):
        even = split_one_letter(space, g, "n", devices)
        chosen.append(space.uneven(g, even) or even)
    return _pinned_tiles(space, chosen)


def split_one_letter(
    space: PlanSpace, g: int, letter: str, devices: Sequence[int] | range
) -> Configuration:
    """A group in as many parts of one letter as there are devices, or as it can be cut into."""
    group = space.groups[g]
    letters_to_try = [letter, *(x for x in "nc" if x != letter)]
    for x in letters_to_try:
        if x in group.letters and group.sizes[group.letters.index(x)] >= len(devices):
            parts = tuple(len(devices) if y == x else 1 for y in group.letters)
            return Configuration(parts, tuple(devices))
    return Configuration((1,) * len(group.letters), (devices[0],))


def random_start(space: PlanSpace, seed: int) -> Tiles:
    """Every group in any configuration."""
    rng = random.Random(f"{seed} random")
    return _pinned_tiles(
        space,
        [space.random_devices(rng.choice(space.degrees(g)), rng) for g in range(len(space.groups))],
    )


def _pinned_tiles(space: PlanSpace, chosen: Sequence[Configuration]) -> Tiles:
    return space.tiles([space.pinned.get(g, c) for g, c in enumerate(chosen)])
