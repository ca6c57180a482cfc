"""Finds the largest image and batch that fit the memory with each method; trains a small case for real.

This is the part `capacity` of `raddle reproduce gems-unet`. The paper is GEMS (Jain et al., SC20).

*Capacity*: bytes of memory of a device. *Side*: height and width of an image, in pixels. METHODS
(methods.py) are the compared methods: pipelines, GEMS, spatial tiles; `auto` is raddle's search.
"""

# on: the cluster that plans are made for

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
SIDE_UNIT = 64  # pixels; sides are multiples of it
MAX_SIZE = 16384  # limit of the search, for pixels of a side and for images of a batch
SIDE = 512  # pixels of the images whose largest batch is searched
QUICK_METHODS = ("1F1B", "GEMS MASTER", "spatial by image")
DEEP = "resnet1001"  # a simulation takes half a minute, so only QUICK_METHODS, and not `auto`
SMALL = ("unet", 8, 128, 12 * MIB)  # net, divisor of its widths, side, capacity of a rank


class LargestSizes(NamedTuple):
    """The largest image and the largest batch of one network that fit with one method."""

    net: str
    method: str
    side: int  # the largest at BATCH images
    side_peak: int  # at that side: bytes on the device that needs most
    batch: int  # the largest at images of SIDE; 0: not searched
    batch_peak: int  # the same at that batch


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    on = cluster(CLUSTER)
    capacity = on.devices[0].memory
    chosen = [
        (net, method)
        for net in (("unet",) if options.quick else simulated.NETS)
        for method in METHODS
        if method.name in QUICK_METHODS or not (options.quick or net == DEEP)
    ]
    sizes: list[LargestSizes] = []
    for net, method in chosen:
        # 3: the share of `auto` and of the training below, in the progress that is shown
        options.report(f"{net}, {method.name}", len(sizes) / (len(chosen) + 3))
        sizes.append(largest_sizes(net, method, on, capacity))
    tables = [_table(sizes, capacity)]
    net_names = list(dict.fromkeys(net for net, _ in chosen))
    if not options.quick:
        options.report("auto", len(chosen) / (len(chosen) + 3))
        searched = [_auto_largest(net, on, sizes) for net in net_names if net != DEEP]
        tables[0] = _table([*sizes, *searched], capacity)
    options.report("training what fits", (len(chosen) + 2) / (len(chosen) + 3))
    real_text, real_table = fits_for_real(options.quick)
    text = [
        _sentence(net, [largest for largest in sizes if largest.net == net]) for net in net_names
    ]
    return Section(
        "The largest image and batch under a capacity",
        "\n\n".join([*text, real_text]),
        [*tables, real_table],
    )


@lru_cache(maxsize=8)
def _graph(net: str, side: int) -> Graph:
    """Returns the graph of a network for a batch of one image."""
    return capture_model(nets.spec(net, side), 1)


def peak_bytes(net: str, method: Method, on: Cluster, side: int, batch: int) -> int:
    """Returns the predicted peak memory of the device that needs most."""
    plans = make_plans([method], _graph(net, side), on, batch=batch)
    return max(predict(plans[method.name], on).peaks)


def largest_sizes(net: str, method: Method, on: Cluster, capacity: int) -> LargestSizes:
    """Searches the largest side at BATCH images, and the largest batch of images of SIDE.

    power (below): memory grows about with the square of the side, and linearly with the batch.
    """
    side, side_peak = largest_fitting(
        lambda s: peak_bytes(net, method, on, s, BATCH),
        capacity,
        unit=SIDE_UNIT,
        power=2,
        max_size=MAX_SIZE,
    )
    batch, batch_peak = largest_fitting(
        lambda b: peak_bytes(net, method, on, SIDE, b),
        capacity,
        unit=method.microbatches,
        power=1,
        max_size=MAX_SIZE,
    )
    return LargestSizes(net, method.name, side, side_peak, batch, batch_peak)


def _auto_largest(net: str, on: Cluster, sizes: Sequence[LargestSizes]) -> LargestSizes:
    """Returns the largest side for `auto`, in coarse steps because at each side a plan is searched.

    sizes: of the other methods.
    """
    base = max(largest.side for largest in sizes if largest.net == net)
    side = peak = 0
    for quarters in range(4, 9):  # 1 to 2 times the largest side of the other methods
        wanted = base * quarters // 4 // SIDE_UNIT * SIDE_UNIT
        spec = nets.spec(net, wanted)
        try:
            planned = simulated.plan_auto(capture_model(spec, BATCH), on, spec, budget=5.0)
        except InputError:
            break
        side, peak = wanted, max(predict(planned, on).peaks)
    return LargestSizes(net, simulated.AUTO, side, peak, 0, 0)


