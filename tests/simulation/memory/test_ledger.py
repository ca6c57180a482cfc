"""The ledger: its entries, and the times of instructions and messages that it looks up."""

import numpy as np
from small_models import make_plan, mlp

from raddle.clusters import cluster
from raddle.program.lower import lower
from raddle.program.program import Move, Run
from raddle.simulation.memory.ledger import NEVER, Ledger
from raddle.simulation.memory.micro_batch_times import MicroBatchTimes
from raddle.simulation.memory.persistent import persistent_bytes, state_bytes
from raddle.simulation.timeline import Timeline, simulate


def timeline() -> Timeline:
    plan = make_plan(mlp(), {"fc1": "@0", "relu": "@1", "fc2": "@1", "sum": "@1"}, 2)
    return simulate(lower(mlp(), plan), cluster("p100:1x2"))


def test_what_is_empty_or_over_at_once_is_no_entry() -> None:
    ledger = Ledger(timeline())
    ledger.add_by_device(np.array([8, 0]), np.array([1, 1]), np.array([3, 3]))
    ledger.add_by_device(np.array([8, 8]), np.array([1, 1]), np.array([1, 2]))
    device, nbytes, begin, end = (column.tolist() for column in ledger.entries())
    assert list(zip(device, nbytes, begin, end, strict=True)) == [(0, 8, 1, 3), (1, 8, 1, 2)]


def test_spans_and_flights_are_those_of_the_tasks() -> None:
    result = timeline()
    ledger, instructions = Ledger(result), result.program.instructions
    run = next(n for n, i in enumerate(instructions) if isinstance(i, Run) and i.op == "relu")
    start, end = ledger.span(run)
    assert start[0] == NEVER
    assert end[0] == -1
    assert 0 < start[1] < end[1]
    number, move = next((n, i) for n, i in enumerate(instructions) if isinstance(i, Move))
    flight = ledger.flight(number, move)
    assert (flight.source.tolist(), flight.target.tolist()) == ([0], [1])
    assert flight.end[0] <= start[1]
    assert ledger.departure(flight) is flight.end
    assert Ledger(result, through_host=True).departure(flight) is not flight.end
    times = MicroBatchTimes(ledger, range(len(instructions)))
    assert times.span("relu", "F").start[1] == start[1]
    assert not times.is_recomputed("relu")
    assert times.last_departure(move.value, move.kind)[0] == flight.end[0]


def test_a_library_workspace_adds_to_the_states() -> None:
    result = timeline()
    states, persistent = (
        state_bytes(result.program), persistent_bytes(result.program, result.cluster)
    )  # fmt: skip
    taken = [int(d.workspace["matmul"]) for d in result.cluster.devices]
    assert (persistent - states).tolist() == taken
