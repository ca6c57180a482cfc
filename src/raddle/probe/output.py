"""Writes the result of a probe as a cluster file (YAML), with comments about the measurement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raddle.clusters.file import save_cluster
from raddle.errors import InputError
from raddle.probe.machine import describe


def check(path: str) -> None:
    """Raise InputError if the path is not a possible cluster file; called before the measurement."""
    file = Path(path)
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{path} would not be read as a cluster: name it {file.name}.yaml.")
    if not file.parent.is_dir():
        raise InputError(f"no folder {file.parent} for {file.name}: make it first.")
    if file.is_dir():
        raise InputError(f"{path} is a folder: name a file in it.")


def write(measured: Mapping[str, Any], path: str) -> None:
    """Write a cluster file that `raddle.cluster(path)` can read."""
    save_cluster(describe(measured), path, comments=_comments(measured))


def _comments(measured: Mapping[str, Any]) -> list[str]:
    """Return the lines of the comment at the top of the file."""
    idle, gpu, busy = measured["idle"], measured["gpu"], measured["busy_cores"]
    lines = [
        f"Measured by raddle probe, {measured['measured']}, torch {measured['torch']}: one of",
        f"{measured['ranks']} ranks while all compute, {measured['threads']} thread(s) each on"
        f" {measured['cores']} cores.",
        "The peak in float32 is the rate of the fastest family of operators (matmul, conv or attention):",
        "peak × efficiency is what was measured.",
    ]
    if busy:
        lines.append(f"Other work kept {busy:.1f} of the cores busy just before.")
    if idle is not None:
        lines.append(
            "The link is as measured while the ranks compute; when they are idle it has "
            f"{idle['bandwidth']:.3g} bytes/s and {idle['latency']:.3g} s."
        )
    if gpu is not None:
        lines.append(
            f"The GPU ({gpu['count']} of them here) is described, but no node has it: list it in one."
        )
    return lines
