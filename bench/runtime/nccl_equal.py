"""Checks that plans compute what the module computes: 2 to 4 ranks over NCCL on one GPU, or over gloo.

    python bench/runtime/nccl_equal.py --ranks 2,4 -o nccl_equal.json      (PYTHONPATH=src is enough)
    python bench/runtime/nccl_equal.py --ranks 2,3,4 --backend gloo        (on the CPU)

For each case (nccl_cases.py), losses and parameters after two steps are compared with the plain module's.
The file has a row for each: whether it is equal, the largest deviation, process groups a rank, and the
seconds and MiB to make them. NCCL takes several ranks on one card if each has a host id of its own; it then
connects them by sockets, and the times say nothing about its speed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from nccl_cases import BATCH, Case, batch, cases, loss, module
from torch import nn

import raddle
from raddle.graph.graph import Graph
from raddle.program.communicators import communicators, most_on_a_device
from raddle.program.program import Gather, Move, Program, Reduce

STEPS = 2
WAIT = 40.0  # seconds after which a wait fails
LIMIT = 210.0  # seconds for all ranks and cases: those that are left then are not run


def main() -> int:
    options = parse()
    if options.rank >= 0:
        run_rank(options)
        return 0
    deadline = time.monotonic() + options.seconds
    results = []
    numbers = [int(word) for word in options.ranks.split(",")]
    for position, ranks in enumerate(numbers):
        left = deadline - time.monotonic()
        results.append(launch(options, ranks, max(1.0, left / (len(numbers) - position))))
        report = {
            "backend": options.backend,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(0) if options.backend == "nccl" else "cpu",
            "runs": results,
            "equal": all(run["equal"] for run in results) and len(results) == len(numbers),
        }
        if options.output:  # also after each number of ranks, in case that the machine is lost
            pathlib.Path(options.output).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["equal"] else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, such as 2,3,4")
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--seconds", type=float, default=LIMIT, help="limit of all runs together")
    parser.add_argument("-o", "--output", help="a file for the results, as JSON")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--rows", help=argparse.SUPPRESS)  # a file to which rank 0 adds rows
    return parser.parse_args()


# -- the ranks of one run --------------------------------------------------------------------------------


def launch(options: argparse.Namespace, ranks: int, seconds: float) -> dict[str, Any]:
    """Runs all cases on some ranks, one process each; returns the rows, also if ranks fail or hang."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows"
        rows.touch()
        command = [
            sys.executable, __file__, "--backend", options.backend, "--only", options.only,
            "--seconds", str(seconds), "--rows", str(rows),
        ]  # fmt: skip
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)], env=environment(rank, ranks, port))
            for rank in range(ranks)
        ]
        try:
            codes = wait_for_all(processes, seconds + WAIT)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        done = [json.loads(line) for line in rows.read_text().splitlines()]
    names = [case.name for case in chosen_cases(options, ranks)]
    missing = names[len(done) :]
    return {
        "ranks": ranks,
        "seconds": round(time.monotonic() - began, 1),
        "exit_codes": codes,
        "equal": bool(done) and not missing and all(row["equal"] for row in done),
        "collectives": sorted({kind for row in done for kind in row["collectives"]}),
        "cases": done,
        "not_run": missing,
    }


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Returns the environment of a rank."""
    defaults = {
        "NCCL_HOSTID": f"rank{rank}",  # so that NCCL accepts ranks that share a card
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }
    job = {
        "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    return {**defaults, **os.environ, **job, "NCCL_HOSTID": f"rank{rank}"}


def wait_for_all(processes: list[subprocess.Popen[bytes]], seconds: float) -> list[int | None]:
    """Waits until all have ended, one has failed, or the time is over; returns exit codes; None: no end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if None not in codes:
            break
        if any(codes):
            time.sleep(2)  # for the messages of the others
            break
        time.sleep(0.1)
    return [process.poll() for process in processes]


def chosen_cases(options: argparse.Namespace, ranks: int) -> list[Case]:
    return [case for case in cases(ranks) if options.only in case.name]


# -- one rank --------------------------------------------------------------------------------------------


