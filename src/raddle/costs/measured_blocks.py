"""Measured blocks: seconds of whole segments as the executor runs them, fused and in their precision.

`raddle probe --model` times each block (a segment, forward or backward) at a batch and at a small part of
it. The block's work at any size is what the roofline says, without overheads, so a tile of another size, or
another batch, takes

    fixed + slope × work        on a CPU, or of a GPU's time
    at least `floor`            on a GPU: the host needs this long to launch the block's kernels

`slope` is the measured time divided by the predicted one. Each operator gets the share of the fixed seconds
that it has of the block's work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from raddle.clusters import Device
from raddle.errors import InputError
from raddle.files import Fields

MAX_SECONDS = 1e6  # of a block; longer times in a file are an error
MAX_SLOPE = 1e6  # measured seconds for a second of the roofline


class OperatorTime(NamedTuple):
    """What a measured block says about one of its operators, in seconds."""

    fixed: float
    slope: float
    floor: float

    def seconds(self, work: float, part: float = 1.0) -> float:
        """Returns the seconds for an amount of work (roofline seconds without overheads).

        part: of the fixed seconds, if only a part of the block's phase runs, as in a split backward.

        >>> OperatorTime(fixed=1.0, slope=2.0, floor=4.0).seconds(3.0)
        7.0
        """
        return max(part * self.fixed + self.slope * work, part * self.floor)


@dataclass(frozen=True)
class MeasuredBlock:
    """A measured block in a phase: "F" (forward) or "B" (backward)."""

    phase: str
    fixed: float  # seconds at any size
    slope: float  # seconds for each second of the roofline, without overheads
    floor: float  # the host's seconds, which the block takes at least
    seconds: float  # as measured at the batch of the profile
    shares: Mapping[str, float]  # by operator, its share of the block's work


@dataclass(frozen=True)
class MeasuredBlocks:
    """All measured blocks of a model, and what they were measured for."""

    device: Mapping[str, Any]  # the device whose roofline the slopes refer to (`device_numbers`)
    model: str
    batch: int
    precision: str
    compiled: bool  # whether the blocks went through torch.compile
    update_bandwidth: float  # bytes/s that the updates of a step read and write
    blocks: tuple[MeasuredBlock, ...]
    # By operator, what it is: an equal name in another model, or another precision, is not measured.
    operators: Mapping[str, str]

    @cached_property
    def _times(self) -> Mapping[tuple[str, str], OperatorTime]:
        """The times by operator and phase."""
        return {
            (name, b.phase): OperatorTime(share * b.fixed, b.slope, share * b.floor)
            for b in self.blocks
            for name, share in b.shares.items()
        }

    def find(self, name: str, identity: str, phase: str) -> OperatorTime | None:
        """Returns the time of an operator in phase "F" or "B"; None if it was not measured.

        identity: what the operator is, in the words of `operators`.
        """
        return self._times.get((name, phase)) if self.operators.get(name) == identity else None

    def check_device(self, device: Device) -> bool:
        """Returns whether the blocks were measured on this kind of device.

        Raises InputError if the kind is the same and its numbers are not: slopes refer to them. So they do
        to what torch.compile fuses.
        """
        if device.kind != self.device["kind"]:
            return False
        if device.compile != self.compiled:
            measured, wanted = ("with", "without") if self.compiled else ("without", "with")
            option = "--compile" if device.compile else "no --compile"
            raise InputError(
                f"the profile of {self.model} was measured {measured} torch.compile, and the plan is "
                f"{wanted} it: probe again with {option}, or plan as the profile was measured."
            )
        if device_numbers(device) != self.device:
            raise InputError(
                f"the profile was measured for another description of {device.kind} than the cluster has: "
                "probe again with --cluster and this cluster."
            )
        return True

    def check_precision(self, precision: str) -> None:
        """Raises InputError if the blocks were measured in another precision."""
        if precision != self.precision:
            raise InputError(
                f"the profile of {self.model} was measured in {self.precision}, not in {precision}: "
                f"probe again with --precision {precision}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of the file."""
        return asdict(self)


def device_numbers(device: Device) -> dict[str, Any]:
    """Returns the numbers of a device that its roofline uses, as they are in a file."""
    return {
        "kind": device.kind,
        "flops": dict(device.flops),
        "bandwidth": device.bandwidth,
        "efficiency": dict(device.efficiency),
    }


def read_blocks(content: Any, place: str) -> MeasuredBlocks:
    """Reads what `to_dict` returned; InputError if it is damaged. place: names the file in errors."""
    names = [
        "device",
        "model",
        "batch",
        "precision",
        "compiled",
        "update_bandwidth",
        "blocks",
        "operators",
    ]
    fields = Fields.from_data(content, place, names)
    operators, device = fields.object("operators"), fields.object("device")
    device.text("kind")
    compiled = fields.data["compiled"]
    if type(compiled) is not bool:
        raise fields.error("compiled", "true or false")
    return MeasuredBlocks(
        device=device.data,
        model=fields.text("model"),
        batch=fields.count("batch", 1),
        precision=fields.text("precision"),
        compiled=compiled,
        update_bandwidth=fields.number("update_bandwidth", 1),
        blocks=tuple(_read_block(block, place) for block in fields.list("blocks")),
        operators={name: operators.text(name) for name in operators.data},
    )


def _read_block(content: Any, place: str) -> MeasuredBlock:
    names = ["phase", "fixed", "slope", "floor", "seconds", "shares"]
    fields = Fields.from_data(content, f"a block of {place}", names)
    shares, phase = fields.object("shares"), fields.text("phase")
    if phase not in ("F", "B"):
        raise fields.error("phase", "F or B")
    return MeasuredBlock(
        phase=phase,
        fixed=fields.number("fixed", 0, MAX_SECONDS),
        slope=fields.number("slope", 0, MAX_SLOPE),
        floor=fields.number("floor", 0, MAX_SECONDS),
        seconds=fields.number("seconds", 0, MAX_SECONDS),
        shares={name: shares.number(name, 0, 1) for name in shares.data},
    )


def fit_block(
    phase: str, samples: Sequence[tuple[float, float]], works: Mapping[str, float], floor: float
) -> MeasuredBlock:
    """Returns a block whose line goes through its measured times.

    samples: (roofline seconds of the work, measured seconds) at the batch and, if it was measured, at a
    part of it. works: by operator, the roofline seconds at the batch. The line is exact at the batch, and
    never falls: with noise, or a single sample, the time is proportional to the work, or constant.

    >>> fit_block("F", [(2.0, 5.0), (1.0, 3.0)], {"a": 2.0}, floor=0.0).slope
    2.0
    """
    work, seconds = samples[0]
    slope = seconds / work if work else 0.0
    if len(samples) > 1 and samples[1][0] < work:
        small_work, small_seconds = samples[1]
        slope = min(slope, max(0.0, (seconds - small_seconds) / (work - small_work)))
    shares = {name: w / work if work else 1 / len(works) for name, w in works.items()}
    return MeasuredBlock(phase, max(0.0, seconds - slope * work), slope, floor, seconds, shares)
