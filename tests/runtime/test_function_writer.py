"""Tests of the function writer and of native calls, without a program."""

from __future__ import annotations

import torch
from small_models import make_plan, small

from raddle.graph.box import Box
from raddle.program.lower import lower
from raddle.program.segments import segments
from raddle.runtime.function_writer import FunctionWriter, Piece, TensorId
from raddle.runtime.native_calls import native_call_boxes, native_calls_in_segment

LEFT, RIGHT, ALL = Box((0,), (2,)), Box((2,), (4,)), Box((0,), (4,))


def halves(tensor_id: TensorId) -> list[Box]:
    return [LEFT, RIGHT]


def test_pieces_are_put_together_and_what_nobody_needs_is_released() -> None:
    writer = FunctionWriter(halves)
    both = writer.region_variable("x", ALL)
    assert writer.region_variable("x", ALL) == both  # the same variable again
    writer.add_call(lambda x: (x + 1, x - 1), both, [("y", ALL), None], key="f")
    assert writer.boxes("y") == [ALL]
    ((box, variable),) = writer.computed["y"]
    code = writer.build(
        "segment", "a test", lambda piece: "nondifferentiable", [(Piece("y", box), variable)]
    )
    assert code.nondifferentiable == (Piece("x", LEFT), Piece("x", RIGHT))
    (y,) = code.function(torch.zeros(2), torch.ones(2))
    assert y.tolist() == [1, 1, 2, 2]
    assert "del _" in code.source
    assert "del v1" in code.source


def test_arguments_stand_by_kind() -> None:
    writer = FunctionWriter(lambda tensor_id: [ALL])
    names = [writer.region_variable(name, ALL) for name in ("a", "w", "x")]
    writer.add_call(lambda a, w, x: (a * w + x,), ", ".join(names), [("y", ALL)], key="f")
    kinds = {"a": "nondifferentiable", "w": "weight", "x": "differentiable"}
    code = writer.build("segment", "", lambda p: kinds[str(p.tensor_id)], [])
    assert [
        p.tensor_id for p in (*code.differentiable, *code.weights, *code.nondifferentiable)
    ] == ["x", "w", "a"]
    assert code.source.startswith("def segment(a2, a1, a0)")


def test_what_is_read_in_parts_is_split_at_once() -> None:
    writer = FunctionWriter(lambda tensor_id: [ALL])
    writer.announce_reads([("x", LEFT), ("x", RIGHT), ("x", None)])
    left, right = writer.region_variable("x", LEFT), writer.region_variable("x", RIGHT)
    results = [(Piece("x", LEFT), left), (Piece("x", RIGHT), right)]
    code = writer.build("segment", "", lambda p: "nondifferentiable", results)
    assert code.source.count("torch.split") == 1
    assert [t.tolist() for t in code.function(torch.arange(4))] == [[0, 1], [2, 3]]


def test_a_composite_whose_tiles_are_one_box_is_one_call() -> None:
    graph = small("gpt-tiny")[1]
    program = lower(graph, make_plan(graph, {}, 1))
    variant = program.variants[0]
    (segment, *_) = segments(program, 0)
    natives = native_calls_in_segment(variant, 0, segment)
    assert natives.by_last_op
    for name, fused in natives.by_last_op.items():
        assert name in natives.replaced
        boxes = native_call_boxes(variant, 0, fused)
        outputs = [o for o in fused.outputs if o is not None]
        assert {o: boxes.outputs[o].shape for o in outputs} == {
            o: graph.values[o].shape for o in outputs
        }
