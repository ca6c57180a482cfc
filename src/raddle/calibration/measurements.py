"""Reads measured throughputs of training steps: a CSV file with one row for each measurement.

    model,batch,devices,method,sync,samples_per_s,use
    vgg16,32,1,data,allreduce,181,fit
    vgg16,512,4x4,owt,"ps:sliced,after",2400,held-out

model           a model of the zoo, or file.py:function
batch           samples of a step, on all devices together
devices         N for the first N devices of the cluster, or 2x4 for two nodes with four devices of each;
                may be empty if there is a plan: then the plan says how many
method          a method of `raddle plan`
plan            a plan file, in place of model, batch, method and sync
sync            a sync kind (default: allreduce)
samples_per_s   the measured throughput; or step_ms, the measured time of a step
use             fit (default); or held-out, for a row that is predicted but takes no part in the fit
source          any text
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import NamedTuple

from raddle.clusters import Cluster
from raddle.errors import InputError, quote
from raddle.files import read_text
from raddle.plans.sync import read_sync
from raddle.searches.registry import method_named

COLUMNS = (
    "model", "batch", "devices", "method", "plan", "sync", "samples_per_s", "step_ms", "use", "source",
)  # fmt: skip
FIT, HELD_OUT = "fit", "held-out"
MAX_MEASUREMENTS = 1000


class Measurement(NamedTuple):
    """One row of the table. If `plan` names a file, the file says model, batch, method and sync.

    The fields for these are then not used (model and method "", batch 0).
    """

    model: str
    batch: int
    devices: str  # "8", "2x4" (nodes x devices of each), or "": as many as the plan file has
    method: str
    plan: str  # the path of a plan file; "": the method makes the plan
    sync: str
    samples_per_s: float  # 0: the file has step_ms
    step_ms: float  # 0: the file has samples_per_s
    held_out: bool  # the row is predicted, but takes no part in the fit

    def step_seconds(self, batch: int) -> float:
        """Returns the measured seconds of a step. batch: its number of samples."""
        return self.step_ms / 1e3 if self.step_ms else batch / self.samples_per_s


def read_measurements(path: str) -> list[Measurement]:
    """Returns the measurements of a CSV file; raises InputError that names the wrong line."""
    reader = csv.DictReader(io.StringIO(read_text(path, "table of measurements")))
    names = [name.strip() for name in reader.fieldnames or ()]
    for name in names:
        if name not in COLUMNS:
            raise InputError(
                f"{quote(path)} has a column {quote(name)}: the columns are {', '.join(COLUMNS)}."
            )
    reader.fieldnames = names
    measurements = []
    for number, row in enumerate(reader, start=2):
        if None in row:
            raise InputError(
                f"{quote(path)}, line {number}: it has more cells than the header line: remove some."
            )
        cells = {name: (cell or "").strip() for name, cell in row.items()}
        if any(cells.values()):
            measurements.append(_measurement(cells, f"{quote(path)}, line {number}"))
    if not any(not m.held_out for m in measurements):
        raise InputError(f"{quote(path)} has no measurement to fit: add a row without held-out.")
    if len(measurements) > MAX_MEASUREMENTS:
        raise InputError(f"{quote(path)} has more than {MAX_MEASUREMENTS} rows: leave some out.")
    return measurements


def _measurement(cells: Mapping[str, str], place: str) -> Measurement:
    """Returns the measurement of a row. cells: by column. place: the file and the line, for errors."""
    plan, use = cells.get("plan", ""), cells.get("use", "") or FIT
    method, sync = cells.get("method", ""), cells.get("sync", "")
    if use not in (FIT, HELD_OUT):
        raise InputError(f"{place}: use is {quote(use)}: write {FIT} or {HELD_OUT}.")
    if bool(plan) == bool(method):
        raise InputError(f"{place}: write either a method or the path of a plan.")
    if plan and (cells.get("model") or cells.get("batch") or sync):
        raise InputError(f"{place}: a plan file names model, batch and sync: leave those empty.")
    if method and not cells.get("model"):
        raise InputError(f"{place}: it names no model: write one, such as vgg16.")
    samples_per_s, step_ms = (
        _positive(cells.get(name, ""), name, place) for name in ("samples_per_s", "step_ms")
    )
    if bool(samples_per_s) == bool(step_ms):
        raise InputError(f"{place}: write either samples_per_s or step_ms.")
    try:
        if method:
            method_named(method)
            read_sync(sync or "allreduce")
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    batch = 0 if plan else _whole(cells.get("batch", ""), "batch", place)
    if not cells.get("devices") and not plan:
        raise InputError(f"{place}: it names no devices: write their number, such as 4 or 1x4.")
    return Measurement(
        cells.get("model", ""), batch, cells.get("devices", ""), method, plan, sync or "allreduce",
        samples_per_s, step_ms, use == HELD_OUT,
    )  # fmt: skip


def _positive(text: str, name: str, place: str) -> float:
    """Returns the positive number in a cell, or 0 for an empty cell."""
    try:
        number = float(text or 0)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0 or (text and not number):
        raise InputError(f"{place}: {name} is {quote(text)}: write a positive number.")
    return number


def _whole(text: str, name: str, place: str) -> int:
    """Returns the positive whole number in a cell."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not int(text):
        raise InputError(f"{place}: {name} is {quote(text)}: write a whole number from 1 on.")
    return int(text)


def part_of_cluster(cluster: Cluster, devices: str) -> Cluster:
    """Returns the part of a cluster that a row names.

    devices: "8" for the first 8 devices, or "2x4" for the first two nodes with 4 devices of each.
    """
    nodes, times, each = devices.lower().rpartition("x")
    numbers = [nodes, each] if times else [each]
    if not all(n.strip().isascii() and n.strip().isdigit() and len(n) < 9 for n in numbers):
        raise InputError(
            f"devices is {quote(devices)}: write a number, or 2x4 for two nodes with 4 devices of each."
        )
    count = int(each)
    if not times:
        if not 1 <= count <= len(cluster.devices):
            raise InputError(
                f"devices is {devices}, but {cluster.name} has {len(cluster.devices)} devices: "
                "write a smaller number."
            )
        return cluster.first_devices(count)
    node_count = int(nodes)
    if not 1 <= node_count <= cluster.nodes or not all(
        1 <= count <= len(cluster.members(a)) for a in range(node_count)
    ):
        raise InputError(
            f"devices is {quote(devices)}, but {cluster.name} does not have {node_count} nodes with "
            f"{count} devices of each: write smaller numbers."
        )
    data = cluster.first_devices(cluster.members(node_count - 1)[-1] + 1).to_dict()
    data["nodes"] = [node | {"devices": node["devices"][:count]} for node in data["nodes"]]
    return Cluster.from_dict(data)
