"""The messages of a program are minimal: checked element by element, without box arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_plan
from small_models import MODELS, mlp, small

from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.program.lower import lower
from raddle.program.program import Message, Move, Program

examples = given(
    model=st.sampled_from([*MODELS, "mlp"]),
    devices=st.integers(2, 4),
    seed=st.integers(0, 10_000),
)


def random_program(model: str, devices: int, seed: int) -> Program:
    graph = mlp() if model == "mlp" else small(model)[1]
    return lower(graph, random_plan(graph, devices, seed))


def add_boxes(counts: np.ndarray, boxes: Iterable[Box]) -> None:
    for box in boxes:
        counts[tuple(map(slice, box.lo, box.hi))] += 1


class Elements:
    """Counts, by device, for each element of a value."""

    def __init__(self, program: Program, value: str) -> None:
        shape = program.graph.values[value].shape
        self.count = np.zeros((program.plan.devices, *shape), int)

    def add(self, device: int, boxes: Iterable[Box]) -> None:
        add_boxes(self.count[device, ...], boxes)


def elements_held(program: Program, op: Op, output: int) -> Elements:
    elements = Elements(program, op.outputs[output])
    for cell in program.variants[0].merges.get(op.name, ()):
        for device in cell.devices:
            elements.add(device, [cell.box])
    for tile in (
        program.plan.tiles[op.name].tiles if op.name not in program.variants[0].merges else ()
    ):
        elements.add(tile.device, [op.space.output_boxes(tile.box)[output]])
    return elements


def reads(graph: Graph, value: str) -> Iterator[tuple[Op, int]]:
    """The operators that read a value, or the buffer that it is written to."""
    names = {value, *(b for b, v in graph.updates.items() if v == value)}
    for op in graph.ops:
        yield from ((op, i) for i, name in enumerate(op.inputs) if name in names)


def elements_read(program: Program, value: str, *, with_gradient: bool) -> Elements:
    """The elements that operators read: all of them, or only those that contribute to the gradient."""
    elements = Elements(program, value)
    for op, operand in reads(program.graph, value):
        gives = op.inputs[operand] in program.active & {value} and any(
            o in program.active for o in op.outputs
        )
        if with_gradient and not gives:
            continue
        for tile in program.plan.tiles[op.name].tiles:
            region = op.space.regions(tile.box)[operand]
            elements.add(tile.device, [] if region is None else [region])
    return elements


class Messages:
    """All messages of a program with one micro-batch."""

    def __init__(self, program: Program) -> None:
        self.moves: dict[tuple[str, str], tuple[Message, ...]] = {}
        for i in program.instructions:
            if isinstance(i, Move):
                assert (i.value, i.kind) not in self.moves
                self.moves[i.value, i.kind] = i.messages

    def messages_of(self, value: str, kind: str) -> tuple[Message, ...]:
        return self.moves.get((value, kind), ())


@settings(max_examples=40)
@examples
def test_values_go_where_they_are_needed_and_not_held(**plan: Any) -> None:
    program = random_program(**plan)
    messages = Messages(program)
    for op in program.graph.ops:
        for k, value in enumerate(op.outputs):
            held_elements, wanted = (
                elements_held(program, op, k),
                elements_read(program, value, with_gradient=False),
            )
            arrived = Elements(program, value)
            for m in messages.messages_of(value, "activation"):
                arrived.add(m.target, m.boxes)
                sent = np.zeros(held_elements.count.shape[1:], int)
                add_boxes(sent, m.boxes)
                assert (held_elements.count[m.source][sent > 0] > 0).all()
            # Every element once where it is missing, and nowhere else.
            assert (arrived.count == ((wanted.count > 0) & (held_elements.count == 0))).all(), value


@settings(max_examples=40)
@examples
def test_gradients_come_back_from_where_they_are_given(**plan: Any) -> None:
    program = random_program(**plan)
    messages = Messages(program)
    for op in program.graph.ops:
        for k, value in enumerate(op.outputs):
            held, wanted = (
                elements_held(program, op, k),
                elements_read(program, value, with_gradient=True),
            )
            if value not in program.active:
                assert not messages.messages_of(value, "gradient")
                continue
            activations = {
                (m.source, m.target): m.boxes for m in messages.messages_of(value, "activation")
            }
            returned = Elements(program, value)
            for m in messages.messages_of(value, "gradient"):
                returned.add(m.source, m.boxes)
                sent_and_returned = np.zeros((2, *held.count.shape[1:]), int)
                add_boxes(sent_and_returned[0, ...], activations[m.target, m.source])
                add_boxes(sent_and_returned[1, ...], m.boxes)
                assert (sent_and_returned[1] <= sent_and_returned[0]).all()
            assert (returned.count == ((wanted.count > 0) & (held.count == 0))).all(), value


@settings(max_examples=40)
@examples
def test_every_part_arrives_once_where_it_is_merged(**plan: Any) -> None:
    program = random_program(**plan)
    messages = Messages(program)
    for name, cells in program.variants[0].merges.items():
        op = program.graph.op(name)
        value, tiles = op.outputs[0], program.plan.tiles[name].tiles
        arrived = [Elements(program, value) for _ in tiles]
        parts = messages.messages_of(value, "partial")
        for m in parts:
            assert tiles[m.part].device == m.source
            arrived[m.part].add(m.target, m.boxes)
        wanted = [Elements(program, value) for _ in tiles]
        for cell in cells:
            for part in cell.parts:
                for device in set(cell.devices) - {tiles[part].device}:
                    wanted[part].add(device, [cell.box])
        for a, b in zip(arrived, wanted, strict=True):
            assert (a.count == b.count).all()
        # Every point of the iteration space contributes once to every element of the output.
        counts = np.zeros(program.graph.values[value].shape, int)
        for cell in cells:
            add_boxes(counts, [cell.box])
            points = sum(
                tiles[p].box.volume // op.space.output_boxes(tiles[p].box)[0].volume
                for p in cell.parts
            )
            assert points == op.space.full.volume // op.space.output_boxes(op.space.full)[0].volume
        assert (counts == 1).all()
        if value in program.active:
            gradients = messages.messages_of(value, "partial gradient")
            if (
                name in program.variants[0].replicated_loss_ops
            ):  # every device starts the gradient of its own part
                assert not gradients
                continue
            assert sorted(gradients) == sorted(
                Message(m.target, m.source, m.boxes, m.part) for m in parts
            )
