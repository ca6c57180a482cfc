"""Shows how busy a link is over time, from the byte counters of a host's interface.

This is the part `utilisation` of `raddle reproduce p3`. The paper is "Priority-based Parameter Propagation"
(Jayarajan et al., arXiv 1905.03960).

Variants (bandwidth.py) are DDP, and parameter servers of whole parameters (WHOLE), of slices (SLICED), and
of slices with priority (P3). A block is some steps of one variant, one after the other.
Time is divided into *slots* of 25 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.counters import rates_by_slot
from experiments.experiment import RunOptions
from experiments.links import LabUnavailable
from experiments.p3.bandwidth import DDP_LABEL, HOSTS, P3, SLICED, VARIANTS, WHOLE
from experiments.sync_timing import LabMeasurement, TimingJob, measure_in_lab
from raddle.api.lab import parse_rate
from raddle.api.results import Cell, Chart, Column, Line, Section, Table

NET, BATCH, RATE = "vgg19", 20, "1gbit"
SLOT = 0.025  # seconds
SHOWN = 1.0  # seconds of a block that a chart shows
IDLE = 0.05  # share of the rate below which a slot counts as idle
LABELS = (DDP_LABEL, WHOLE, SLICED, P3)


class LinkUse(NamedTuple):
    """The use of a link while one variant trains.

    slots: for each slot, seconds from the start of the block to the middle of the slot, and the rates at
    which the host sends and receives, as shares of the link's rate.
    """

    label: str
    slots: Sequence[tuple[float, float, float]]

    @property
    def sent(self) -> float:
        """The mean rate at which the host sends, as a share of the link's rate."""
        return sum(out for _, out, _ in self.slots) / len(self.slots)

    @property
    def received(self) -> float:
        """The mean rate at which the host receives, as a share of the link's rate."""
        return sum(back for _, _, back in self.slots) / len(self.slots)

    @property
    def idle(self) -> float:
        """The share of the time in which both directions are idle."""
        return sum(max(out, back) < IDLE for _, out, back in self.slots) / len(self.slots)

    @property
    def both_busy(self) -> float:
        """The share of the time in which both directions are at least half full."""
        return sum(min(out, back) >= 0.5 for _, out, back in self.slots) / len(self.slots)


def make(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    title = "The link over time"
    options.report(f"{NET} at {RATE}")
    jobs = [TimingJob(NET, BATCH, {label: VARIANTS[label] for label in LABELS})]
    try:
        measurement = measure_in_lab(
            jobs, ranks=HOSTS, rate=RATE, rounds=2, steps=4, with_counters=True
        )
    except LabUnavailable as reason:
        return Section(title, skipped=str(reason))
    uses = link_uses(measurement, parse_rate(RATE) / 8)
    return Section(title, summary(uses), [table(uses), *charts(uses)])


def link_uses(measurement: LabMeasurement, bytes_per_s: float) -> list[LinkUse]:
    """Returns the use of host 0's link in each variant's last block. bytes_per_s: the link's rate."""
    windows = {label: (begin, end) for label, begin, end in measurement.results[0].windows}
    result = []
    for label in measurement.jobs[0].variants:
        slots = rates_by_slot(measurement.samples, *windows[label], SLOT)
        result.append(
            LinkUse(label, [(t, out / bytes_per_s, back / bytes_per_s) for t, out, back in slots])
        )
    return result


def table(link_uses: Sequence[LinkUse]) -> Table:
    """Returns a table of how busy the link is with each variant."""
    # Column: name, source of its numbers, digits after the point
    columns = (
        Column("kind"), Column("sent, % of the rate", "measured", 0),
        Column("received, %", "measured", 0), Column("idle, % of the time", "measured", 0),
        Column("both ways half full, %", "measured", 0),
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [use.label, *(100 * share for share in (use.sent, use.received, use.idle, use.both_busy))]
        for use in link_uses
    ]
    return Table(
        f"Host 0's link, VGG-19-like at {RATE}", columns, rows,
        f"Four steps of each, in slots of {1e3 * SLOT:.0f} ms; headers count, and a burst of 256 kB may "
        "exceed the rate. Idle: less than 5 % of the rate each way. The paper draws this, and gives no "
        "figures.",
    )  # fmt: skip


def charts(link_uses: Sequence[LinkUse]) -> list[Chart]:
    """Returns a chart for each direction.

    Time 0 is the start of a step, so all lines begin with a forward.
    """
    gbit = parse_rate(RATE) / 1e9
    result = []
    for direction, name in enumerate(("sent", "received")):
        lines = []
        for use in link_uses:
            # shares: (sent, received)
            shown = [(t, shares[direction]) for t, *shares in use.slots if t < SHOWN]
            points = [(round(1e3 * t, 1), round(gbit * share, 3)) for t, share in shown]
            lines.append(Line(use.label, points, "measured"))
        result.append(Chart(f"Host 0, {name}", "ms", "Gbit/s", lines))
    return result


def summary(link_uses: Sequence[LinkUse]) -> str:
    """Returns sentences that compare how busy the link is."""
    by_label = {use.label: use for use in link_uses}
    whole, urgent = by_label[WHOLE], by_label[P3]
    return (
        f"With servers of whole parameters the link is idle for {whole.idle:.0%} of the time and busy both "
        f"ways for {whole.both_busy:.0%}; with P3 it is idle for {urgent.idle:.0%} and busy both ways for "
        f"{urgent.both_busy:.0%}. DDP uses {by_label[DDP_LABEL].sent:.0%} of what the host could send, "
        f"slices without priority {by_label[SLICED].sent:.0%}, P3 {urgent.sent:.0%}."
    )
