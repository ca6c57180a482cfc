"""Checks whether a program fits into the memory of a cluster's devices."""

from __future__ import annotations

from collections.abc import Sequence

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.program.program import Program
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import simulate


def fits(peaks: Sequence[int], cluster: Cluster) -> bool:
    """Returns whether every device has enough memory; peaks: by device, its peak bytes."""
    return all(peak <= cluster.devices[d].memory for d, peak in enumerate(peaks))


def check_memory(program: Program, cluster: Cluster) -> None:
    """Simulates the program; raises InputError that names the first device without enough memory."""
    for d, peak in enumerate(peak_bytes(simulate(program, cluster))):
        device = cluster.devices[d]
        if peak > device.memory:
            raise InputError(
                f"device {d} would need {peak:,} bytes at its fullest, a {device.kind} has "
                f"{device.memory:,}: split more, or use smaller micro-batches."
            )
