"""Messages between processes of one machine: through memory that both see.

A rank that sends copies into an area of its own (in an anonymous file) and sends a word that says which.
The other maps the file, once, and hands out tensors that lie in the area: nothing is copied again. The
area's first byte says whether somebody looks at it; when the last tensor is gone, it is free for the next
message of its size. Over TCP the same takes two copies, a kernel's buffers and, if the target is fresh
memory, a page fault every 4 kB.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pathlib
import struct
import threading
import weakref
from typing import NamedTuple

import torch
from torch import Tensor

LARGE_BYTES = 2**18  # bytes that take long enough to copy for a thread of its own
MIN_FILE_BYTES = 2**22  # bytes: smaller areas share a file, as a process may have few of them open
HEADER_BYTES = mmap.PAGESIZE  # before the content, which is aligned
AREA_ADDRESS = struct.Struct("<3q")  # process, file, place in it
FREE, TAKEN = 0, 1


class ProcessLocation(NamedTuple):
    """Where a process is: the same `host` for those that no network is meant to part, and a file of its."""

    host: str
    pid: int
    file: int


def locate_process() -> ProcessLocation:
    """This process's; without such files it is alone."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists() or not hasattr(os, "memfd_create"):
        return ProcessLocation(f"{os.uname().nodename} {os.getpid()}", os.getpid(), -1)
    namespaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid", "user")]
    file = os.memfd_create("raddle seat")
    return ProcessLocation(
        f"{boot.read_text().strip()} {namespaces} {os.getuid()}", os.getpid(), file
    )


def can_access(location: ProcessLocation, other: ProcessLocation) -> bool:
    """Whether this process may look at another's memory: tried on the file that it opened for that."""
    if location.host != other.host or other.file < 0:
        return False
    with contextlib.suppress(OSError):
        os.close(os.open(f"/proc/{other.pid}/fd/{other.file}", os.O_RDWR))
        return True
    return False


class SharedAreas:
    """The areas of one rank, and the files of others that it has seen."""

    def __init__(self) -> None:
        self._areas: dict[
            int, list[tuple[int, mmap.mmap, int]]
        ] = {}  # by size: file, memory, place
        self._mapped_files: dict[tuple[int, int], mmap.mmap] = {}  # by process and file
        self._lock = threading.Lock()

    def put(self, buffer: Tensor) -> bytes:
        """Copies a buffer; the word that tells another process where it is."""
        with self._lock:
            file, memory, place = self._take_free_area(_size(buffer.nbytes))
            memory[place] = TAKEN
        area = torch.frombuffer(
            memory, dtype=buffer.dtype, offset=place + HEADER_BYTES, count=buffer.numel()
        )
        area.copy_(buffer)
        return AREA_ADDRESS.pack(os.getpid(), file, place)

    def get(self, packet: bytes, elements: int, dtype: torch.dtype) -> Tensor:
        """What a word tells of; the area is free again when nobody looks at the tensor any more."""
        pid, file, place = AREA_ADDRESS.unpack(packet)
        nbytes = elements * dtype.itemsize
        with self._lock:
            if (pid, file) not in self._mapped_files:
                opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
                self._mapped_files[pid, file] = _map(opened, os.fstat(opened).st_size)
                os.close(opened)
            memory = self._mapped_files[pid, file]
        content = (ctypes.c_char * nbytes).from_buffer(memory, place + HEADER_BYTES)
        weakref.finalize(content, memory.__setitem__, place, FREE).atexit = False
        return torch.frombuffer(content, dtype=dtype)

    def _take_free_area(self, size: int) -> tuple[int, mmap.mmap, int]:
        areas = self._areas.setdefault(size, [])
        for area in areas:
            if area[1][area[2]] == FREE:
                return area
        step = HEADER_BYTES + size
        count = max(1, MIN_FILE_BYTES // step)
        file = os.memfd_create("raddle messages")
        os.ftruncate(file, count * step)
        memory = _map(file, count * step)
        areas += [(file, memory, number * step) for number in range(count)]
        return areas[-count]

    def close(self) -> None:
        """Files go; what is mapped stays as long as a tensor lies in it."""
        for file in {file for areas in self._areas.values() for file, *_ in areas}:
            with contextlib.suppress(OSError):
                os.close(file)
        self._areas, self._mapped_files = {}, {}


def _size(nbytes: int) -> int:
    """Of the area for a message: in whole pages, a power of two of them while it is small."""
    pages = max(1, -(-nbytes // mmap.PAGESIZE))
    return mmap.PAGESIZE * (pages if nbytes >= LARGE_BYTES else 1 << (pages - 1).bit_length())


def _map(file: int, nbytes: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # no page faults later
    return mmap.mmap(file, nbytes, flags=flags)


class ReceivePool:
    """Memory of messages that come over a network, used again when nobody looks at it any more."""

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}  # by bytes

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        nbytes = elements * dtype.itemsize
        free = self._free.setdefault(nbytes, [])
        memory = free.pop() if free else mmap.mmap(-1, nbytes)
        content = (ctypes.c_char * nbytes).from_buffer(memory)
        weakref.finalize(content, free.append, memory).atexit = False
        return torch.frombuffer(content, dtype=dtype)
