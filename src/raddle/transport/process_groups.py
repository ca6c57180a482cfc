"""The process groups of torch.distributed that raddle makes for itself, in the user's job or in torchrun's.

They separate raddle's operations from the user's collectives. Messages, sums (all-reduces) and small
broadcasts have separate groups, because a gloo group runs only two operations at a time. gloo matches
messages by tags. NCCL has no tags and runs the operations of a communicator one after the other; so with
NCCL every link, a pair of ranks (source, target), has its own group, and both ranks of a link must issue
its messages in the same order.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import permutations
from typing import cast

import torch
import torch.distributed as dist

from raddle.errors import InputError
from raddle.transport.base import LAST_TAG

LinkEnd = tuple[dist.ProcessGroup, int]  # the group of a link, and the peer's rank in it


class ProcessGroups:
    """The groups of this rank. All ranks make the same groups in the same order.

    sums: by tuple of ranks, the group that sums over them. targets, sources: by peer, the link to it and
    the link from it. service: the group for broadcasts and barriers. early_receives: whether a receive may
    be started long before its send, because tags match them: True with gloo, False with NCCL.
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
        # the links (of any ranks) that have a group already; NCCL only
        self._links: set[tuple[int, int]] = set()
        self.sums: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self.targets: dict[int, LinkEnd] = {}
        self.sources: dict[int, LinkEnd] = {}
        self.service: dist.ProcessGroup | None = self._make_group(self.everyone)

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.size))

    def connect(self) -> None:
        """Makes the group for sums over all ranks and, with gloo, the group for messages."""
        self.sums[self.everyone] = self._make_group(self.everyone)
        if self.early_receives:
            messages = self._make_group(self.everyone)
            self.targets = self.sources = {r: (messages, r) for r in self.everyone}

    def prepare(
        self, groups: Sequence[tuple[int, ...]], links: Sequence[tuple[int, int]] | None
    ) -> None:
        """Makes the groups for sums and for links that do not exist yet; links: None means all links."""
        for ranks in groups:
            if ranks not in self.sums:
                self.sums[ranks] = self._make_group(ranks)
        if self.early_receives:
            return
        all_links = list(permutations(self.everyone, 2)) if links is None else links
        new_links = [link for link in all_links if link not in self._links]
        self._links.update(new_links)
        for source, target in new_links:
            group = self._make_group((source, target))
            ends = sorted((source, target))  # torch numbers a group's ranks in this order
            if self.rank == source:
                self.targets[target] = group, ends.index(target)
            elif self.rank == target:
                self.sources[source] = group, ends.index(source)
        self._create_communicators(new_links)

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
        self.targets, self.sources, self.sums, self._joined_groups = {}, {}, {}, []
        self.service = None

    def _make_group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """Makes a group. All ranks call it, also those that are not in the group."""
        group = cast(dist.ProcessGroup, self._new_group(list(ranks)))
        if self.rank in ranks:
            self._joined_groups.append(group)
        return group

    def _create_communicators(self, links: Sequence[tuple[int, int]]) -> None:
        """Makes NCCL create its communicators now, in the same order on all ranks.

        The first operation of a group creates its communicator, and blocks the host until all its ranks
        take part. In the middle of a program this could be a deadlock.
        """
        one = torch.zeros(1, device=self.device)
        for ranks, group in self.sums.items():
            if self.rank in ranks:
                dist.all_reduce(one, group=group)
        for source, target in links:
            if self.rank == source:
                group, peer = self.targets[target]
                dist.send(one, group=group, group_dst=peer)
            elif self.rank == target:
                group, peer = self.sources[source]
                dist.recv(one, group=group, group_src=peer)
        torch.cuda.synchronize(self.device)


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
