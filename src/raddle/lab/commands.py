"""`ip` and `tc`, run as commands: every answer is checked and every wait has an end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

from raddle.errors import InputError

SECONDS = 20.0  # a command takes milliseconds; a machine that swaps takes longer
NEEDS = "the rights of root, and a kernel with veth, bridge and tbf"


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


def call(tool: str, *words: str) -> str:
    """Run a command and return what it prints; one that fails is an error with its own words."""
    line = " ".join([tool, *words])
    try:
        done = subprocess.run(
            [path_of(tool), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"`{line}` did not answer within {SECONDS:.0f} s: try again.") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split()).rstrip(".") or f"exit code {done.returncode}"
        raise InputError(f"`{line}` failed ({said}): a lab needs {NEEDS}.")
    return done.stdout


def ask(tool: str, *words: str) -> list[dict[str, Any]]:
    """Run a command that answers in JSON."""
    text = call(tool, "-j", *words)
    rows: list[dict[str, Any]] = json.loads(text) if text.strip() else []
    return [row for row in rows if row]  # `ip -j` prints {} for what a filter leaves out
