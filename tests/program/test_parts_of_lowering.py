"""The parts of lowering, each alone: variants, parameters, the writer, and gradients on their way."""

from __future__ import annotations

from dataclasses import replace

from small import mlp, planned

from raddle.graph.gradients import active_values
from raddle.program.gradients import Gradients, way_of
from raddle.program.messages import MessageKind
from raddle.program.parameters import Parameters
from raddle.program.program import Key, Message, Reduce, Run, Update
from raddle.program.script import BUCKETS, SERVER, SLICE_SUMS, SLICES
from raddle.program.variants import Variants
from raddle.program.writer import Writer

TILES = dict.fromkeys(("fc1", "relu", "fc2", "sum"), "n/2 @0,1")


def variants(**more: object) -> Variants:
    plan = planned(mlp(), TILES, 2, **more)
    return Variants(mlp(), plan, active_values(mlp()))


def test_micro_batches_of_one_size_are_one_variant() -> None:
    own = variants(microbatches=2, steps=3, bn="microbatch")
    assert [[key.micro for key, _ in step] for step in own.actions] == [[0, 0, 1, 1]] * 3
    assert ["".join(a.phase for _, a in step) for step in own.actions] == ["FBFB"] * 3
    assert len({key.replica for step in own.actions for key, _ in step}) == len(own.settled)


def test_parameters_are_shared_by_those_that_read_them() -> None:
    own = variants()
    known = Parameters(own.graph, own.plan, own.settled)
    assert {s.devices for name in known.graded for s in known.shared(name)} == {(0, 1)}
    assert set(known.groups.values()) == {((0, 1),)}
    assert known.slices == {}
    sliced = replace(own.plan, sync="sharded")
    assert set(Parameters(own.graph, sliced, own.settled).slices) == set(known.graded)


def test_the_writer_numbers_instructions_and_knows_who_computed_last() -> None:
    writer = Writer(3, latest=True)
    assert writer.emit(Run("a", "F", Key(), (0, 2), ())) == 0
    messages = [Message(0, 2, ()), Message(0, 1, ())]
    assert writer.move("a", MessageKind.ACTIVATION, Key(), messages, [0, 0]) == 1
    assert [(m.source, m.target) for m in writer.out[1].messages] == [(0, 1), (0, 2)]  # type: ignore[union-attr]
    assert writer.out[1].deps == (0,)
    assert writer.latest == {0: [0], 2: [0]}


def test_gradients_are_summed_when_complete_and_then_parameters_are_updated() -> None:
    own = variants(bucket=0)
    known, writer = Parameters(own.graph, own.plan, own.settled), Writer(2)
    gradients = Gradients(known, writer, overlap=False)
    run = writer.emit(Run("fc2", "B", Key(), (0, 1), ()))
    name = known.graded[-1]
    gradients.contribute(name, Key(), run)
    assert isinstance(writer.out[-1], Reduce)
    assert writer.out[-1].deps == (run,)
    gradients.action_ends(Key())
    gradients.step_ends(Key())
    assert isinstance(writer.out[-1], Update)
    assert writer.out[-1].deps == (run, run + 1)
    assert gradients.updated == {name: [len(writer.out) - 1]}


def test_every_way_to_synchronise_has_rules() -> None:
    texts = {"allreduce": BUCKETS, "server": SERVER, "ps": SLICES, "sharded": SLICES,
             "p3": SLICES, "p3:collective": SLICE_SUMS}  # fmt: skip
    assert {text: way_of(replace(variants().plan, sync=text).syncing) for text in texts} == texts
