"""Tells how much memory is in use: of a GPU or, for the CPU, of this process."""

from __future__ import annotations

import os
import pathlib

import torch

# Linux: numbers of pages of this process. The second number is that of the pages in memory (resident).
STATM = pathlib.Path("/proc/self/statm")


def memory_in_use(device: torch.device) -> int:
    """Returns the bytes in use: by all processes on a GPU, or resident of this one; 0 if unknown."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    if not STATM.exists():
        return 0
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
