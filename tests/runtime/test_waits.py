"""If a schedule says that an action is `after` another, it starts after the other's end, in every timeline.

Timelines come from the simulator and from runs on threads. Which instructions an action consists of is
computed here independently: the runs, merges and recomputation runs of its operators.
"""

# s: stage, m: micro-batch

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import Phase, event, given, note, settings
from hypothesis import strategies as st
from pipeline_plans import PipelineTask, cut_evenly, pipeline, stage_tiles
from test_pipeline_fuzz import some_plan
from test_random_graphs import written
from torch import Tensor, nn

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.plans.pipelining import schedule_of, stage_of
from raddle.plans.plan import Plan
from raddle.plans.schedule import Action, Schedule, schedule_from_text
from raddle.plans.schedules import ASYNCHRONOUS, MAKERS
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.message_kind import MessageKind
from raddle.program.program import Key, Merge, Move, Program, Run
from raddle.runtime.schedule_spans import EarlyStart, Span, early_starts
from raddle.runtime.threads import run_threads
from raddle.simulation.timeline import simulate

# Two workers with two stages; F1.0 (forward of stage 1, micro-batch 0) waits for B0.1 on the other one.
LOST = "F0.0 F1.0 B0.0 B1.0\nF0.1 B0.1 F1.1 B1.1\nF1.0 after B0.1"


class Net(nn.Module):
    """Four layers. If the first one is frozen, its stage has no backward."""

    def __init__(self, frozen: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.second, self.third, self.last = nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 4)
        for layer in [self.first, self.norm, self.second, self.third][:frozen]:
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.third(torch.relu(self.second(x)))))


@cache
def net(frozen: int) -> PipelineTask:
    torch.manual_seed(0)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    return PipelineTask(Net(frozen).double(), [x], [y], nn.functional.mse_loss)


def simulated(program: Program) -> list[Span]:
    """The spans of a simulation: when each action of the schedule was computed."""
    timeline, stage_by_op = (
        simulate(program, cluster(f"local:{program.plan.devices}")),
        stage_of(program.plan),
    )
    schedule = schedule_of(program.plan)
    spans = []
    for number, start, end in zip(
        timeline.tasks.instruction, timeline.start, timeline.end, strict=True
    ):
        i = program.instructions[number]
        if isinstance(i, Run | Merge):
            action = Action(phase_of(i, schedule.split), stage_by_op[i.op], i.key.micro_batch)
            spans.append(Span(i.key.step, str(action), float(start), float(end)))
    return spans


def recorded(piped: PipelineTask, program: Program) -> list[Span]:
    """The spans that a run on threads records."""
    batches = piped.batches(tuple(program.micro_batch_sizes))

    def feed(key: Key) -> dict[str, Tensor]:
        return dict(zip(piped.graph.inputs, batches[key.step][key.micro_batch], strict=True))

    state = {**dict(piped.model.named_parameters()), **dict(piped.model.named_buffers())}
    spans: list[Span] = []
    run_threads(program, state, piped.optimizer, feed, spans=spans)
    return spans


def assert_waits_hold(
    program: Program, spans: list[Span], schedule: Schedule | None = None
) -> None:
    """Asserts that all waits hold in a timeline, and that all actions in waits occur in it."""
    schedule = schedule or schedule_of(program.plan)
    named = {str(action) for wait in schedule.waits for action in wait}
    stage_by_op, split = stage_of(program.plan), schedule.split
    expected = {
        (i.key.step, str(Action(phase_of(i, split), stage_by_op[i.op], i.key.micro_batch)))
        for i in program.instructions
        if isinstance(i, Run | Merge)
    }
    recorded_actions = {(span.step, span.action) for span in spans if span.action in named}
    assert recorded_actions == {(step, action) for step, action in expected if action in named}
    assert list(early_starts(schedule, spans)) == []


def phase_of(i: Run | Merge, split: bool) -> str:
    """The schedule's phase of an instruction: recomputation belongs to B, and W too unless it is split."""
    return i.phase if i.phase == "F" or (i.phase == "W" and split) else "B"


def waiting_plan(seed: int) -> tuple[PipelineTask, Plan]:
    """A random plan whose schedule has a wait."""
    rng = random.Random(seed)
    piped = net(rng.choice([0, 0, 1, 2, 4]))
    while True:
        plan = some_plan(piped.graph, rng)
        try:
            if schedule_of(plan).waits:
                return piped, plan
        except InputError:
            continue


