"""Sums of gradients over the devices that hold a parameter, in buckets."""

from __future__ import annotations

import torch

from raddle.program.program import Program, Reduce
from raddle.runtime.actions import Bucket, StartAllReduce
from raddle.runtime.builders.slot_table import Pieces


class Sums:
    """The buckets of one device, and all groups of devices that sum, in the same order on every rank."""

    def __init__(self, program: Program, device: int, pieces: Pieces) -> None:
        self.program, self.device, self.pieces = program, device, pieces
        self.buckets: list[Bucket] = []
        self.groups: list[tuple[int, ...]] = []

    def note_groups(self, reduce: Reduce) -> None:
        """Every rank knows of every group, also of those that it is not in."""
        for shares in reduce.regions:
            self.groups += [s.devices for s in shares if s.devices not in self.groups]

    def reduce(self, reduce: Reduce, tag: int) -> list[StartAllReduce]:
        """A bucket for each group and type that this device takes part in."""
        together: dict[tuple[tuple[int, ...], torch.dtype], list[tuple[int, int]]] = {}
        for name, shares in zip(reduce.parameters, reduce.regions, strict=True):
            slots = dict(self.pieces.lasting.get(name, []))
            for share in shares:
                if self.device in share.devices:
                    dtype = self.program.graph.values[name].dtype
                    own = together.setdefault((share.devices, dtype), [])
                    own.append((slots[share.box], share.box.volume))
        found = []
        for (devices, dtype), own in together.items():
            elements = sum(volume for _, volume in own)
            found.append(
                StartAllReduce(len(self.buckets), tag, f"reduce {reduce.parameters[0]}", reduce.key)
            )
            self.buckets.append(Bucket(devices, tuple(s for s, _ in own), dtype, elements))
        return found
