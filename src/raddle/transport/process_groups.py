"""The process groups of torch.distributed that raddle makes for itself, in the user's job or in torchrun's.

They separate raddle's operations from the user's collectives. How many there are depends on the backend:

- NCCL runs the operations of a group one after the other on a stream of the group, and every group takes
  seconds and memory to make. So there is one for each distinct set of ranks that have collectives; that of
  all ranks is also for broadcasts and barriers. All messages share two groups: one for those up, to higher
  ranks, and one for those down.
- gloo matches messages by tags, in any order, and a group runs only two operations at a time. So gloo has a
  group for messages in both directions, where receives may be started early, and one for broadcasts and
  barriers, which then never wait behind a large sum. A group of gloo takes milliseconds to make.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import cast

import torch
import torch.distributed as dist

from raddle.errors import InputError
from raddle.transport.base import DOWN, LAST_TAG, UP, GroupsMade
from raddle.transport.memory_in_use import memory_in_use


class ProcessGroups:
    """The groups of this rank. All ranks make the same groups in the same order.

    collectives: by tuple of ranks, the group of their collectives. messages: by direction, UP or DOWN, the
    group for messages; it has all ranks. service: the group for broadcasts and barriers. early_receives:
    whether a receive may be started long before its send, because tags match them: True with gloo, False
    with NCCL.
    """

    def __init__(self, device: torch.device, backend: str, timeout: float) -> None:
        limit = timedelta(seconds=timeout)
        # whether raddle makes (and later destroys) torch's default group, not the user
        self._owner = not dist.is_initialized()
        if self._owner:
            _join(backend, limit)
        self.device = device
        self.early_receives = backend != "nccl"  # gloo matches messages by tags
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._new_group = partial(dist.new_group, timeout=limit, backend=backend)
        self._joined_groups: list[dist.ProcessGroup] = []  # groups that have this rank
        self._groups_made = GroupsMade()
        self.collectives: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self.messages: dict[int, dist.ProcessGroup] = {}
        with self._measure():
            self.service: dist.ProcessGroup | None = self._make_group(self.everyone)

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.size))

    def connect(self) -> None:
        """Makes the group for collectives of all ranks and, with gloo, the group for messages."""
        assert self.service is not None
        with self._measure():
            if not self.early_receives:
                self.collectives[self.everyone] = self.service
                return
            self.collectives[self.everyone] = self._make_group(self.everyone)
            self.messages = dict.fromkeys((UP, DOWN), self._make_group(self.everyone))

    def prepare(self, groups: Sequence[tuple[int, ...]], directions: Sequence[int]) -> GroupsMade:
        """Makes the groups that do not exist yet; returns all groups of this rank.

        groups: sets of ranks, in ascending order, that have collectives. directions: of messages.
        """
        with self._measure():
            for ranks in groups:
                if ranks not in self.collectives:
                    self.collectives[ranks] = self._make_group(ranks)
            for direction in directions:
                if direction not in self.messages:
                    self.messages[direction] = self._make_group(self.everyone)
        return self._groups_made

    def abort(self) -> None:
        """Makes all waits on these groups raise, on this rank and, as connections close, on others."""
        if self.early_receives:
            for group in self._joined_groups:
                _close_connections(group)
            return
        # All at the same time, because an idle group aborts only after the kernels of the others.
        aborts = [
            threading.Thread(target=_abort, args=(g,), daemon=True) for g in self._joined_groups
        ]
        for thread in aborts:
            thread.start()
        for thread in aborts:
            thread.join(5)

    def close(self, *, failed: bool) -> None:
        """Destroys the groups, except after a failure if that would wait for ever."""
        assert self.service is not None
        stuck = failed and not (self.early_receives or _can_abort(self.service))
        if dist.is_initialized() and not stuck:  # the user may have destroyed all groups
            for group in self._joined_groups:
                dist.destroy_process_group(group)
            if self._owner:
                dist.destroy_process_group()
        self.messages, self.collectives, self._joined_groups = {}, {}, []
        self.service = None

    def _make_group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """Makes a group. All ranks call it, also those that are not in the group."""
        group = cast(dist.ProcessGroup, self._new_group(list(ranks)))
        if self.rank in ranks:
            self._joined_groups.append(group)
            if not self.early_receives:
                # The first operation of a group makes NCCL connect its ranks, and blocks the host until all
                # of them take part. In the middle of a program this could be a deadlock.
                dist.all_reduce(torch.zeros(1, device=self.device), group=group)
                torch.cuda.synchronize(self.device)
        return group

    @contextlib.contextmanager
    def _measure(self) -> Iterator[None]:
        """Counts the groups that are made in the `with` block, and the seconds and bytes that they take."""
        count, began = len(self._joined_groups), time.perf_counter()
        used_before = memory_in_use(self.device)
        yield
        if len(self._joined_groups) > count:
            nbytes = max(0, memory_in_use(self.device) - used_before)
            self._groups_made = GroupsMade(
                len(self._joined_groups),
                self._groups_made.seconds + time.perf_counter() - began,
                self._groups_made.nbytes + nbytes,
            )


def _join(backend: str, limit: timedelta) -> None:
    """Makes torch's default process group from torchrun's environment variables."""
    try:
        dist.init_process_group(backend, timeout=limit)
    except ValueError as error:
        raise InputError(
            f"no process group and none to join ({error}): start with torchrun --nproc-per-node N"
        ) from error


def _close_connections(group: dist.ProcessGroup) -> None:
    """Closes a gloo group's connections by a receive that times out: gloo has no call to abort."""
    if group.size() == 1:
        return
    peer = 1 if group.rank() == 0 else 0
    with contextlib.suppress(RuntimeError):
        # A message with this tag is never sent.
        work = dist.irecv(torch.empty(1), group=group, tag=LAST_TAG + 1, group_src=peer)
        assert work is not None
        work.wait(timedelta(milliseconds=1))


def _can_abort(group: dist.ProcessGroup) -> bool:
    return hasattr(group, "abort")  # not in torch 2.6: there, NCCL's watchdog ends the process


def _abort(group: dist.ProcessGroup) -> None:
    if _can_abort(group):
        with contextlib.suppress(RuntimeError):
            group.abort()
