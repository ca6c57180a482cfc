"""The checks of programs: every lowered program is accepted, every damaged one refused with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_plan
from small_models import MODELS, make_plan, mlp, small
from torch import Tensor, nn

from raddle.clusters import Cluster, cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.supervised import supervised
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.message_kind import MessageKind
from raddle.program.program import Instruction, Merge, Move, Program, Reduce, Run, Update
from raddle.simulation.memory.check_memory import check_memory

# -- accepted -------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    model=st.sampled_from(MODELS),
    devices=st.integers(2, 4),
    seed=st.integers(0, 10_000),
    sync=st.sampled_from(
        [
            "allreduce",
            "server",
            "sharded",
            "sharded:parameters",
            "ps:one",
            "ps:greedy,slice=9",
            "p3:slice=7",
            "p3:collective,slice=7",
            "ps:async",
            "ps:ssp=1",
        ]
    ),
    steps=st.integers(1, 2),
    microbatches=st.integers(1, 2),
)
def test_accepts_what_is_lowered(model: str, devices: int, seed: int, **more: Any) -> None:
    graph = small(model)[1]
    check(lower(graph, random_plan(graph, devices, seed, **more)))


def test_accepts_what_fits() -> None:
    check_memory(sample(), cluster("p100:1x4"))


# -- refused --------------------------------------------------------------------------------------


def sample(**more: Any) -> Program:
    """Two steps on three devices, with messages, partial results and parameters on two devices.

    fc1 is split by samples, relu by channels (so boxes are sent), fc2 by k (so results are partial).
    """
    tiles = {"fc1": "n/2 @0,1", "relu": "c/2 @0,1", "fc2": "k/2 @0,1", "sum": "@2"}
    return lower(mlp(), make_plan(mlp(), tiles, 3, **{"steps": 2, **more}))


def with_variant(program: Program, **more: Any) -> Program:
    """The program with other fields in its only variant."""
    (variant,) = program.variants
    return dataclasses.replace(program, variants=(dataclasses.replace(variant, **more),))


def on_server() -> Program:
    return sample(sync="server")


def sliced(**more: Any) -> Program:
    return sample(**{"sync": "p3:slice=5", **more})


def collective_sums(**more: Any) -> Program:
    return sample(**{"sync": "p3:collective,slice=5", **more})


def slice_total() -> int:
    return len(collective_sums().bundles)


def ordered_sums() -> Program:
    """Sums of slices in reverse order."""
    return collective_sums(order=tuple(reversed(range(slice_total()))))


def replicated_loss() -> Program:
    """Data parallel on two devices: each merges the loss, and starts the gradient of its part."""
    tiles = dict.fromkeys(("fc1", "relu", "fc2", "sum"), "n/2 @0,1")
    return lower(mlp(), make_plan(mlp(), tiles, 2, steps=2))


# Chooses the instruction that is damaged. The functions below make one for each kind of instruction.
Pick = Callable[[Instruction], bool]


def runs(op: str, phase: str) -> Pick:
    return lambda i: isinstance(i, Run) and (i.op, i.phase) == (op, phase)


def merges(op: str, phase: str) -> Pick:
    return lambda i: isinstance(i, Merge) and (i.op, i.phase) == (op, phase)


def moves(value: str, kind: str) -> Pick:
    return lambda i: isinstance(i, Move) and (i.value, i.kind) == (value, kind)


def reduces(parameter: str) -> Pick:
    return lambda i: isinstance(i, Reduce) and parameter in i.parameters


def updates(parameter: str, step: int = 0) -> Pick:
    return lambda i: isinstance(i, Update) and i.parameter == parameter and i.key.step == step


def find(program: Program, pick: Pick) -> int:
    """The number of the first instruction that is picked."""
    return next(n for n, i in enumerate(program.instructions) if pick(i))


def with_changed(program: Program, pick: Pick, **more: Any) -> Program:
    """The program with other fields in one instruction. more: functions of the old instruction."""
    instructions = list(program.instructions)
    at = find(program, pick)
    new = {name: value(instructions[at]) for name, value in more.items()}
    instructions[at] = dataclasses.replace(instructions[at], **new)
    return dataclasses.replace(program, instructions=tuple(instructions))


def reordered(program: Program, order: Sequence[int]) -> Program:
    """The program in another order, or without some instructions; waits for later ones are dropped."""
    place = {number: at for at, number in enumerate(order)}
    instructions = []
    for at, number in enumerate(order):
        instruction = program.instructions[number]
        deps = sorted(place[d] for d in instruction.deps if place.get(d, at) < at)
        instructions.append(dataclasses.replace(instruction, deps=tuple(deps)))
    return dataclasses.replace(program, instructions=tuple(instructions))


def without_instruction(program: Program, pick: Pick) -> Program:
    at = find(program, pick)
    return reordered(program, [n for n in range(len(program.instructions)) if n != at])


def with_moved_behind(program: Program, pick: Pick, after: Pick) -> Program:
    """The program with one instruction moved to just after another."""
    at, then = find(program, pick), find(program, after)
    order = [n for n in range(len(program.instructions)) if n != at]
    order.insert(order.index(then) + 1, at)
    return reordered(program, order)


def with_swapped(program: Program, a: int, b: int) -> Program:
    """The program with two instructions exchanged; dependencies keep the old numbers."""
    instructions = list(program.instructions)
    instructions[a], instructions[b] = instructions[b], instructions[a]
    return dataclasses.replace(program, instructions=tuple(instructions))


def first_message(**fields: Any) -> Callable[[Move], Any]:
    """For `with_changed`: the messages of a move, with other fields in the first."""
    return lambda i: (i.messages[0]._replace(**fields), *i.messages[1:])


def cells(**fields: Callable[[Any], Any]) -> Callable[[Merge], Any]:
    """For `with_changed`: the cells of a merge, with other fields in the first."""
    return lambda i: (
        i.cells[0]._replace(**{k: f(i.cells[0]) for k, f in fields.items()}),
        *i.cells[1:],
    )


def regions_on(*devices: int) -> Callable[[Any], Any]:
    """For `with_changed`: the regions of a Reduce or Update, held by other devices."""

    def other(i: Reduce | Update) -> Any:
        if isinstance(i, Update):
            return tuple(s._replace(devices=devices) for s in i.regions)
        return tuple(tuple(s._replace(devices=devices) for s in regions) for regions in i.regions)

    return other


# By name of a damage: how to make the damaged program, and what the error says.
DAMAGED: dict[str, tuple[Callable[[], Program], str]] = {
    "order": (
        lambda: with_swapped(sample(), 0, 1),
        r"waits for instruction 0, which does not come before it: the program has a cycle",
    ),
    "waits for itself": (
        lambda: with_changed(sample(), runs("relu", "F"), deps=lambda i: (2,)),
        "has a cycle",
    ),
    "device out of range": (
        lambda: with_changed(sample(), runs("fc1", "F"), devices=lambda i: (0, 9)),
        r"'fc1' forward.* names device 9, but the plan has devices 0 to 2",
    ),
    "message to nowhere": (
        lambda: with_changed(sample(), moves("fc1", "activation"), messages=first_message(target=3)),
        "names device 3",
    ),
    "message to itself": (
        lambda: with_changed(sample(), moves("fc1", "activation"), messages=first_message(target=0)),
        "from a device to itself",
    ),
    "step out of range": (
        lambda: with_changed(sample(), runs("fc1", "F"), key=lambda i: i.key._replace(step=2)),
        "none of the plan's 2 steps",
    ),
    "a tile is not run": (
        lambda: with_changed(sample(), runs("relu", "F"), devices=lambda i: (0,)),
        "leaves out device 1",
    ),
    "a backward tile is not run": (
        lambda: with_changed(sample(), runs("relu", "B"), devices=lambda i: (0,)),
        "leaves out device 1",
    ),
    "no forward": (lambda: without_instruction(sample(), runs("sum", "F")), r"it comes before its forward"),
    "no backward": (
        lambda: without_instruction(sample(), runs("fc1", "B")),
        r"'fc1' is never run backward in step 0, micro-batch 0",
    ),
    "twice": (
        lambda: with_changed(sample(), runs("fc2", "F"), op=lambda i: "relu", deps=lambda i: (0, 1)),
        r"'relu' forward.*: it is there twice",
    ),
    # -- messages
    "no move": (
        lambda: without_instruction(sample(), moves("fc1", "activation")),
        r"device 0 has no \[1:2 0:4\] of 'fc1', which its tile of 'relu' reads: it was neither",
    ),
    "no message": (
        lambda: with_changed(
            sample(), moves("fc1", "activation"), messages=lambda i: i.messages[:1]
        ),
        r"device 0 has no \[1:2 0:4\] of 'fc1'",
    ),
    "move too late": (
        lambda: with_moved_behind(sample(), moves("fc1", "activation"), runs("relu", "F")),
        r"device 0 has no \[1:2 0:4\] of 'fc1'",
    ),
    "move too early": (
        lambda: reordered(sample(), [1, 0, *range(2, len(sample().instructions))]),
        r"activation of 'fc1'.*: it comes before what it sends",
    ),
    "sent by another": (
        lambda: with_changed(sample(), moves("fc1", "activation"), messages=first_message(source=2)),
        r"device 2 sends \[0:1 4:8\], which it does not hold",
    ),
    "sent twice": (
        lambda: with_changed(
            sample(), moves("fc1", "activation"), messages=lambda i: (*i.messages, i.messages[0])
        ),
        "goes to device 1 twice",
    ),
    "sent to its holder": (
        lambda: with_changed(
            sample(),
            moves("fc1", "activation"),
            messages=lambda i: (*i.messages, i.messages[1]._replace(source=1, target=0)),
        ),
        "goes to device 0 twice",
    ),
    "not waited for": (
        lambda: with_changed(sample(), runs("relu", "F"), deps=lambda i: (0,)),
        r"'relu' forward.*: it does not wait for instruction 1 \(activation of 'fc1'",
    ),
    "sent before it is made": (
        lambda: with_changed(sample(), moves("fc1", "activation"), deps=lambda i: ()),
        r"does not wait for instruction 0 \('fc1' forward",
    ),
    "strange message": (
        lambda: with_changed(sample(), moves("fc1", "activation"), kind=lambda i: "letter"),
        "'letter' is no kind of message",
    ),
    # -- gradients
    "gradient not returned": (
        lambda: with_changed(sample(), moves("fc1", "gradient"), messages=lambda i: i.messages[:1]),
        r"the gradient of \[0:1 4:8\] of 'fc1' on device 1 is lost",
    ),
    "no gradient move": (
        lambda: without_instruction(sample(), moves("fc1", "gradient")),
        r"the gradient of \[1:2 0:4\] of 'fc1' on device 0 is lost",
    ),
    "gradient too late": (
        lambda: with_moved_behind(sample(), moves("fc1", "gradient"), runs("fc1", "B")),
        "the gradient of .* of 'fc1' on device 0 is lost",
    ),
    "gradient too early": (
        lambda: with_moved_behind(sample(), runs("relu", "B"), moves("fc1", "gradient")),
        "comes before the backward of 'relu', which adds to it",
    ),
    "gradient from elsewhere": (
        lambda: with_changed(
            sample(),
            moves("fc1", "gradient"),
            messages=lambda i: (*i.messages, i.messages[0]._replace(source=2)),
        ),
        "comes back from device 2 to 1 without having been sent there",
    ),
    "gradient twice": (
        lambda: with_changed(
            sample(), moves("fc1", "gradient"), messages=lambda i: (*i.messages, i.messages[0])
        ),
        "comes back twice from device 0",
    ),
    # -- partial results
    "part lacking in a cell": (
        lambda: with_changed(sample(), merges("fc2", "F"), cells=cells(parts=lambda c: c.parts[:1])),
        r"the cell \[0:2 0:2\] lacks the part of tile \[0:2 0:2 4:8\]",
    ),
    "part counted twice": (
        lambda: with_changed(sample(), merges("fc2", "F"), cells=cells(parts=lambda c: (0, 1, 1))),
        "counts a part twice",
    ),
    "part that is no tile": (
        lambda: with_changed(sample(), merges("fc2", "F"), cells=cells(parts=lambda c: (0, 7))),
        "names part 7, which is no tile",
    ),
    "part not sent": (
        lambda: with_changed(sample(), moves("fc2", "partial"), messages=lambda i: i.messages[1:]),
        r"device 2 lacks part \d of \[0:2 0:2\]",
    ),
    "part of another": (
        lambda: with_changed(sample(), moves("fc2", "partial"), messages=first_message(part=0)),
        "device 1 sends part 0, which it does not hold",
    ),
    "cell missing": (
        lambda: with_changed(sample(), merges("fc2", "F"), cells=lambda i: ()),
        r"its cells do not cover \[0:2 0:2\] once",
    ),
    "no merge": (
        lambda: without_instruction(sample(), merges("fc2", "F")),
        "device 2 has no .* of 'fc2', which its tile of 'sum' reads",
    ),
    "never merged": (
        lambda: with_variant(sample(), merges={}),
        "partial results, which nothing merges",
    ),
    "part's gradient lost": (
        lambda: with_changed(
            sample(), moves("fc2", "partial gradient"), messages=lambda i: i.messages[1:]
        ),
        r"the gradient of \[0:2 0:2\] of part 0 on device 2 is lost",
    ),
    "part's gradient from elsewhere": (
        lambda: with_changed(
            sample(),
            moves("fc2", "partial gradient"),
            messages=lambda i: (*i.messages, i.messages[0]._replace(source=1)),
        ),
        "a gradient of part 0 comes back from device 1 without having been sent there",
    ),
    "gradient not taken apart": (
        lambda: without_instruction(sample(), merges("fc2", "B")),
        "comes before what it sends",
    ),
    # -- recomputed, and split
    "not recomputed": (
        lambda: without_instruction(sample(recompute=(("fc1", "relu"),)), runs("relu", "R")),
        "values were not saved for backward and have not been recomputed",
    ),
    "recomputed too late": (
        lambda: with_moved_behind(sample(recompute=(("fc1", "relu"),)), runs("fc1", "R"), runs("fc1", "B")),
        "values were not saved for backward and have not been recomputed",
    ),
    "recomputed for nothing": (
        lambda: with_changed(sample(recompute=(("fc1",),)), runs("fc1", "R"), op=lambda i: "relu"),
        "the plan does not recompute it",
    ),
    "weights forgotten": (
        lambda: without_instruction(sample(split_backward=True), runs("fc2", "W")),
        "'fc2' is never run backward to parameters",
    ),
    "weights after their sum": (
        lambda: with_moved_behind(sample(split_backward=True), runs("fc1", "W"), reduces("fc1.weight")),
        "reduce of 'fc1.weight'.*does not wait for",
    ),
    "weights where there are none": (
        lambda: with_changed(sample(split_backward=True), runs("fc2", "W"), op=lambda i: "relu"),
        "the plan does not run it in this phase",
    ),
    # -- replicated loss
    "starts twice": (
        lambda: with_variant(replicated_loss(), replicated_loss_ops=frozenset()),
        "some would count twice, or not at all",
    ),
    "comes back as well": (
        lambda: with_moved_behind(
            with_changed(
                replicated_loss(),
                moves("sum", "partial"),
                kind=lambda i: MessageKind.PARTIAL_GRADIENT,
            ),
            moves("sum", "partial gradient"),
            merges("sum", "B"),
        ),
        "lacks part|comes back that every device starts",
    ),
    # -- parameters
    "no reduce": (
        lambda: without_instruction(sample(), reduces("fc1.weight")),
        r"update of 'fc1.weight'.*before its gradients are summed over all holders",
    ),
    "reduce too late": (
        lambda: with_moved_behind(sample(), reduces("fc1.weight"), updates("fc1.weight")),
        "before its gradients are summed",
    ),
    "reduce not waited for": (
        lambda: with_changed(sample(), updates("fc1.weight"), deps=lambda i: ()),
        "before its gradients are summed",
    ),
    "reduce too early": (
        lambda: with_moved_behind(sample(), runs("fc1", "B"), reduces("fc1.weight")),
        "reduce of 'fc1.weight'.*does not wait for",
    ),
    "reduced elsewhere": (
        lambda: with_changed(sample(), reduces("fc1.weight"), regions=regions_on(0, 1, 2)),
        "the holders of parameter 'fc1.weight' disagree in step 0",
    ),
    "updated elsewhere": (
        lambda: with_changed(sample(), updates("fc1.weight", 1), regions=regions_on(0)),
        "the holders of parameter 'fc1.weight' disagree in step 1",
    ),
    "region missing": (
        lambda: with_changed(
            sample(), updates("fc2.weight"), regions=lambda i: i.regions[:1], devices=lambda i: (0,)
        ),
        r"regions of parameter 'fc2.weight' do not cover \[0:2 0:8\] once",
    ),
    "no update": (
        lambda: without_instruction(sample(), updates("fc2.bias")),
        "'fc2.bias' is updated 0 times in step 0",
    ),
    "update too early": (
        lambda: with_moved_behind(sample(), runs("fc2", "B"), updates("fc2.weight")),
        "before 'fc2' has run backward",
    ),
    "next step too early": (
        lambda: with_changed(
            sample(), lambda i: runs("fc1", "F")(i) and i.key.step == 1, deps=lambda i: ()
        ),
        "does not wait for the update of 'fc1.weight' in the step before",
    ),
    "not pushed": (
        lambda: with_changed(on_server(), moves("fc1.weight", "push"), messages=lambda i: ()),
        "the holders of parameter 'fc1.weight' disagree",
    ),
    "not pulled": (
        lambda: without_instruction(on_server(), moves("fc1.weight", "pull")),
        "not sent to the other holders",
    ),
    "half pulled": (
        lambda: with_changed(on_server(), moves("fc1.weight", "pull"), messages=first_message(target=2)),
        "the holders of parameter 'fc1.weight' disagree",
    ),
    # -- slices
    "slice not pushed": (
        lambda: without_instruction(sliced(), moves("fc1.weight", "push")),
        r"of parameter 'fc1.weight' has its push by \[\(\d, \d\)\] 0 times in step 0",
    ),
    "slice not updated": (
        lambda: without_instruction(sliced(), updates("fc1.weight", 1)),
        "of parameter 'fc1.weight' has its update for .* 0 times in step 1",
    ),
    "slice updated twice": (
        lambda: with_changed(
            sliced(), updates("fc1.bias", 1), key=lambda i: i.key._replace(step=0)
        ),
        "of parameter 'fc1.bias' has its update for .* 2 times in step 0",
    ),
    "slice updated elsewhere": (
        lambda: with_changed(sliced(), updates("fc1.weight"), devices=lambda i: (2,)),
        "of parameter 'fc1.weight' has its update for .* 0 times in step 0",
    ),
    "slice updated before its push": (
        lambda: with_changed(sliced(), updates("fc1.weight"), deps=lambda i: i.deps[:1]),
        "it does not wait for",
    ),
    "slice pushed too early": (
        lambda: with_changed(sliced(), moves("fc1.weight", "push"), deps=lambda i: ()),
        "it does not wait for .*'fc1' backward",
    ),
    "slice pulled before its update": (
        lambda: with_changed(sliced(), moves("fc1.weight", "pull"), deps=lambda i: ()),
        r"pull.*does not wait for instruction \d+ \(update",
    ),
    "slice not waited for": (
        lambda: with_changed(
            sliced(), lambda i: runs("fc1", "F")(i) and i.key.step == 1, deps=lambda i: ()
        ),
        r"does not wait for instruction \d+ \(update of 'fc1.weight'",
    ),
    "slice pulled by a stranger": (
        lambda: with_changed(
            sliced(), moves("fc1.weight", "pull"),
            messages=lambda i: (i.messages[0]._replace(target=2),),
        ),
        "has its pull by",
    ),
    "slice summed too early": (
        lambda: with_changed(collective_sums(), reduces("fc1.weight"), deps=lambda i: ()),
        "it does not wait for .*'fc1' backward",
    ),
    "slice updated before its sum": (
        lambda: with_changed(collective_sums(), updates("fc1.weight"), deps=lambda i: ()),
        r"update.*does not wait for instruction \d+ \(reduce",
    ),
    "slice not summed": (
        lambda: without_instruction(collective_sums(), reduces("fc1.weight")),
        "has its sum over .* 0 times in step 0",
    ),
    "slice summed by some": (
        lambda: with_changed(collective_sums(), reduces("fc1.weight"), devices=lambda i: i.devices[:1]),
        "has its sum over .* 0 times in step 0",
    ),
    "sum not waited for": (
        lambda: with_changed(
            collective_sums(), lambda i: runs("fc1", "F")(i) and i.key.step == 1, deps=lambda i: ()
        ),
        r"does not wait for instruction \d+ \(update of 'fc1.weight'",
    ),
    "sums in another order": (
        lambda: dataclasses.replace(
            ordered_sums(), plan=dataclasses.replace(ordered_sums().plan, order=tuple(range(slice_total())))
        ),
        r"reduce of '.*'.* comes after the all-reduce of a slice of '.*', but comes before it in",
    ),
    "slices that overlap": (
        lambda: dataclasses.replace(
            sliced(), slices=sliced().slices | {"fc1.weight": 2 * sliced().slices["fc1.weight"]}
        ),
        "the slices of parameter 'fc1.weight' do not cover .* once",
    ),
    "too far ahead": (
        lambda: with_changed(
            sliced(sync="ps:ssp=1", steps=2),
            lambda i: moves("fc1.weight", "pull")(i) and i.key.step == 1,
            deps=lambda i: i.deps[-1:],
        ),
        r"does not wait for instruction \d+ \(update",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_refuses(damage: str) -> None:
    make, reason = DAMAGED[damage]
    with pytest.raises(InputError, match=reason):
        check(make())


def test_refuses_what_does_not_fit() -> None:
    program = sample()
    whole = cluster("p100:1x4")
    full = dataclasses.replace(whole.devices[0], kind="toy", memory=400)
    toy = Cluster("toy", (full, *whole.devices[1:]), whole.node_links, whole.node_networks)
    with pytest.raises(
        InputError, match=r"device 0 would need \d+ bytes at its fullest, a toy has 400:"
    ):
        check_memory(program, toy)


def test_refuses_ambiguous_local_statistics() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    graph = capture(model, (torch.zeros(4, 4),), supervised(lambda y: y.sum(), targets=0))
    for devices, bn in (("0,1", "local"), ("0,0", "global"), ("0,0", "local")):
        tiles = dict.fromkeys(("1.moments", "1"), f"n/2 @{devices}")
        if (devices, bn) != ("0,0", "local"):
            check(lower(graph, make_plan(graph, tiles, 2, bn=bn)))
            continue
        with pytest.raises(InputError, match="one tile of the samples per device"):
            lower(graph, make_plan(graph, tiles, 2, bn=bn))


class Centred(nn.Module):
    """Subtracts a running mean, which it reads before it writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x) - self.mean
        self.mean.copy_(0.9 * self.mean + 0.1 * x.mean(0))
        return y


def test_refuses_a_stale_buffer() -> None:
    graph = capture(Centred(), (torch.zeros(2, 4),), supervised(lambda y: y.sum(), targets=0))
    reader = next(op.name for op in graph.ops if op.label == "sub")
    program = lower(graph, make_plan(graph, {reader: "@1"}, 2, steps=2))
    check(program)
    damaged = without_instruction(program, moves(graph.updates["mean"], "activation"))
    with pytest.raises(InputError, match=r"device 1 has no \[0:4\] of buffer 'mean' as it was"):
        check(damaged)