def with_lost_waits(program: Program, rng: random.Random) -> Program:
    """The same program, but some instructions do not wait for some of their signals."""
    signals = {
        n
        for n, i in enumerate(program.instructions)
        if isinstance(i, Move) and i.kind == MessageKind.SIGNAL
    }
    instructions = [
        replace(i, deps=tuple(d for d in i.deps if d not in signals or rng.random() < 0.5))
        for i in program.instructions
    ]
    return replace(program, instructions=tuple(instructions))


@settings(
    phases=[Phase.explicit, Phase.generate]
)  # no shrinking: a smaller seed is not a smaller plan
@given(seed=st.integers(0, 2**40))
def test_every_after_of_a_written_schedule_holds(seed: int) -> None:
    piped, plan = waiting_plan(seed)
    note(written(piped.graph, plan))
    note(f"{plan.stages}\n{plan.workers}\n{plan.schedule}")
    try:
        program = lower(piped.graph, plan)
    except InputError as error:
        event(f"refused: {str(error)[:40]}")
        return
    check(program)
    assert_waits_hold(program, simulated(program))
    if seed % 3 == 0:  # runs are slow, so only some plans are run
        assert_waits_hold(program, recorded(piped, program))
    lost = with_lost_waits(program, random.Random(seed))
    try:
        check(lost)
    except InputError:
        event("a lost wait is refused")
    else:
        event("what was lost was not needed")
        assert_waits_hold(lost, simulated(lost))


def lost_by_the_issue(**more: object) -> tuple[PipelineTask, Program]:
    piped = net(0)
    plan = pipeline(piped, 2, 2, LOST, **more)
    return piped, lower(piped.graph, plan)


def test_a_forward_waits_for_a_backward_on_the_next_worker() -> None:
    piped, program = lost_by_the_issue()
    assert_waits_hold(program, simulated(program))
    assert_waits_hold(program, recorded(piped, program))


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in ASYNCHRONOUS])
def test_every_after_of_a_named_schedule_holds(name: str) -> None:
    piped = net(0)
    plan = pipeline(piped, 2, 4, name)
    schedule = schedule_of(plan)
    assert bool(schedule.waits) == (name == "gems-basic")
    program = lower(piped.graph, plan)
    assert_waits_hold(program, simulated(program))
    if schedule.waits:
        assert_waits_hold(program, recorded(piped, program))


def test_every_device_of_the_awaited_action_signals_every_device_of_the_waiting_one() -> None:
    """The wait is between two stages on two devices each."""
    piped = net(0)
    stages = cut_evenly(piped.graph, 2)
    tiles = stage_tiles(piped.graph, stages, [[0, 1], [2, 3]], [{"n": 2}, {"n": 2}])
    plan = replace(
        pipeline(piped, 2, 2, LOST), tiles=tiles, devices=4, workers=((0, 1), (2, 3)), steps=1
    )
    program = lower(piped.graph, plan)
    (signal,) = (
        i for i in program.instructions if isinstance(i, Move) and i.kind == MessageKind.SIGNAL
    )
    assert {(m.source, m.target) for m in signal.messages} == {(2, 0), (2, 1), (3, 0), (3, 1)}


def test_an_awaited_backward_without_gradients_ends_with_what_comes_before_it() -> None:
    """gems-basic has one micro-batch in flight, even if the first stage is frozen and has no backward."""
    piped = net(3)
    graph = piped.graph
    stages = (tuple(op.name for op in graph.ops[:3]), tuple(op.name for op in graph.ops[3:]))
    plan = pipeline(piped, 2, 3, "gems-basic", stages=stages)
    program = lower(graph, plan)
    first = set(stages[0])
    runs = [i for i in program.instructions if isinstance(i, Run)]
    assert not any(i.phase == "B" and i.op in first for i in runs), "it is frozen"
    check(program)
    last = schedule_from_text("F0.0\nF0.1\nF1.0 after B0.1\nF2.0 after B1.1")
    assert_waits_hold(program, simulated(program), last)


def test_a_program_that_loses_a_wait_is_refused_by_name() -> None:
    _, program = lost_by_the_issue(split_backward=True)
    lost = with_lost_waits(program, random.Random(0))
    with pytest.raises(InputError, match=r"device 0 .* not wait .* device 1, .* F1\.0 after B0\.1"):
        check(lost)


def test_what_starts_too_early_is_found_in_a_recorded_timeline() -> None:
    spans = [
        Span(0, "F1.0", 5.0, 6.0),
        Span(0, "B0.1", 4.0, 4.5),
        Span(0, "B0.1", 4.5, 5.0),  # the other action begins when this one ends
        Span(1, "F1.0", 15.0, 16.0),
        Span(1, "B0.1", 14.0, 15.25),
    ]
    assert list(early_starts(schedule_from_text(LOST), spans)) == [
        EarlyStart(1, "F1.0", "B0.1", 0.25)
    ]
