"""`ip` and `tc`, run as commands: every answer is checked and every wait has an end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

from raddle.errors import InputError

TIMEOUT_SECONDS = 20.0  # a command takes milliseconds; a machine that swaps takes longer
REQUIREMENTS = "the rights of root, and a kernel with veth, bridge and tbf"


def check_system() -> None:
    """Refuse a system that cannot hold a lab."""
    if sys.platform != "linux":
        raise InputError(
            f"a lab is made of Linux network namespaces, and this is {sys.platform}: use Linux."
        )
    for tool in ("ip", "tc"):
        path_of(tool)
    if os.geteuid() != 0:
        raise InputError("a lab needs root for its network namespaces: run this with sudo.")


def path_of(tool: str) -> str:
    """Where `ip` or `tc` is: the PATH of many users leaves out the folders for root."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    path = shutil.which(tool, path=os.pathsep.join(folders))
    if path is None:
        raise InputError(f"a lab needs the command `{tool}`: install the package iproute2.")
    return path


def call(tool: str, *arguments: str) -> str:
    """Run a command and return what it prints; one that fails is an error with its own words."""
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
    """Run a command that answers in JSON."""
    text = call(tool, "-j", *arguments)
    rows: list[dict[str, Any]] = json.loads(text) if text.strip() else []
    return [row for row in rows if row]  # `ip -j` prints {} for what a filter leaves out