def run_rank(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if options.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    began = time.monotonic()
    # This group is for the results; raddle makes groups of its own with the backend that is tested.
    dist.init_process_group("gloo", timeout=timedelta(seconds=2 * WAIT))
    # Before groups are measured, all ranks have their memory on the card and have loaded the libraries.
    captured(BATCH, device)
    dist.barrier()
    for case in chosen_cases(options, dist.get_world_size()):
        go_on = [time.monotonic() - began < options.seconds]
        dist.broadcast_object_list(go_on)
        if not go_on[0]:
            break
        outcomes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, outcome_of(case, options.backend, device))
        if dist.get_rank() == 0:
            row = joined(case, outcomes)
            with pathlib.Path(options.rows).open("a") as out:
                out.write(json.dumps(row) + "\n")
            verdict = "equal" if row["equal"] else f"WRONG {row['errors']}"
            print(
                f"{len(outcomes)} ranks  {case.name:44} {verdict}, deviation {row['deviation']:.1e}, "
                f"{row['groups']} groups in {row['group_seconds']:.2f} s, {row['group_mib']:.0f} MiB; "
                f"{row['seconds']:.1f} s",
                flush=True,
            )
    dist.destroy_process_group()


def joined(case: Case, outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of a case: the worst of all ranks."""
    errors = sorted({outcome["error"] for outcome in outcomes if "error" in outcome})
    largest = {
        key: max(outcome.get(key, 0) for outcome in outcomes)
        for key in ("deviation", "groups", "needed", "group_seconds", "group_mib", "seconds")
    }
    return {
        "case": case.name,
        "equal": not errors and largest["deviation"] < case.tolerance,
        "tolerance": case.tolerance,
        **largest,
        "collectives": outcomes[0].get("collectives", []),
        "errors": errors,
    }


def outcome_of(case: Case, backend: str, device: torch.device) -> dict[str, Any]:
    """Trains by the plan and without it; returns the largest deviation, and what the groups took.

    The memory of groups is that of all ranks on a card. If the ranks make them at the same time, each sees
    the sum.
    """
    began = time.monotonic()
    try:
        model = module(device)
        x, y = batch(device)
        graph = captured(BATCH // case.microbatches, device)
        plan = case.make(graph, dist.get_world_size())
        trainer = raddle.parallelize(
            copy.deepcopy(model),
            sgd,
            plan=plan,
            loss=raddle.supervised(loss),
            graph=graph,
            device=device,
            backend=backend,
            timeout=WAIT,
            compile=False,
        )
        try:
            worst = max(
                relative(float(trainer.step((x, y))), plain)
                for plain in plain_losses(model, x, y, case.microbatches)
            )
            state = trainer.state_dict()
            worst = max(worst, *(off(state[k], t) for k, t in model.state_dict().items()))
            groups = trainer.transport.prepare([], [])  # makes none
            program = trainer.program
            needed = most_on_a_device(communicators(program))
            assert backend == "gloo" or groups.count <= needed, f"{groups}, counted {needed}"
        finally:
            with contextlib.suppress(Exception):
                trainer.close()
        return {
            "deviation": worst if worst == worst else 1e9,  # not a number
            "groups": groups.count,
            "needed": needed,  # counted in the program; NCCL has as many
            "group_seconds": round(groups.seconds, 3),
            "group_mib": round(groups.nbytes / 2**20, 1),
            "collectives": collectives_of(program),
            "seconds": round(time.monotonic() - began, 2),
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


@cache
def captured(size: int, device: torch.device) -> Graph:
    """Returns the graph of a micro-batch of this size."""
    x, y = batch(device)
    return raddle.capture(module(device), (x[:size], y[:size]), raddle.supervised(loss))


def plain_losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor, microbatches: int) -> Any:
    """Trains the plain module; yields the loss of each step."""
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for part, targets in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            value = loss(model(part), targets) / microbatches
            value.backward()
            total += value.item()
        optimizer.step()
        yield total


def relative(value: float, expected: float) -> float:
    return abs(value - expected) / abs(expected)


def off(tensor: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the distance of two tensors, relative to the norm of the expected one if that is above 1."""
    expected = expected.double().cpu()
    return float((tensor.double().cpu() - expected).norm() / (1 + expected.norm()))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def collectives_of(program: Program) -> list[str]:
    """Returns the kinds of collectives of a program, as instructions and as messages."""
    kinds = {str(i.collective) for i in program.instructions if isinstance(i, Reduce | Gather)}
    moves = [i for i in program.instructions if isinstance(i, Move)]
    kinds |= {f"messages: {i.collective or 'others'}" for i in moves}
    return sorted(kinds)


if __name__ == "__main__":
    sys.exit(main())
