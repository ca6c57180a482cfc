"""Chooses a plan for the ranks of a job: rank 0 searches, then all ranks time it next to DDP and FSDP2.

Every candidate trains a copy of the model on the example batch, so nothing of the user's changes. The
choice is stored in the cache, under what it depends on.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch

from raddle.clusters import Cluster
from raddle.errors import InputError
from raddle.files import write_json
from raddle.graph.graph import Graph
from raddle.plans import plan_file
from raddle.plans.pipelining import is_asynchronous, micro_batch_graph
from raddle.plans.plan import Plan
from raddle.runtime.trainer import Trainer
from raddle.searches.planning import plan_for
from raddle.searches.predict import predicted_metrics, simulate_steps
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_objects
from raddle.version import __version__

WARM_UP, STEPS = 3, 10  # steps of each candidate; the first ones are not timed
SEARCHED = "searched plan"  # the names of the candidates
REPLICATED = "data parallelism"  # as DistributedDataParallel
SHARDED = "sharded data parallelism"  # as FSDP2

CHOICE, SECONDS = "choice", "seconds_of_candidates"  # further keys of a stored plan file

Candidates = dict[str, dict[str, Any]]  # name -> the content of a plan file


class PlanChoices(TypedDict):
    """What is decided before a plan is searched."""

    optimizer: str
    precision: str


class Choice(NamedTuple):
    """The fastest candidate."""

    name: str
    plan: Mapping[str, Any]  # the content of a plan file
    seconds: Mapping[str, float]  # of a step of each candidate that was timed


def choose_plan(
    graph: Graph, target: Cluster, transport: Transport, place: torch.device,
    build: Callable[[Plan], Trainer], choices: PlanChoices, settings: Mapping[str, Any],
    *, example: Any, budget: float,
) -> Plan:  # fmt: skip
    """Returns the plan that all ranks use; rank 0 says in one sentence which it is.

    build: makes a trainer by a plan. settings: of the trainer; a choice in the cache is for the same ones.
    example: a batch; None: no steps are taken. budget: seconds of the search.
    """

    def exchange(value: Any) -> list[Any]:
        return exchange_objects(transport, place, value)

    file = _cache_file(graph, target, place, choices, settings, budget, example is not None)
    stored = exchange(_read(file) if transport.rank == 0 else None)[0]
    if stored is not None:
        choice, source = stored, "from the cache"
    else:
        candidates = exchange(_candidates_or_error(graph, target, choices, budget, transport.rank))[
            0
        ]
        if isinstance(candidates, str):
            raise InputError(candidates)
        choice, source = (
            _fastest(candidates, graph, build, transport, place, exchange, example),
            "measured",
        )
        if transport.rank == 0:
            _write(file, choice)
    if transport.rank == 0:
        print(_sentence(choice, transport.size, source), file=sys.stderr)
    plan = dict(choice.plan)
    return plan_file.from_dict(plan, micro_batch_graph(graph, plan))


def _candidates_or_error(
    graph: Graph, target: Cluster, choices: PlanChoices, budget: float, rank: int
) -> Candidates | str:
    """Returns the candidates on rank 0, or the reason why there is no plan; on other ranks nothing."""
    if rank:
        return {}
    try:
        return _candidates(graph, target, choices, budget)
    except Exception as error:  # the other ranks wait for the plan
        return f"no plan was found ({error}): give plan=, or another cluster."


def _candidates(graph: Graph, target: Cluster, choices: PlanChoices, budget: float) -> Candidates:
    """Returns the content of the plan file of each candidate."""
    plans = {
        REPLICATED: plan_for(graph, target, "data", **choices),
        SHARDED: plan_for(graph, target, "data", sync="sharded:parameters", **choices),
    }
    with suppress(InputError):
        plans[SEARCHED] = plan_for(
            graph, target, "auto", sync="allreduce", **choices, budget=budget
        )
    # The steps of an asynchronous plan are not those of plain training.
    synchronous = {name: plan for name, plan in plans.items() if not is_asynchronous(plan)}
    that_fit = {n: p for n, p in synchronous.items() if _fits(graph, p, target)}
    return {
        name: plan_file.to_dict(plan, micro_batch_graph(graph, plan))
        for name, plan in (that_fit or synchronous).items()
    }


def _fits(graph: Graph, plan: Plan, target: Cluster) -> bool:
    """Returns whether the simulated peaks of a plan fit the memory of the devices."""
    timeline = simulate_steps(micro_batch_graph(graph, plan), plan, target)
    return bool(predicted_metrics(timeline)["fits"])


def _fastest(
    candidates: Candidates, graph: Graph, build: Callable[[Plan], Trainer], transport: Transport,
    place: torch.device, exchange: Callable[[Any], list[Any]], example: Any,
) -> Choice:  # fmt: skip
    """Returns the candidate with the shortest step, the same on all ranks."""
    if example is None:
        name = SEARCHED if SEARCHED in candidates else REPLICATED
        return Choice(name, candidates[name], {})
    with _generators_kept(place):
        trainers: dict[str, Trainer] = {}
        for name, data in candidates.items():
            trainer, problem = _build(build, data, graph)
            if any(exchange(problem)):  # it does not fit on some rank
                if trainer is not None:
                    trainer.executor.close()
            elif trainer is not None:
                trainers[name] = trainer
        if not trainers:
            raise InputError("no plan runs on these ranks: give plan=, or tune=False to see why.")
        seconds = _measure(trainers, transport, exchange, example)
        for trainer in trainers.values():
            trainer.synchronize()
            trainer.executor.close()
    name = min(seconds, key=lambda n: seconds[n])
    return Choice(name, candidates[name], seconds)


def _build(
    build: Callable[[Plan], Trainer], data: Mapping[str, Any], graph: Graph
) -> tuple[Trainer | None, str]:
    """Returns a trainer, or the reason why there is none."""
    try:
        return build(plan_file.from_dict(dict(data), micro_batch_graph(graph, data))), ""
    except (InputError, torch.OutOfMemoryError) as error:
        return None, str(error)


def _measure(
    trainers: Mapping[str, Trainer], transport: Transport,
    exchange: Callable[[Any], list[Any]], example: Any,
) -> dict[str, float]:  # fmt: skip
    """Returns the median seconds of a step of each trainer, where a step is as slow as its slowest rank."""
    times: dict[str, list[float]] = {name: [] for name in trainers}
    names = list(trainers)
    for number in range(WARM_UP + STEPS):
        first = number % len(names)  # interleaved, each one first in turn
        for name in names[first:] + names[:first]:
            transport.barrier()
            start = time.perf_counter()
            trainers[name].step(example)
            trainers[name].synchronize()
            if trainers[name].place.type == "cuda":
                torch.cuda.synchronize(trainers[name].place)
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - start)
    by_rank: list[dict[str, list[float]]] = exchange(times)
    slowest = {n: [max(row) for row in zip(*(r[n] for r in by_rank), strict=True)] for n in names}
    return {name: statistics.median(slowest[name]) for name in names}


@contextmanager
def _generators_kept(place: torch.device) -> Iterator[None]:
    """Restores torch's generators afterwards: random operators of the candidates draw from them."""
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        yield


