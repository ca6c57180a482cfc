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

LEAST = 2**18  # bytes that take long enough to copy for a thread of its own
FILE = 2**22  # bytes: smaller areas share a file, as a process may have few of them open
HEAD = mmap.PAGESIZE  # before the content, which is aligned
WORD = struct.Struct("<3q")  # process, file, place in it
FREE, TAKEN = 0, 1


class Seat(NamedTuple):
    """Where a process is: the same `host` for those that no network is meant to part, and a file of its."""

    host: str
    process: int
    file: int


def seat() -> Seat:
    """This process's; without such files it is alone."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists() or not hasattr(os, "memfd_create"):
        return Seat(f"{os.uname().nodename} {os.getpid()}", os.getpid(), -1)
    spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid", "user")]
    file = os.memfd_create("raddle seat")
    return Seat(f"{boot.read_text().strip()} {spaces} {os.getuid()}", os.getpid(), file)


def sees(own: Seat, other: Seat) -> bool:
    """Whether this process may look at another's memory: tried on the file that it opened for that."""
    if own.host != other.host or other.file < 0:
        return False
    with contextlib.suppress(OSError):
        os.close(os.open(f"/proc/{other.process}/fd/{other.file}", os.O_RDWR))
        return True
    return False


class Areas:
    """The areas of one rank, and the files of others that it has seen."""

    def __init__(self) -> None:
        self._own: dict[int, list[tuple[int, mmap.mmap, int]]] = {}  # by size: file, memory, place
        self._seen: dict[tuple[int, int], mmap.mmap] = {}  # by process and file
        self._lock = threading.Lock()

    def put(self, buffer: Tensor) -> bytes:
        """Copies a buffer; the word that tells another process where it is."""
        with self._lock:
            file, memory, place = self._free(_size(buffer.nbytes))
            memory[place] = TAKEN
        area = torch.frombuffer(
            memory, dtype=buffer.dtype, offset=place + HEAD, count=buffer.numel()
        )
        area.copy_(buffer)
        return WORD.pack(os.getpid(), file, place)

    def get(self, word: bytes, elements: int, dtype: torch.dtype) -> Tensor:
        """What a word tells of; the area is free again when nobody looks at the tensor any more."""
        process, file, place = WORD.unpack(word)
        nbytes = elements * dtype.itemsize
        with self._lock:
            if (process, file) not in self._seen:
                opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
                self._seen[process, file] = _map(opened, os.fstat(opened).st_size)
                os.close(opened)
            memory = self._seen[process, file]
        content = (ctypes.c_char * nbytes).from_buffer(memory, place + HEAD)
        weakref.finalize(content, memory.__setitem__, place, FREE).atexit = False
        return torch.frombuffer(content, dtype=dtype)

    def _free(self, size: int) -> tuple[int, mmap.mmap, int]:
        own = self._own.setdefault(size, [])
        for area in own:
            if area[1][area[2]] == FREE:
                return area
        step = HEAD + size
        count = max(1, FILE // step)
        file = os.memfd_create("raddle messages")
        os.ftruncate(file, count * step)
        memory = _map(file, count * step)
        own += [(file, memory, number * step) for number in range(count)]
        return own[-count]

    def close(self) -> None:
        """Files go; what is mapped stays as long as a tensor lies in it."""
        for file in {file for own in self._own.values() for file, *_ in own}:
            with contextlib.suppress(OSError):
                os.close(file)
        self._own, self._seen = {}, {}


def _size(nbytes: int) -> int:
    """Of the area for a message: in whole pages, a power of two of them while it is small."""
    pages = max(1, -(-nbytes // mmap.PAGESIZE))
    return mmap.PAGESIZE * (pages if nbytes >= LEAST else 1 << (pages - 1).bit_length())


def _map(file: int, nbytes: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # no page faults later
    return mmap.mmap(file, nbytes, flags=flags)


class Pool:
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
