"""An experiment that takes no time: a part of each kind, one that is skipped and one that fails."""

from __future__ import annotations

from experiments.experiment import Part, RunOptions
from raddle.errors import InputError
from raddle.reports.experiments.result import Chart, Column, Drawing, Line, Section, Table

TITLE = "A made-up paper"
CLAIMS = ("It is 2.5 times as fast.", "It needs less memory.")
DIFFERS = ("Nothing is run.",)

DEVICES = (1, 2, 4, 8)


def table(options: RunOptions) -> Section:
    rows = [["b|c", 2, 12.345, None], ["a", 10, 1234.5, 0.5], ["d", 1, None, 3.25]]
    columns = [
        Column("plan"),
        Column("devices"),
        Column("step, ms", "measured"),
        Column("step, ms", "printed", digits=1),
    ]
    return Section(
        "Steps",
        "The first.\n\nThe second.",
        [Table("A step", columns, rows[: 2 if options.quick else 3], "of batch 8")],
    )


def chart(options: RunOptions) -> Section:
    options.report("half of it", 0.5)
    lines = [
        Line("data", [(n, 100.0 * n) for n in DEVICES], "simulated"),
        Line("data", [(n, 90.0 * n) for n in DEVICES[:3]], "printed"),
        Line("ours", [(n, 150.0 * n) for n in DEVICES[1:]], "measured"),
    ]
    drawn = Drawing("A plan", ["conv  n/2", "fc    c/2"], "a row a layer")
    return Section(
        "Speed", "", [Chart("Throughput", "devices", "images/s", lines, log_x=True), drawn]
    )


def skipped(options: RunOptions) -> Section:
    return Section("Links", skipped="there is no lab on this machine.")


def fails(options: RunOptions) -> Section:
    raise InputError("two ranks of this machine failed: free some memory.")


PARTS = (
    Part("table", "Steps", table),
    Part("chart", "Speed", chart),
    Part("skipped", "Links", skipped),
)
FAILING = (*PARTS, Part("fails", "failing", fails))
