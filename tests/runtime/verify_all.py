"""Checks that plans of all methods, run by real processes (gloo), train as the plain module does.

    python tests/runtime/verify_all.py [--ranks 2,3,4] [--models a,b] [--methods c,d] [--sync kind]
                                   [--some|--searched] [--json]

Each case trains two steps; losses, gradients, parameters, buffers and the bytes between each pair of ranks
are compared. Models are captured once. Ranks are forked once for each number of ranks, and run all its
cases.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from equality import TINY, Task, compare, compare_gradients, program_bytes, tiny
from torch import Tensor

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.checkpoint import gather_state
from raddle.runtime.trainer import Trainer, parallelize
from raddle.searches import planning
from raddle.searches.baselines import BASELINES
from raddle.searches.flexflow.method import flexflow
from raddle.searches.plan_space import PlanSpace
from raddle.searches.planning import plan_for, run_method
from raddle.searches.registry import SEARCHES
from raddle.searches.settings import Settings
from raddle.searches.starts import random_start

PARTITIONS = tuple(name for name in SEARCHES if name.startswith("hypergraph"))
RANKS = (2, 3, 4)
STEPS = 2
TIMEOUT = 300.0  # seconds that a rank waits for another; only to end a hang


class Case(NamedTuple):
    model: str
    method: str
    ranks: int


class Outcome(NamedTuple):
    case: Case
    status: str  # "ok", "skipped" or "failed"
    reason: str = ""


# Half of the pairs of a model and a baseline; every model and every baseline with 2, 3 and 4 ranks.
SOME = [
    Case(model, method, RANKS[(i + k) % len(RANKS)])
    for i, model in enumerate(TINY)
    for k, method in enumerate(BASELINES)
    if (i + k) % 2 == 0
]
SEARCHED_METHODS = (
    *SEARCHES,
    "wild",
)  # "wild": FlexFlow from a random start, with split reductions
# Models of the methods that split blocks of linear layers or the sequence; the others have neither.
APPLIES_TO = {
    "megatron": ("gpt-tiny", "mlp-tiny", "nmt-tiny"),
    "context": ("gpt-tiny", "nmt-tiny", "rnnlm-tiny"),
    "3d": ("gpt-tiny", "mlp-tiny", "nmt-tiny"),
}
# Plans that searches find. 3d needs 4 ranks: two stages of two.
SEARCHED = [
    Case(model, method, 4 if method == "3d" else RANKS[(i + k) % len(RANKS)])
    for i, model in enumerate(TINY)
    for k, method in enumerate(SEARCHED_METHODS)
    if model in APPLIES_TO.get(method, TINY)
]
# Half of them, with every model and every method; `make verify-all` runs the others too.
SOME_SEARCHED = [
    case
    for case in SEARCHED
    if (TINY.index(case.model) + SEARCHED_METHODS.index(case.method)) % 2 == 0
]
ALL = [
    Case(model, method, ranks)
    for model in TINY
    for ranks in RANKS
    for method in (*BASELINES, *PARTITIONS)
]
ALL += [case for case in SEARCHED if case not in ALL]


def run(cases: Sequence[Case], sync: str = "") -> Iterator[Outcome]:
    for size in sorted({case.ranks for case in cases}):
        planned: list[tuple[Case, Plan]] = []
        for case in cases:
            if case.ranks == size:
                try:
                    plan = plan_of(case)
                except InputError as error:
                    yield Outcome(case, "skipped", str(error))
                else:
                    planned.append((case, replace(plan, cluster=None, sync=sync or plan.sync)))
        yield from _run_cases(size, planned)


def plan_of(case: Case) -> Plan:
    """The plan of a case. Searches plan for fast links: with local ones they would use one device only."""
    graph = tiny(case.model).graph
    if case.method in BASELINES:
        return plan_for(graph, cluster(f"local:{case.ranks}"), case.method, bn="global")
    target_cluster = cluster(f"p100:1x{case.ranks}")
    search_settings = Settings(
        bn="global", proposals=150, reduction=case.method == "wild", powers_of_two=False,
        budget=0.4 if case.method in PARTITIONS else 20,  # hypergraph searches always use the whole budget
        microbatches=1 if case.method == "pipeline" else None,  # so that batch statistics are exact
    )  # fmt: skip
    if case.method != "wild":
        return planning.build_plan(
            graph,
            target_cluster,
            case.method,
            run_method(graph, target_cluster, case.method, search_settings),
            search_settings,
        )
    space = PlanSpace(graph, target_cluster, search_settings)
    result = flexflow(
        graph,
        target_cluster,
        search_settings,
        {"random": random_start(space, case.ranks)},
        random_too=False,
    )
    return planning.build_plan(graph, target_cluster, "flexflow", result, search_settings)


def _run_cases(size: int, cases: Sequence[tuple[Case, Plan]]) -> Iterator[Outcome]:
    """Forks `size` ranks, which run all plans; if a rank dies, the remaining cases fail."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for number in range(size):
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(
                target=_rank, args=(number, size, f"{folder}/store", cases, there), daemon=True
            )
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        dead = ""
        for case, _ in cases:
            errors = [dead]
            for number, pipe in enumerate(pipes):
                try:
                    if not dead:
                        errors.append(pipe.recv())
                except EOFError:
                    dead = f"rank {number} died"
                    errors.append(dead)
            reason = "; ".join(e for e in errors if e)
            yield Outcome(case, "failed" if reason else "ok", reason)
        for process in processes:
            if dead:
                process.terminate()
            process.join()