def _sentence(choice: Choice, ranks: int, source: str) -> str:
    """Returns a sentence about the choice."""
    times = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in sorted(choice.seconds.items()))
    why = f" ({source}: {times} a step)" if times else ""
    return f"raddle: {ranks} ranks train by the plan '{choice.name}'{why}."


# -- the cache -----------------------------------------------------------------------------------------


def _cache_file(
    graph: Graph, target: Cluster, place: torch.device, choices: PlanChoices,
    settings: Mapping[str, Any], budget: float, tuned: bool,
) -> Path:  # fmt: skip
    """Returns the file of a choice; its name is a hash of what the choice depends on."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    kind = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    parts = (
        __version__, torch.__version__, graph.fingerprint(), target.fingerprint(), kind,
        torch.get_num_threads(), sorted(choices.items()), sorted(settings.items()), budget, tuned,
    )  # fmt: skip
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return folder / "raddle" / "plans" / f"{name}.json"


def _read(file: Path) -> Choice | None:
    """Returns a stored choice; None if there is none, or the file is damaged."""
    try:
        data = plan_file.read(file)
        seconds = {str(name): float(s) for name, s in data.pop(SECONDS).items()}
        return Choice(str(data.pop(CHOICE)), data, seconds)
    except (InputError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _write(file: Path, choice: Choice) -> None:
    """Stores a choice as a plan file; if it cannot be written, the next job measures again."""
    with suppress(OSError, InputError):
        file.parent.mkdir(parents=True, exist_ok=True)
        data = {**choice.plan, CHOICE: choice.name, SECONDS: dict(choice.seconds)}
        write_json(file, data)
