"""Records when a rank carries out its actions, for traces (measured_trace.py).

Times are read from the host's clock. On a GPU, the host waits for the GPU after each run, wait and update.
So times are those of the GPU, but kernel launches no longer overlap with computation while the recorder is
on.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch

from raddle.program.describe import PHASES
from raddle.runtime.actions import (
    Action,
    AwaitMessage,
    Backward,
    Forward,
    Send,
    StartAllReduce,
    StartGather,
    StartReduceScatter,
    StartReplicaSum,
    StartSliceAllReduce,
    UpdateParameters,
)
from raddle.runtime.trainer import Trainer


class RecordedInterval(NamedTuple):
    """An action of one rank, with the interval of time in which it was carried out."""

    # "run", "update", "send", "wait", "sum" (start of an all-reduce or reduce-scatter) or "gather" (start)
    kind: str
    name: str  # label of the segment, name of the value, ...
    # Of a run: "forward", "backward", ...; of a message: its kind; else "update", "reduce" or "gather"
    phase: str
    step: int
    micro: int  # micro-batch; -1: none; of an update: 0
    start: float  # seconds of this rank's clock
    end: float
    nbytes: int = 0  # of a message, or of the full buffer of a collective
    peers: tuple[int, ...] = ()  # of a message: the other rank; of a collective: all that take part
    tag: int = -1  # tells messages, or sums, between the same ranks apart; -1: none

    def shift(self, seconds: float) -> RecordedInterval:
        """Returns the same interval, with `seconds` added to its start and end."""
        return self._replace(start=self.start + seconds, end=self.end + seconds)


class Recorder:
    """Records a trainer's actions, from the call of `start` on."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.intervals: list[RecordedInterval] = []

    def start(self) -> None:
        """Starts recording: sets the executor's hooks."""
        executor = self.trainer.executor
        optimizer_step = executor.optimizer_step

        def timed_step() -> None:
            start = time.perf_counter()
            optimizer_step()
            self._add("update", "parameters", "update", 0, start, self._now())

        executor.optimizer_step = timed_step
        executor.record = self._record

    def _now(self) -> float:
        """Waits until the GPU, if there is one, has finished all work so far; returns the time then."""
        if self.trainer.place.type == "cuda":
            torch.cuda.current_stream(self.trainer.place).synchronize()
        return time.perf_counter()

    def _record(self, action: Action, start: float, end: float) -> None:
        """Notes an action that the executor has carried out."""
        traffic: tuple[int, tuple[int, ...], int]  # bytes, peers, tag
        if isinstance(action, Forward | Backward):
            phase = (
                action.phase
                if isinstance(action, Backward)
                else "R"
                if action.recomputation
                else "F"
            )
            call = action.call
            # PHASES: the word for a phase, such as "forward" for "F"
            self._add("run", call.label, PHASES[phase], call.key.micro_batch, start, self._now())
        elif isinstance(action, Send):
            nbytes = sum(math.prod(p.shape) for p in action.parts) * action.dtype.itemsize
            traffic = (nbytes, (action.peer,), action.tag)
            self._add("send", action.label, str(action.kind), -1, start, end, *traffic)
        elif isinstance(action, AwaitMessage):
            r = action.receive
            traffic = (r.elements * r.dtype.itemsize, (r.peer,), r.tag)
            self._add("wait", r.value, str(r.kind), r.key.micro_batch, start, self._now(), *traffic)
        elif isinstance(action, StartAllReduce):
            bucket = self.trainer.executor.rank_actions.buckets[action.bucket]
            traffic = (bucket.elements * bucket.dtype.itemsize, bucket.devices, action.tag)
            self._add("sum", action.label, "reduce", -1, start, end, *traffic)
        elif isinstance(action, StartReplicaSum):
            block = self.trainer.executor.rank_actions.blocks[action.block]
            traffic = (
                block.shard_elements * block.reduce_dtype.itemsize,
                block.replicas,
                action.tag,
            )
            self._add("sum", action.label, "reduce", -1, start, end, *traffic)
        elif isinstance(action, StartReduceScatter | StartGather):
            block = self.trainer.executor.rank_actions.blocks[action.block]
            gathers = isinstance(action, StartGather)
            dtype = block.gather_dtype if gathers else block.reduce_dtype
            nbytes = len(block.devices) * block.shard_elements * dtype.itemsize
            traffic = (nbytes, block.devices, action.tag)
            kind, phase = ("gather", "gather") if gathers else ("sum", "reduce")
            self._add(kind, action.label, phase, -1, start, end, *traffic)
        elif isinstance(action, StartSliceAllReduce):
            rank_actions = self.trainer.executor.rank_actions
            slices = [rank_actions.slices[n] for n in rank_actions.bundles[action.number]]
            devices = slices[0].region.devices
            nbytes = sum(s.region.box.volume * s.dtype.itemsize for s in slices)
            traffic = (nbytes, devices, action.number)  # the number of the bundle serves as the tag
            if len(devices) > 1:
                self._add("sum", action.label, "reduce", -1, start, end, *traffic)
        elif isinstance(action, UpdateParameters) and self.trainer.executor.rank_actions.buckets:
            self._add("wait", "sums of gradients", "reduce", -1, start, self._update_start(start))

    def _update_start(self, default: float) -> float:
        """Returns the start of the update that was recorded last, when the wait for all-reduces ended."""
        last = self.intervals[-1] if self.intervals else None
        return last.start if last is not None and last.kind == "update" else default

    def _add(
        self, kind: str, name: str, phase: str, micro: int, start: float, end: float,
        nbytes: int = 0, peers: tuple[int, ...] = (), tag: int = -1,
    ) -> None:  # fmt: skip
        step_and_times = (self.trainer.steps, micro, start, end)
        self.intervals.append(
            RecordedInterval(kind, name, phase, *step_and_times, nbytes, peers, tag)
        )