def _sentence(net: str, sizes: Sequence[LargestSizes]) -> str:
    """Returns the summary of one network: the method with the largest image, and GEMS next to others."""
    sides = {largest.method: largest.side for largest in sizes}
    name = max(sides, key=sides.__getitem__)
    words = [
        f"{ratio_text(sides['GEMS MASTER'], sides[base])} the side of {base}"
        for base in ("model parallel", "GPipe", "1F1B", "spatial by image")
        if base in sides
    ]
    first = f"{net}, batch {BATCH}: the largest image, {sides[name]}², is held by {name}."
    return f"{first} GEMS MASTER holds {', '.join(words)}."


def _table(sizes: Sequence[LargestSizes], capacity: int) -> Table:
    """Returns a table of the largest sides and batches; capacity: bytes of a device."""
    # Column: name, source of its numbers, digits after the point
    columns = [
        Column("net"), Column("method"), Column("largest side, pixels", "simulated"),
        Column("its peak, GiB", "simulated"), Column(f"largest batch of {SIDE}²", "simulated"),
        Column("its peak, GiB", "simulated"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            largest.net,
            largest.method,
            largest.side,
            largest.side_peak / GIB,
            largest.batch or None,
            largest.batch_peak / GIB or None,
        ]
        for largest in sizes
    ]
    note = (
        f"{format_size(capacity, GIB)} GiB a device ({CLUSTER}), predicted peaks; sides are multiples "
        f"of {SIDE_UNIT} at a "
        f"batch of {BATCH}, batches multiples of the method's micro-batches (4; MAST 2; spatial 1), which "
        "grow with the batch. With micro-batches of one image, and more of them, all but GPipe hold any "
        "batch if one image fits. For auto, sides from the largest of the others to "
        "twice that are tried, in steps of a quarter of it, and the last that fits is shown."
    )
    return Table("Under the memory of a device", columns, rows, note)


def fits_for_real(quick: bool) -> tuple[str, Table]:
    """Returns text and a table that say which methods fit a small capacity, predicted and measured.

    All run on this machine, which has more memory: the measured peak is compared with the capacity.
    """
    net, width_divisor, side, capacity = SMALL
    spec = nets.spec(net, side, width_divisor=width_divisor)
    on = cluster(f"local:{DEVICES}")
    graph = capture_model(spec, BATCH)
    chosen = [m for m in METHODS if not quick or m.name in (*QUICK_METHODS, "GPipe")]
    plans = make_plans(chosen, graph, on, batch=BATCH, model=spec)
    predicted = {name: predict(planned, on) for name, planned in plans.items()}
    timed = time_plans(
        spec, graph, {name: planned.plan for name, planned in plans.items()}, ranks=DEVICES, rounds=1,
        steps=1, peaks=True,
    )  # fmt: skip
    measured_peaks = {name: max(times.peaks) for name, times in timed.items()}
    rows: list[list[Cell]] = [
        [
            name, max(predicted[name].peaks) / MIB, yes_or_no(max(predicted[name].peaks), capacity),
            measured_peaks[name] / MIB,
            yes_or_no(measured_peaks[name], capacity), times.losses[0], times.losses[-1],
        ]
        for name, times in timed.items()
    ]  # fmt: skip
    columns = [
        Column("method"), Column("peak, MiB", "simulated"), Column("fits", "simulated"),
        Column("peak, MiB", "measured"), Column("fits", "measured"),
        Column("first loss", "measured", 4), Column("second loss", "measured", 4),
    ]  # fmt: skip
    title = (
        f"{net}/{width_divisor} of {side}² under {format_size(capacity, MIB)} MiB a rank, for real"
    )
    return _real_sentence(predicted, measured_peaks, capacity), Table(
        title, columns, rows, _REAL_NOTE
    )


_REAL_NOTE = (
    "Two steps are trained on the same batch. A loss is that before its step's update, so a second loss "
    "below the first shows that the first step trained. A rank may exceed the capacity without failing: "
    "the peak that its allocator reports is compared with the capacity."
)


def _real_sentence(
    predicted: Mapping[str, PredictedStep], measured_peaks: Mapping[str, int], capacity: int
) -> str:
    """Returns a sentence that says which methods fit, and how often prediction and measurement agree."""
    agree = [
        n
        for n in measured_peaks
        if (max(predicted[n].peaks) <= capacity) == (measured_peaks[n] <= capacity)
    ]
    fit = [n for n in measured_peaks if measured_peaks[n] <= capacity]
    return (
        f"For real under {format_size(capacity, MIB)} MiB a rank: {', '.join(fit) or 'nothing'} fits; "
        f"prediction and "
        f"measurement agree for {len(agree)} of {len(measured_peaks)} methods."
    )


def yes_or_no(peak: int, capacity: int) -> str:
    """Returns "yes" if the peak fits the capacity, else "no"."""
    return "yes" if peak <= capacity else "no"
