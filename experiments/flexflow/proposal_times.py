"""Times how fast proposals are simulated: in full, shortened, and by an ideal delta simulation.

FlexFlow's search is a Markov chain. A *move* gives a group of operators another split or other devices. A
*proposal* is a move that the chain simulates and then accepts or rejects.

Shortened: raddle stops a simulation when the move is certain to be rejected. Delta simulation is FlexFlow's
way: after a move it simulates only the tasks whose times change. Ideal delta: a lower bound for its time,
with a single visit to each of these tasks.

An Evaluator (raddle/simulation/fast) simulates steps on arrays, without a program: `time(limit)` returns
the nanoseconds of a step, or None if they exceed the limit. In a PlanSpace
(raddle/searches/plan_space.py), `unpinned` are the groups whose split the user has not fixed, `degrees(g)`
the possible numbers of parts of each letter of group g; `changes` returns the tiles that a move changes.
"""

# on: the cluster that plans are made for

from __future__ import annotations

import random
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from experiments.simulate_methods import WeakScalingCase
from raddle.api.planning import BASELINES, Settings
from raddle.api.plans import Plan
from raddle.api.programs import Merge, Move, Reduce, Run, lower
from raddle.api.searching import Chain, PlanSpace, Tiles, start_chain
from raddle.api.simulating import Evaluator, Tasks, Timeline, run_tasks, simulate

MOVES = 6  # random moves whose timelines are compared


class ProposalTimes(NamedTuple):
    """The speed of the simulations of one case."""

    tasks: int  # of one simulation
    shortened_rate: float  # proposals a second
    full_rate: float  # the same, if every proposal is simulated in full
    changed: float  # share of the tasks whose times a move changes, 0 to 1
    ideal_delta_s: float  # seconds of one proposal with an ideal delta simulation
    shortened_s: float  # seconds of one proposal with the shortened simulation


def time_proposals(case: WeakScalingCase, proposals: int) -> ProposalTimes:
    """Times both simulations on the same random draws; asserts that they accept the same moves."""
    rates, ends = {}, {}
    for full in (False, True):
        chain = _chain(case, full=full)
        begun = perf_counter()
        for _ in range(proposals):
            chain.step()
        rates[full] = proposals / (perf_counter() - begun)
        ends[full] = (chain.time, chain.accepted)
    assert ends[False] == ends[True], ends
    return ProposalTimes(*_measure_delta(case, rates[False], rates[True]))


def _chain(case: WeakScalingCase, *, full: bool) -> Chain:
    """Returns a chain of uniformly random moves (none is guided) that starts from data parallelism."""
    graph, on = case.graph, case.cluster
    tiles = BASELINES["data"](graph, on)  # of data parallelism
    evaluator = Evaluator(graph, on, Plan(tiles, case.gpus, bn="local"))
    if full:
        disable_shortening(evaluator)
    return start_chain(
        PlanSpace(graph, on, Settings()), evaluator, "data", tiles, seed=0, guided=0.0
    )


def disable_shortening(evaluator: Evaluator) -> None:
    """Makes the evaluator simulate every task, and to the end, whatever the limit.

    fold=False: consecutive tasks of a device are not joined into one, as they are by default for speed.
    """
    original_time = evaluator.time

    def in_full(limit: int | None = None) -> int | None:
        """Returns the nanoseconds of a step, or None if they exceed the limit, as Evaluator.time does."""
        nanoseconds = original_time(fold=False)
        return (
            nanoseconds
            if limit is None or (nanoseconds is not None and nanoseconds <= limit)
            else None
        )

    evaluator.time = in_full  # type: ignore[method-assign, assignment]


def _measure_delta(
    case: WeakScalingCase, shortened_rate: float, full_rate: float
) -> tuple[Any, ...]:
    """Returns the fields of ProposalTimes, in order; the two rates are passed through."""
    graph, on = case.graph, case.cluster
    space, rng = PlanSpace(graph, on, Settings()), random.Random(0)
    tiles = BASELINES["data"](graph, on)
    plan = Plan(tiles, case.gpus, bn="local")
    before = simulate(lower(graph, plan), on)
    evaluator = Evaluator(graph, on, plan)
    base = evaluator.time()  # nanoseconds of a step before any move
    assert base is not None
    times_before = task_times(before)
    changed, seconds = [], []
    for _ in range(MOVES):
        g = rng.choice(space.unpinned)
        move = space.changes(tiles, {g: space.on_random_devices(rng.choice(space.degrees(g)), rng)})
        after = task_times(
            simulate(lower(graph, Plan({**tiles, **move}, case.gpus, bn="local")), on)
        )
        changed.append(
            sum(times_before.get(key) != when for key, when in after.items()) / len(after)
        )
        # limit: a step 1 % longer than before the move; a longer one is not simulated to its end
        seconds.append(shortened_seconds(evaluator, move, int(1.01 * base)))
    engine = min(engine_seconds(before.tasks) for _ in range(5))
    # tasks that a move changes; an ideal delta takes this share of the event loop's time for all tasks
    share = float(np.mean(changed))
    return (
        len(before.start), shortened_rate, full_rate, share, share * engine, float(np.mean(seconds))
    )  # fmt: skip


def shortened_seconds(evaluator: Evaluator, move: Tiles, limit: int) -> float:
    """Returns the seconds to evaluate a move, the best of three.

    limit: nanoseconds above which the move is rejected.
    """
    undo = evaluator.move(move)
    seconds = []
    for _ in range(3):
        begun = perf_counter()
        evaluator.time(limit)
        seconds.append(perf_counter() - begun)
    evaluator.restore(undo)
    return min(seconds)


def engine_seconds(tasks: Tasks) -> float:
    """Returns the seconds of the simulator's event loop on all tasks.

    Its arguments are arrays over the tasks: what each occupies and for how long, its latency, how many it
    waits for, which wait for it (those of task i are successor[pointer[i]:pointer[i + 1]]), and its urgency
    (of tasks that wait for a resource, the smallest goes first). `resources` is the number of devices and
    links, and `in_order` says which of them serve their tasks in a fixed order.
    """
    begun = perf_counter()
    run_tasks(
        tasks.duration, tasks.latency, tasks.first_resource, tasks.second_resource, tasks.wait_count,
        tasks.pointer, tasks.successor,
        tasks.resources, tasks.in_order, tasks.urgency,
    )  # fmt: skip
    return perf_counter() - begun


def task_times(timeline: Timeline) -> dict[Any, tuple[int, int]]:
    """Returns the start and end (ns) of each task.

    The key says what the task does, because every plan numbers its tasks differently.
    """
    times: dict[Any, tuple[int, int]] = {}
    names = [_name(instruction) for instruction in timeline.program.instructions]
    tasks = timeline.tasks
    for task in range(len(timeline.start)):
        # source: the device that sends a message; device: the one that receives or computes
        key: Any = (
            names[tasks.instruction[task]],
            int(tasks.source[task]),
            int(tasks.device[task]),
        )
        while key in times:
            key = (key, "again")  # several tasks do the same
        times[key] = (int(timeline.start[task]), int(timeline.end[task]))
    return times


def _name(instruction: Any) -> tuple[str, ...]:
    """Returns a description of an instruction that does not depend on its number in the program."""
    if isinstance(instruction, Run | Merge):
        return (type(instruction).__name__, instruction.op, instruction.phase)
    if isinstance(instruction, Move):
        return ("Move", instruction.value, instruction.kind)
    return (
        ("Reduce", *instruction.parameters)
        if isinstance(instruction, Reduce)
        else ("Update", instruction.parameter)
    )
