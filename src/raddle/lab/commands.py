"""Runs the commands `ip` and `tc`, with a time limit; a failure becomes an InputError.

`ip` makes the network namespaces and links of a lab, and `tc` limits the links' rates.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

from raddle.errors import InputError

TIMEOUT_SECONDS = 20.0  # a command takes milliseconds, but longer on a machine that swaps
# The requirements of a lab, for error messages.
REQUIREMENTS = "the rights of root, and a kernel with veth, bridge, tbf and TCP cubic"


def check_system() -> None:
    """Raise InputError if this system cannot have a lab: it needs Linux, `ip`, `tc` and root."""
    if sys.platform != "linux":
        raise InputError(
            f"a lab is made of Linux network namespaces, and this is {sys.platform}: use Linux."
        )
    for tool in ("ip", "tc"):
        path_of(tool)
    if os.geteuid() != 0:
        raise InputError("a lab needs root for its network namespaces: run this with sudo.")


def path_of(tool: str) -> str:
    """Return the path of `ip` or `tc`; the folders for root, which PATH often lacks, are searched too."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    path = shutil.which(tool, path=os.pathsep.join(folders))
    if path is None:
        raise InputError(f"a lab needs the command `{tool}`: install the package iproute2.")
    return path


def call(tool: str, *arguments: str) -> str:
    """Run a command and return what it prints; if it fails, the InputError quotes its stderr."""
    command_line = " ".join([tool, *arguments])
    try:
        completed = subprocess.run(
            [path_of(tool), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"`{command_line}` did not answer within {TIMEOUT_SECONDS:.0f} s: try again."
        ) from None
    if completed.returncode != 0:
        reason = (
            " ".join(completed.stderr.split()).rstrip(".") or f"exit code {completed.returncode}"
        )
        raise InputError(f"`{command_line}` failed ({reason}): a lab needs {REQUIREMENTS}.")
    return completed.stdout


def call_json(tool: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a command with -j and return the rows of its JSON output."""
    text = call(tool, "-j", *arguments)
    rows: list[dict[str, Any]] = json.loads(text) if text.strip() else []
    return [row for row in rows if row]  # `ip -j` prints {} for rows that a filter excludes
