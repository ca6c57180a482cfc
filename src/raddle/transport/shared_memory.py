"""Shared memory for messages between processes of one machine.

An area is a part of an anonymous file (memfd) of the sender: one header page, then the content. The
sender copies a message into a free area and sends the area's address (pid, file descriptor, offset) in a
packet. The receiver maps the file, once, and returns a tensor inside the area, without another copy. The
first byte of the header says whether the area is in use; when the receiver's tensor is freed, the area is
free for the next message of its size. TCP would need two copies, kernel buffers and, for new memory, a
page fault for every 4 kB.
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

LARGE_BYTES = 2**18  # messages of this size or larger are copied by a thread (sender.py)
MIN_FILE_BYTES = 2**22  # small areas share a file, as the number of open files is limited
HEADER_BYTES = mmap.PAGESIZE  # one page, so that the content is aligned
AREA_ADDRESS = struct.Struct("<3q")  # pid, file descriptor, offset
FREE, TAKEN = 0, 1  # values of the first byte of an area's header


class ProcessLocation(NamedTuple):
    """Where a process runs, so that other processes know whether they may share memory with it.

    host: equal for processes of the same machine, namespaces and user. file: a descriptor that they can
    try to open; -1: shared memory is not supported.
    """

    host: str
    pid: int
    file: int


def locate_process() -> ProcessLocation:
    """Returns this process's location. Without memfd or /proc it shares memory with no other process."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists() or not hasattr(os, "memfd_create"):
        return ProcessLocation(f"{os.uname().nodename} {os.getpid()}", os.getpid(), -1)
    namespaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid", "user")]
    file = os.memfd_create("raddle location")
    return ProcessLocation(
        f"{boot.read_text().strip()} {namespaces} {os.getuid()}", os.getpid(), file
    )


def can_access(location: ProcessLocation, other: ProcessLocation) -> bool:
    """Returns whether this process, which is at `location`, can open the other process's files.

    It tries to open `other.file`.
    """
    if location.host != other.host or other.file < 0:
        return False
    with contextlib.suppress(OSError):
        os.close(os.open(f"/proc/{other.pid}/fd/{other.file}", os.O_RDWR))
        return True
    return False


class SharedAreas:
    """The areas of one rank, and the files of other ranks that it has mapped."""

    def __init__(self) -> None:
        # By bytes of the content: the areas, each as (file descriptor, mapped memory, offset in it).
        self._areas: dict[int, list[tuple[int, mmap.mmap, int]]] = {}
        self._mapped_files: dict[tuple[int, int], mmap.mmap] = {}  # by pid, file
        self._lock = threading.Lock()

    def put(self, buffer: Tensor) -> bytes:
        """Copies a buffer into an area. Returns the area's address, for another process."""
        with self._lock:
            file, memory, offset = self._take_free_area(_size(buffer.nbytes))
            memory[offset] = TAKEN
        area = torch.frombuffer(
            memory, dtype=buffer.dtype, offset=offset + HEADER_BYTES, count=buffer.numel()
        )
        area.copy_(buffer)
        return AREA_ADDRESS.pack(os.getpid(), file, offset)

    def get(self, packet: bytes, elements: int, dtype: torch.dtype) -> Tensor:
        """Returns the message at an address as a tensor. The area is free again when the tensor is."""
        pid, file, offset = AREA_ADDRESS.unpack(packet)
        nbytes = elements * dtype.itemsize
        with self._lock:
            if (pid, file) not in self._mapped_files:
                opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
                self._mapped_files[pid, file] = _map(opened, os.fstat(opened).st_size)
                os.close(opened)
            memory = self._mapped_files[pid, file]
        content = (ctypes.c_char * nbytes).from_buffer(memory, offset + HEADER_BYTES)
        # When the tensor is freed, this sets memory[offset], the first byte of the header, to FREE.
        weakref.finalize(content, memory.__setitem__, offset, FREE).atexit = False
        return torch.frombuffer(content, dtype=dtype)

    def _take_free_area(self, size: int) -> tuple[int, mmap.mmap, int]:
        """Returns a free area as (file descriptor, mapped memory, offset); makes new ones if there is none.

        size: bytes of the content. The caller holds the lock.
        """
        areas = self._areas.setdefault(size, [])
        for area in areas:
            if area[1][area[2]] == FREE:  # memory[offset]: the first byte of the header
                return area
        step = HEADER_BYTES + size  # bytes from one area to the next
        count = max(1, MIN_FILE_BYTES // step)
        file = os.memfd_create("raddle messages")
        os.ftruncate(file, count * step)
        memory = _map(file, count * step)
        areas += [(file, memory, number * step) for number in range(count)]
        return areas[-count]  # the first of the new ones

    def close(self) -> None:
        """Closes the files. Mapped memory stays as long as a tensor uses it."""
        for file in {file for areas in self._areas.values() for file, *_ in areas}:
            with contextlib.suppress(OSError):
                os.close(file)
        self._areas, self._mapped_files = {}, {}


def _size(nbytes: int) -> int:
    """Returns the size of the area for a message: whole pages; for small ones a power of two of pages."""
    pages = max(1, -(-nbytes // mmap.PAGESIZE))
    return mmap.PAGESIZE * (pages if nbytes >= LARGE_BYTES else 1 << (pages - 1).bit_length())


def _map(file: int, nbytes: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # no page faults later
    return mmap.mmap(file, nbytes, flags=flags)


class ReceivePool:
    """Memory for messages that arrive over the network; memory is reused when its tensor is freed."""

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}  # by size in bytes

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised tensor in memory of the pool."""
        nbytes = elements * dtype.itemsize
        free = self._free.setdefault(nbytes, [])
        memory = free.pop() if free else mmap.mmap(-1, nbytes)
        content = (ctypes.c_char * nbytes).from_buffer(memory)
        # When the tensor is freed, this puts its memory back into the pool.
        weakref.finalize(content, free.append, memory).atexit = False
        return torch.frombuffer(content, dtype=dtype)