# -- one rank ----------------------------------------------------------------------------------------


def _rank(
    number: int, size: int, store: str, planned: Sequence[tuple[Case, Plan]], pipe: Connection
) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=number, world_size=size, timeout=limit
    )
    for case, plan in planned:
        try:
            verify(tiny(case.model), plan)
            pipe.send("")
        except Exception as error:
            pipe.send(f"rank {number}: {type(error).__name__}: {error}")
        dist.barrier()
    dist.destroy_process_group()


def verify(task: Task, plan: Plan) -> None:
    """Trains as one rank; rank 0 raises if the result differs from the plain module's."""
    trainer = parallelize(
        task.model,
        task.optimizer,
        plan=plan,
        loss=supervised(task.loss),
        graph=task.graph,
        device="cpu",
        timeout=TIMEOUT,
    )
    try:
        gradients = _record_gradients(trainer)
        losses = [float(trainer.step(micros[0])) for micros in task.batches[:STEPS]]
        trainer.synchronize()
        sent_by_rank = trainer.setup.exchange(trainer.transport.total_sent())
        shapes = {n: trainer.graph.values[n].shape for n in trainer.program.regions}
        shapes = {n: s for n, s in shapes.items() if n in trainer.program.active}
        state = trainer.state_dict()
        whole = gather_state(trainer.setup.exchange, gradients, shapes, {})
    finally:
        trainer.close()
    if trainer.rank == 0:
        plain = task.plain(STEPS, 1)
        compare(task.graph, plain, losses, state)
        compare_gradients(plain, whole)
        total = {
            (r, t): n
            for r, sent_bytes in enumerate(sent_by_rank)
            for t, n in sent_bytes.items()
            if n
        }
        expected_bytes = {
            pair: STEPS * nbytes for pair, nbytes in program_bytes(trainer.program).items()
        }
        assert total == expected_bytes, f"sent {total}, the program says {expected_bytes}"


def _record_gradients(trainer: Trainer) -> dict[str, list[tuple[Box, Tensor]]]:
    """A dict that gets copies of this rank's gradients before every update."""
    gradients: dict[str, list[tuple[Box, Tensor]]] = {}
    optimizer_step = trainer.executor.optimizer_step

    def watch() -> None:
        gradients.clear()
        executor = trainer.executor
        updated = (
            executor.updated_parameters() if trainer.program.sharded else executor.parameters()
        )
        for source, parameter in updated:
            if parameter.grad is not None and trainer.state.owns(source):
                pieces = gradients.setdefault(source.name, [])
                pieces.append((source.box, parameter.grad.clone()))
        optimizer_step()

    def on_update(source: SlotSource, clock: int, gradient: Tensor) -> None:
        if clock == STEPS:
            gradients.setdefault(source.name, []).append((source.box, gradient.clone()))

    trainer.executor.optimizer_step = watch
    if trainer.executor.parameter_sync is not None:
        trainer.executor.parameter_sync.on_update = on_update
    return gradients


# -- the command line --------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    cases = [
        case
        for case in (SOME_SEARCHED if options.searched else SOME if options.some else ALL)
        if case.ranks in options.ranks
        and case.model in options.models
        and case.method in options.methods
    ]
    torch.set_num_threads(1)
    outcomes = []
    for outcome in run(cases, options.sync):
        outcomes.append(outcome)
        if options.json:
            continue
        model, method, ranks = outcome.case
        print(
            f"{model:18} {method:20} {ranks} ranks  {outcome.status}  {outcome.reason}", flush=True
        )
    statuses = [outcome.status for outcome in outcomes]
    counts = {status: statuses.count(status) for status in ("ok", "skipped", "failed")}
    if options.json:
        print(json.dumps({**counts, "failures": [o for o in outcomes if o.status == "failed"]}))
    else:
        print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return int(counts["failed"] > 0)


def _options(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--ranks", type=lambda t: [int(r) for r in names(t)], default=RANKS)
    parser.add_argument("--models", type=names, default=TINY)
    parser.add_argument("--methods", type=names, default=(*BASELINES, *SEARCHED_METHODS))
    parser.add_argument("--sync", default="", help="kind of parameter synchronisation")
    parser.add_argument("--some", action="store_true", help="a covering selection")
    parser.add_argument("--searched", action="store_true", help="plans that searches find")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
