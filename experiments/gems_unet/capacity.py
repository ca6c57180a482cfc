"""The largest image and the largest batch that fit, by method; and one that fits, trained for real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.gems_unet import nets, simulated
from experiments.gems_unet.formatting import GIB, MIB, format_size, ratio_text
from experiments.gems_unet.largest import largest_fitting
from experiments.gems_unet.methods import (
    DEVICES,
    METHODS,
    Method,
    PredictedStep,
    make_plans,
    predict,
)
from experiments.timing import time_plans
from raddle.api.clusters import Cluster, cluster
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.results import Cell, Column, Section, Table
from raddle.errors import InputError

CLUSTER = simulated.CLUSTER
BATCH = 4
SIDE_UNIT = 64  # pixels
MAX_SIZE = 16384  # pixels, and images
SIDE = 512  # of the largest batch
QUICK_METHODS = ("1F1B", "GEMS MASTER", "spatial by image")
DEEP = "resnet1001"  # a try takes half a minute: few methods, and no search
SMALL = ("unet", 8, 128, 12 * MIB)  # net, divisor of its widths, side, capacity of a rank


class LargestSizes(NamedTuple):
    net: str
    method: str
    side: int
    side_peak: int
    batch: int
    batch_peak: int


def make(asked: RunOptions) -> Section:
    on = cluster(CLUSTER)
    room = on.devices[0].memory
    chosen = [
        (net, own)
        for net in (("unet",) if asked.quick else simulated.NETS)
        for own in METHODS
        if own.name in QUICK_METHODS or not (asked.quick or net == DEEP)
    ]
    found: list[LargestSizes] = []
    for net, own in chosen:
        asked.report(f"{net}, {own.name}", len(found) / (len(chosen) + 3))
        found.append(largest_sizes(net, own, on, room))
    parts = [_table(found, room)]
    nets_ = list(dict.fromkeys(net for net, _ in chosen))
    if not asked.quick:
        asked.report("auto", len(chosen) / (len(chosen) + 3))
        searched = [_auto_largest(net, on, found) for net in nets_ if net != DEEP]
        parts[0] = _table([*found, *searched], room)
    asked.report("training what fits", (len(chosen) + 2) / (len(chosen) + 3))
    real_text, real_table = fits_for_real(asked.quick)
    text = [_sentence(net, [f for f in found if f.net == net]) for net in nets_]
    return Section(
        "The largest image and batch under a capacity",
        "\n\n".join([*text, real_text]),
        [*parts, real_table],
    )


@lru_cache(maxsize=8)
def _graph(net: str, side: int) -> Graph:
    return capture_model(nets.spec(net, side), 1)


def peak_bytes(net: str, own: Method, on: Cluster, side: int, batch: int) -> int:
    made = make_plans([own], _graph(net, side), on, batch=batch)
    return max(predict(made[own.name], on).peaks)


def largest_sizes(net: str, own: Method, on: Cluster, room: int) -> LargestSizes:
    side, side_peak = largest_fitting(
        lambda s: peak_bytes(net, own, on, s, BATCH),
        room,
        unit=SIDE_UNIT,
        power=2,
        max_size=MAX_SIZE,
    )
    batch, batch_peak = largest_fitting(
        lambda b: peak_bytes(net, own, on, SIDE, b),
        room,
        unit=own.microbatches,
        power=1,
        max_size=MAX_SIZE,
    )
    return LargestSizes(net, own.name, side, side_peak, batch, batch_peak)


def _auto_largest(net: str, on: Cluster, found: Sequence[LargestSizes]) -> LargestSizes:
    """From the largest that the others hold, in steps of a quarter of it: a search a step is slow."""
    base = max(f.side for f in found if f.net == net)
    side = peak = 0
    for quarters in range(4, 9):
        wanted = base * quarters // 4 // SIDE_UNIT * SIDE_UNIT
        spec = nets.spec(net, wanted)
        try:
            own = simulated.plan_auto(capture_model(spec, BATCH), on, spec, budget=5.0)
        except InputError:
            break
        side, peak = wanted, max(predict(own, on).peaks)
    return LargestSizes(net, simulated.AUTO, side, peak, 0, 0)


def _sentence(net: str, found: Sequence[LargestSizes]) -> str:
    sides = {f.method: f.side for f in found}
    name = max(sides, key=sides.__getitem__)
    words = [
        f"{ratio_text(sides['GEMS MASTER'], sides[base])} the side of {base}"
        for base in ("model parallel", "GPipe", "1F1B", "spatial by image")
        if base in sides
    ]
    first = f"{net}, batch {BATCH}: the largest image, {sides[name]}², is held by {name}."
    return f"{first} GEMS MASTER holds {', '.join(words)}."


def _table(found: Sequence[LargestSizes], room: int) -> Table:
    columns = [
        Column("net"), Column("method"), Column("largest side, pixels", "simulated"),
        Column("its peak, GiB", "simulated"), Column(f"largest batch of {SIDE}²", "simulated"),
        Column("its peak, GiB", "simulated"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [f.net, f.method, f.side, f.side_peak / GIB, f.batch or None, f.batch_peak / GIB or None]
        for f in found
    ]
    note = (
        f"{format_size(room, GIB)} GiB a device ({CLUSTER}), predicted peaks; sides are multiples of {SIDE_UNIT} at a "
        f"batch of {BATCH}, batches multiples of the method's micro-batches (4; MAST 2; spatial 1), which "
        "grow with the batch. With micro-batches of one image, and more of them, all but GPipe hold any "
        "batch if one image fits. auto's side is the last that fitted in steps of a quarter of the others' "
        "largest."
    )
    return Table("Under the memory of a device", columns, rows, note)


def fits_for_real(quick: bool) -> tuple[str, Table]:
    """Who fits under a small capacity, predicted and measured: this machine has more, so that all run."""
    net, narrow, side, room = SMALL
    spec = nets.spec(net, side, width_divisor=narrow)
    on = cluster(f"local:{DEVICES}")
    graph = capture_model(spec, BATCH)
    chosen = [m for m in METHODS if not quick or m.name in (*QUICK_METHODS, "GPipe")]
    made = make_plans(chosen, graph, on, batch=BATCH, model=spec)
    said = {name: predict(own, on) for name, own in made.items()}
    timed = time_plans(
        spec, graph, {name: own.plan for name, own in made.items()}, ranks=DEVICES, rounds=1,
        steps=1, peaks=True,
    )  # fmt: skip
    seen = {name: max(own.peaks) for name, own in timed.items()}
    rows: list[list[Cell]] = [
        [
            name, max(said[name].peaks) / MIB, _yes(max(said[name].peaks), room), seen[name] / MIB,
            _yes(seen[name], room), own.losses[0], own.losses[-1],
        ]
        for name, own in timed.items()
    ]  # fmt: skip
    columns = [
        Column("method"), Column("peak, MiB", "simulated"), Column("fits", "simulated"),
        Column("peak, MiB", "measured"), Column("fits", "measured"),
        Column("first loss", "measured", 4), Column("second loss", "measured", 4),
    ]  # fmt: skip
    title = f"{net}/{narrow} of {side}² under {format_size(room, MIB)} MiB a rank, for real"
    return _real_sentence(said, seen, room), Table(title, columns, rows, _REAL_NOTE)


_REAL_NOTE = (
    "Two steps on one batch, whose losses are those before each: a second loss below the first is a step "
    "of training. Nothing stops a rank at the capacity: its allocator's peak is beside it."
)


def _real_sentence(said: Mapping[str, PredictedStep], seen: Mapping[str, int], room: int) -> str:
    agree = [n for n in seen if (max(said[n].peaks) <= room) == (seen[n] <= room)]
    fit = [n for n in seen if seen[n] <= room]
    return (
        f"For real under {format_size(room, MIB)} MiB a rank: {', '.join(fit) or 'nothing'} fits; prediction and "
        f"measurement agree for {len(agree)} of {len(seen)} methods."
    )


def _yes(peak: int, room: int) -> str:
    return "yes" if peak <= room else "no"
