"""The parts of lowering, one by one: variants, parameter layout, instruction writer, gradient sync."""

from __future__ import annotations

from dataclasses import replace

from small_models import make_plan, mlp

from raddle.graph.gradients import active_values
from raddle.program.gradient_sync import GradientSync, rule_of
from raddle.program.instruction_writer import InstructionWriter
from raddle.program.message_kind import MessageKind
from raddle.program.parameter_layout import ParameterLayout
from raddle.program.program import Key, Message, Reduce, Run, Update
from raddle.program.step_script import BUCKETS, SERVER, SHARDS, SLICE_SUMS, SLICES
from raddle.program.variants import Variants

TILES = dict.fromkeys(("fc1", "relu", "fc2", "sum"), "n/2 @0,1")


def variants(**more: object) -> Variants:
    plan = make_plan(mlp(), TILES, 2, **more)
    return Variants(mlp(), plan, active_values(mlp()))


def test_micro_batches_of_one_size_are_one_variant() -> None:
    lowered_variants = variants(microbatches=2, steps=3, bn="microbatch")
    assert [[key.micro_batch for key, _ in step] for step in lowered_variants.actions] == [
        [0, 0, 1, 1]
    ] * 3
    assert ["".join(a.phase for _, a in step) for step in lowered_variants.actions] == ["FBFB"] * 3
    assert len({key.variant for step in lowered_variants.actions for key, _ in step}) == len(
        lowered_variants.lowered
    )


def test_parameters_are_shared_by_those_that_read_them() -> None:
    lowered_variants = variants()
    parameters = ParameterLayout(
        lowered_variants.graph, lowered_variants.plan, lowered_variants.lowered
    )
    assert {
        s.devices for name in parameters.trainable for s in parameters.synced_regions(name)
    } == {(0, 1)}
    assert set(parameters.groups.values()) == {(((0, 1),), 0)}
    assert parameters.slices == {}
    sliced = replace(lowered_variants.plan, sync="p3")
    assert set(
        ParameterLayout(lowered_variants.graph, sliced, lowered_variants.lowered).slices
    ) == set(parameters.trainable)


def test_the_writer_numbers_instructions_and_orders_messages() -> None:
    writer = InstructionWriter(3)
    assert writer.emit(Run("a", "F", Key(), (0, 2), ())) == 0
    messages = [Message(0, 2, ()), Message(0, 1, ())]
    assert writer.emit_move("a", MessageKind.ACTIVATION, Key(), messages, [0, 0]) == 1
    assert [(m.source, m.target) for m in writer.instructions[1].messages] == [(0, 1), (0, 2)]  # type: ignore[union-attr]
    assert writer.instructions[1].deps == (0,)


def test_gradients_are_summed_when_complete_and_then_parameters_are_updated() -> None:
    lowered_variants = variants(bucket=0)
    parameters, writer = (
        ParameterLayout(lowered_variants.graph, lowered_variants.plan, lowered_variants.lowered),
        InstructionWriter(2),
    )
    gradients = GradientSync(parameters, writer, overlap=False)
    run = writer.emit(Run("fc2", "B", Key(), (0, 1), ()))
    name = parameters.trainable[-1]
    gradients.contribute(name, Key(), run, run)
    assert isinstance(writer.instructions[-1], Reduce)
    assert writer.instructions[-1].deps == (run,)
    gradients.action_ends(Key())
    gradients.step_ends(Key())
    assert isinstance(writer.instructions[-1], Update)
    assert writer.instructions[-1].deps == (run, run + 1)
    assert gradients.last_writers == {name: [len(writer.instructions) - 1]}


def test_every_sync_kind_has_a_rule() -> None:
    texts = {"allreduce": BUCKETS, "server": SERVER, "ps": SLICES, "sharded": SHARDS,
             "p3": SLICES, "p3:collective": SLICE_SUMS}  # fmt: skip
    assert {
        text: rule_of(replace(variants().plan, sync=text).parsed_sync) for text in texts
    } == texts
