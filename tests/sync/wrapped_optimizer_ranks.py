"""Forks ranks as processes on gloo, which run many test cases.

    python tests/sync/wrapped_optimizer_ranks.py 2 [words]   runs the cases with a word in their name

Prints a JSON object: by case, what went wrong on which rank; empty if nothing did.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from timeouts import HANG

Case = Callable[[int, int], None]  # rank, size


def run(size: int, cases: dict[str, Case]) -> dict[str, str]:
    """Returns the errors of each case. If a rank dies, all later cases fail."""
    fork = multiprocessing.get_context("fork")
    errors_by_case: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(
                target=_rank, args=(rank, size, f"{folder}/store", cases, there), daemon=True
            )
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        dead = ""
        for name in cases:
            errors = [dead]
            for rank, pipe in enumerate(pipes):
                try:
                    if not dead:
                        errors.append(pipe.recv())
                except EOFError:
                    dead = f"rank {rank} died in or before {name}"
                    errors.append(dead)
            errors_by_case[name] = "\n".join(e for e in errors if e)
        for process in processes:
            if dead:
                process.terminate()
            process.join(HANG)
    return errors_by_case


def _rank(rank: int, size: int, store: str, cases: dict[str, Case], pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=timedelta(seconds=HANG),
    )  # fmt: skip
    from raddle import sync
    from raddle.transport import patient_wire

    patient_wire.GRACE = HANG  # however long the news of a failure take

    for case in cases.values():
        try:
            _start(sync)
            case(rank, size)
            _end(sync)
            pipe.send("")
        except BaseException:
            pipe.send(f"rank {rank}: {traceback.format_exc()}")
            sync.close()  # tells the others
        dist.barrier()
    sync.close()
    dist.destroy_process_group()
    pipe.close()
    os._exit(0)  # without the parent's atexit


def _start(sync: Any) -> None:
    """Starts a session if there is none: a case may have ended the last one."""
    from raddle.sync import session

    if session._session is None:
        sync.init(timeout=HANG)


def _end(sync: Any) -> None:
    from raddle.sync import session

    if session._session is not None:
        for optimizer in list(session._session.optimizers):
            optimizer.close()


def main(arguments: Sequence[str]) -> int:
    import wrapped_optimizer_cases

    size, words = int(arguments[0]), arguments[1:]
    cases = wrapped_optimizer_cases.cases(size)
    chosen = {n: c for n, c in cases.items() if not words or any(w in n for w in words)}
    errors = run(size, chosen)
    print(json.dumps(errors))
    return int(any(errors.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
