"""Predicts the scaling of data parallelism to 512 devices with ring all-reduce, and with servers on fewer.

This is the part `scaling` of `raddle reproduce horovod`. The paper is "Horovod" (Sergeev and Del Balso,
arXiv 1802.05799).

"Data sheet": devices with the speeds of NVIDIA's data sheet. "Fitted": devices made faster by one factor,
printed / predicted throughput of one case (CALIBRATION). The fitted prediction of this case is a little
below the printed number, because communication is not made faster.

The setting is that of the paper's section 8 and of the benchmarks in Horovod's documentation: nodes of 4
Pascal GPUs at 25 Gbit/s, 64 images per GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from experiments.experiment import RunOptions
from raddle.api.clusters import Cluster, cluster
from raddle.api.loading import capture_model
from raddle.api.models import Graph
from raddle.api.planning import plan_for
from raddle.api.programs import Program, lower
from raddle.api.results import Cell, Chart, Column, Line, Section, Table
from raddle.api.simulating import STEPS, simulate

MODELS = {"inception_v3": "Inception V3", "resnet101": "ResNet-101", "vgg16": "VGG-16"}
PER_DEVICE = 64  # images
NODE = 4  # devices per node
QUICK = (1, 4, 16, 64, 128)  # numbers of devices
FULL = (1, 4, 8, 16, 32, 64, 128, 256, 512)
BUCKET = 64 * 2**20  # bytes of gradients that Horovod all-reduces together
GBIT = 1e9 / 8

# Servers need a message for each slice and device, so only few devices are simulated.
SERVER_SIZES_QUICK, SERVER_SIZES = (4, 16), (4, 8, 16, 32)
SERVER_MODEL = "resnet101"
RING = "allreduce"  # simulated as a ring, a tree, or rings inside and between nodes
# ring; one server for all parameters; whole parameters on several servers; slices on several servers
# (greedy: the largest slice goes to the server with the fewest bytes)
SYNCS = (RING, "ps:one", "ps", "ps:sliced,greedy")

# Scaling efficiency by devices, as printed; 128: section 8 over TCP, and the documentation (RDMA).
TCP = {"inception_v3": {128: 0.88}, "resnet101": {128: 0.88}}
RDMA = {
    "inception_v3": {128: 0.90, 512: 0.90},
    "resnet101": {128: 0.90, 512: 0.90},
    "vgg16": {128: 0.79, 512: 0.68},
}
CALIBRATION = ("resnet101", 16, 1656.82)  # images/s of 4 nodes: the documentation's example


class ThroughputCurve(NamedTuple):
    """Images a second by number of devices."""

    model: str
    rates: Mapping[int, float]

    def efficiency(self, devices: int) -> float:
        """Returns the scaling efficiency: throughput divided by `devices` times that of one device."""
        return self.rates[devices] / (devices * self.rates[1])


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    sizes = QUICK if options.quick else FULL
    factor = calibration()
    # A curve for each network, at the data sheet's speed and at the fitted one
    sheet: list[ThroughputCurve] = []
    fitted: list[ThroughputCurve] = []
    for done, model in enumerate(MODELS):
        rates: list[dict[int, float]] = [{}, {}]  # the same two: devices -> images/s
        for finished_sizes, devices in enumerate(sizes):
            # + 1: the servers, which are simulated after the networks
            fraction = (done + finished_sizes / len(sizes)) / (len(MODELS) + 1)
            options.report(f"{MODELS[model]} on {devices}", fraction)
            program = program_of(model, devices)
            for rates_at_speed, speed in zip(rates, (1.0, factor), strict=True):
                rates_at_speed[devices] = images_per_s(program, devices, speed)
        sheet.append(ThroughputCurve(model, rates[0]))
        fitted.append(ThroughputCurve(model, rates[1]))
    options.report("servers", len(MODELS) / (len(MODELS) + 1))
    rates_by_sync = server_throughput(SERVER_SIZES_QUICK if options.quick else SERVER_SIZES, factor)
    parts = (
        efficiencies(sheet, fitted),
        chart(fitted),
        throughput(sheet, fitted),
        server_table(rates_by_sync),
    )
    return Section(f"Scaling to {sizes[-1]} devices", summary(fitted, rates_by_sync, factor), parts)


def pascal(devices: int, factor: float = 1.0) -> Cluster:
    """Returns nodes of four P100 at 25 Gbit/s, computing `factor` times as fast as by the data sheet."""
    base = cluster(f"p100:{max(1, devices // NODE)}x{min(NODE, devices)}")
    faster = [
        replace(
            device,
            flops={dtype: factor * peak for dtype, peak in device.flops.items()},
            bandwidth=factor * device.bandwidth,
            overhead=device.overhead / factor,
        )
        for device in base.devices
    ]
    # None where there is one node only
    between = [net and replace(net, bandwidth=25 * GBIT) for net in base.node_networks]
    return replace(base, devices=tuple(faster), node_networks=tuple(between))


@cache
def graph_of(model: str, devices: int) -> Graph:
    """Returns the graph of a network at the batch of all devices together."""
    return capture_model(model, PER_DEVICE * devices)


def program_of(model: str, devices: int, sync: str = "allreduce") -> Program:
    """Returns the lowered program of data parallelism."""
    # bn="local": each device takes the batch-norm statistics of its own samples, as in DDP. STEPS steps are
    # simulated one after the other; the last one is timed.
    graph = graph_of(model, devices)
    plan = plan_for(graph, pascal(devices), "data", bn="local", sync=sync)
    return lower(graph, replace(plan, bucket=BUCKET, steps=STEPS))


def images_per_s(program: Program, devices: int, factor: float) -> float:
    """Returns the predicted throughput of all devices together. factor: see `pascal`."""
    return PER_DEVICE * devices / simulate(program, pascal(devices, factor)).step_seconds


def calibration() -> float:
    """Returns how many times faster the paper's devices are than the data sheet's.

    The factor follows from one printed throughput (CALIBRATION).
    """
    model, devices, printed = CALIBRATION
    return printed / images_per_s(program_of(model, devices), devices, 1.0)


def server_throughput(sizes: Sequence[int], factor: float) -> dict[str, dict[int, float]]:
    """Returns the images/s of SERVER_MODEL by sync kind and number of devices."""
    throughput: dict[str, dict[int, float]] = {sync: {} for sync in SYNCS}
    for sync, by_devices in throughput.items():
        for devices in sizes:
            by_devices[devices] = images_per_s(
                program_of(SERVER_MODEL, devices, sync), devices, factor
            )
    return throughput


def efficiencies(sheet: Sequence[ThroughputCurve], fitted: Sequence[ThroughputCurve]) -> Table:
    """Returns a table of scaling efficiencies, simulated and printed."""
    # Column: name, source of its numbers, digits after the point
    columns = (
        Column("network"), Column("devices"), Column("data sheet, %", "simulated", 0),
        Column("fitted, %", "simulated", 0), Column("TCP, %", "printed", 0),
        Column("RDMA, %", "printed", 0),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for plain, fitted_curve in zip(sheet, fitted, strict=True):
        for devices in plain.rates:
            printed = [
                _percent(table.get(fitted_curve.model, {}).get(devices)) for table in (TCP, RDMA)
            ]
            simulated = [100 * curve.efficiency(devices) for curve in (plain, fitted_curve)]
            rows.append([MODELS[fitted_curve.model], devices, *simulated, *printed])
    return Table(
        "Scaling efficiency", columns, rows,
        f"Images per second on N devices, in percent of N times those of one; {PER_DEVICE} images per "
        f"device, nodes of {NODE} P100, 25 Gbit/s between them, fused to 64 MiB. Fitted: devices are made "
        "faster, so that ResNet-101 on 16 devices comes near the 1656.82 images/s of the documentation. "
        "Printed for 128: the paper over TCP, the documentation over RDMA; for 512 the documentation.",
    )  # fmt: skip


def chart(fitted: Sequence[ThroughputCurve]) -> Chart:
    """Returns a chart of fitted and printed scaling efficiencies over the number of devices."""
    lines = []
    for curve in fitted:
        points = [(float(n), 100 * curve.efficiency(n)) for n in curve.rates]
        lines.append(Line(MODELS[curve.model], points, "simulated"))
        printed = [(float(n), 100 * share) for n, share in RDMA[curve.model].items()]
        lines.append(Line(f"{MODELS[curve.model]}, RDMA", printed, "printed"))
    return Chart("Scaling efficiency, fitted", "devices", "%", lines, log_x=True)


def throughput(sheet: Sequence[ThroughputCurve], fitted: Sequence[ThroughputCurve]) -> Table:
    """Returns a table of the images per second of all networks."""
    columns = [Column("devices")]
    for kind in ("data sheet", "fitted"):
        columns += [Column(f"{name}, {kind}", "simulated") for name in MODELS.values()]
    rows: list[list[Cell]] = [
        [devices, *(curve.rates[devices] for curve in (*sheet, *fitted))]
        for devices in sheet[0].rates
    ]
    return Table(
        "Images a second", columns, rows, "Only one is printed: 1656.82, ResNet-101 on 16."
    )


def server_table(rates_by_sync: Mapping[str, Mapping[int, float]]) -> Table:
    """Returns a table of images per second by sync kind and number of devices."""
    sizes = list(rates_by_sync[RING])
    columns = [Column("synchronised by"), *(Column(f"{n} devices", "simulated") for n in sizes)]
    rows: list[list[Cell]] = [
        [sync, *by_devices.values()] for sync, by_devices in rates_by_sync.items()
    ]
    return Table(
        f"{MODELS[SERVER_MODEL]}: rings and servers, images a second, fitted", columns, rows,
        "Servers share the devices' links. The paper's servers ran as processes of their own on the nodes; "
        "it prints that about half of 128 GPUs was lost.",
    )  # fmt: skip


def summary(
    fitted: Sequence[ThroughputCurve],
    rates_by_sync: Mapping[str, Mapping[int, float]],
    factor: float,
) -> str:
    """Returns the sentences above the tables; factor: see `calibration`."""
    sentences = []
    for curve in fitted:
        last = max(curve.rates)
        text = f"{MODELS[curve.model]} is predicted to keep {curve.efficiency(last):.0%} on {last} devices"
        printed = RDMA[curve.model].get(last)
        sentences.append(f"{text} (printed: {printed:.0%})." if printed else f"{text}.")
    most = max(rates_by_sync[RING])
    parts = ", ".join(
        f"{sync} {by_devices[most] / rates_by_sync[RING][most]:.2f} x"
        for sync, by_devices in rates_by_sync.items()
        if sync != RING
    )
    return (
        f"The printed 1656.82 images/s are {factor:.2f} x what the data sheet's devices are predicted to "
        "do. "
        + " ".join(sentences)
        + f" On {most} devices servers reach, of the ring's throughput for {MODELS[SERVER_MODEL]}: {parts}."
    )


def _percent(share: float | None) -> float | None:
    """Returns a share (0 to 1) in percent; None stays None."""
    return None if share is None else 100 * share
