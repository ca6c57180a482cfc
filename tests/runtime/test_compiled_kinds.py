"""Every operator kind and every native call goes through torch.compile as one graph, forward and backward.

Kinds come from the registries, calls of them from tests/graph/calls.py. The generated functions (of a whole
call, of tiles of an operator, and of the merge of their partial results) give the values and gradients that
they give uncompiled. The backend aot_eager traces and partitions graphs as torch.compile's own backend
does, but is fast.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from calls import CALLS, Call
from hypothesis import given, settings
from test_ops import build
from tilings import partition
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.graph import Graph, Op
from raddle.graph.ops import OPERATOR_KINDS
from raddle.graph.ops.fused import FUSED_KERNELS
from raddle.plans.plan import Plan
from raddle.plans.tiling import Irregular, Tile
from raddle.program.lower import lower
from raddle.program.program import Program
from raddle.runtime.code_generator import CodeGenerator
from raddle.runtime.function_writer import GeneratedCode, TensorId

PLACES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = [*OPERATOR_KINDS, *(f"native {kind}" for kind in FUSED_KERNELS)]
CALLS_OF_A_KIND = 2  # with different ATen calls, where there are as many
# A kind of each sort of code that torch.compile's own backend generates: reductions, products, windows,
# indices, random bits
COVERING = ["attention", "avg_pool2d", "conv2d", "dropout", "embedding", "moments", "pointwise"]


@cache
def calls_by_kind() -> dict[str, list[Call]]:
    """Some calls of each operator kind and of each kind of native call."""
    by_target: dict[str, dict[str, Call]] = {}

    def collect(call: Call) -> None:
        graph = build(call, 0)[0]
        for kind in (
            *(op.kind for op in graph.ops),
            *(f"native {f.kind}" for f in graph.fused_calls),
        ):
            chosen = by_target.setdefault(kind, {})
            if len(chosen) < CALLS_OF_A_KIND:
                chosen.setdefault(str(call.target), call)

    for strategy in CALLS.values():
        settings(max_examples=15)(given(strategy)(collect))()
    return {kind: list(chosen.values()) for kind, chosen in by_target.items()}


def program_of(graph: Graph, boxes: dict[str, list[Box]]) -> Program:
    """All tiles are on one device. boxes: of some operators; the others have one tile."""
    tiles = {
        op.name: Irregular(tuple(Tile(box, 0) for box in boxes.get(op.name, [op.space.full])))
        for op in graph.ops
    }
    return lower(graph, Plan(tiles, devices=1), train=False)


def generator_of(program: Program, place: str) -> CodeGenerator:
    """A generator for a device that holds all values whole, and partial results tile by tile."""
    graph, variant = program.graph, program.variants[0]

    def held_boxes(tensor_id: TensorId) -> list[Box]:
        if isinstance(tensor_id, str):
            return [Box.full(graph.values[tensor_id].shape)]
        name, tile, _ = tensor_id
        return [variant.ops[name].space.output_boxes(variant.tiles[name].tiles[tile].box)[0]]

    return CodeGenerator(
        program, variant, 0, torch.device(place), held_boxes, lambda piece: "nondifferentiable"
    )


def run(
    function: Callable[..., Any], arguments: Sequence[Tensor]
) -> tuple[list[Tensor], list[Any]]:
    """Results, and gradients of all arguments that want one."""
    torch.manual_seed(3)  # of opaque random operators
    inputs = [a.detach().clone().requires_grad_(a.requires_grad) for a in arguments]
    results = list(function(*inputs))
    ends = [r for r in results if r.requires_grad]
    leaves = [a for a in inputs if a.requires_grad]
    if not ends:
        return results, []
    generator = torch.Generator().manual_seed(5)
    seeds = [torch.randn(r.shape, generator=generator, dtype=r.dtype).to(r.device) for r in ends]
    return results, list(torch.autograd.grad(ends, leaves, seeds, allow_unused=True))


def compare(
    code: GeneratedCode,
    tensors: dict[Any, Tensor],
    buffers: Iterable[str],
    place: str,
    backend: str,
) -> list[Tensor]:
    """Runs a function uncompiled and compiled; returns its results. buffers: these get no gradient."""
    arguments = [tensors[piece.tensor_id].detach().to(place) for piece in code.nondifferentiable]
    for piece, argument in zip(code.nondifferentiable, arguments, strict=True):
        differentiable = argument.dtype.is_floating_point or argument.dtype.is_complex
        argument.requires_grad_(differentiable and piece.tensor_id not in buffers)
    arguments += numbers_of(code, place)
    results, gradients = run(code.function, arguments)
    torch.compiler.reset()
    function = torch.compile(code.function, fullgraph=True, dynamic=False, backend=backend)
    compiled_results, compiled_gradients = run(function, arguments)
    for one, other in zip(results, compiled_results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)
    for one, other in zip(gradients, compiled_gradients, strict=True):
        # Where nothing depends on an argument, one side may say so and the other give zeros.
        if one is None or other is None:
            assert not any(g is not None and g.count_nonzero() for g in (one, other))
        else:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)
    return results


def numbers_of(code: GeneratedCode, place: str) -> list[Tensor]:
    """The last arguments of a function."""
    return [torch.tensor(n, dtype=torch.int32, device=place) for n in code.numbers]


def check_whole(graph: Graph, tensors: dict[str, Tensor], place: str, backend: str) -> None:
    """The function of all operators of a call, with native calls in place of composites."""
    needed: Iterable[str] = (*graph.outputs, *graph.updates.values())
    code = generator_of(program_of(graph, {}), place).segment(graph.ops, needed, in_place=False)
    compare(code, tensors, graph.updates, place, backend)


def check_tiles(graph: Graph, op: Op, values: dict[str, Tensor], place: str, backend: str) -> None:
    """The function of an operator's tiles, and that of the merge of their partial results."""
    program = program_of(graph, {op.name: partition(op.space, random.Random(1))})
    code = generator_of(program, place).segment([op], op.outputs)
    results = compare(code, values, graph.updates, place, backend)
    cells = program.variants[0].merges.get(op.name)
    if cells:
        partial = {piece.tensor_id: r for piece, r in zip(code.results, results, strict=True)}
        merge = generator_of(program, place).merge(op, cells)
        compare(merge, partial, (), place, backend)


def check_kind(kind: str, place: str, backend: str) -> None:
    calls = calls_by_kind().get(kind)
    assert calls, f"no call in tests/graph/calls.py has operators of kind {kind}"
    for number, call in enumerate(calls):
        graph, tensors, _ = build(call, 0)
        inputs = {**tensors, **graph.constants, "seed": torch.tensor(7)}
        if number == 0 or kind.startswith("native"):
            check_whole(graph, inputs, place, backend)
        op = next((op for op in graph.ops if op.kind == kind), None)
        if op is not None:
            values = all_values(graph, inputs)
            check_tiles(graph, op, values, place, backend)


def all_values(graph: Graph, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """All values of a graph, by name."""
    values = dict(inputs)
    for op in graph.ops:
        code = generator_of(program_of(graph, {}), "cpu").segment([op], op.outputs, in_place=False)
        arguments = [values[str(p.tensor_id)] for p in code.nondifferentiable]
        results = code.function(*arguments, *numbers_of(code, "cpu"))
        values.update(zip((str(p.tensor_id) for p in code.results), results, strict=True))
    return values


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_one_graph(kind: str, place: str) -> None:
    check_kind(kind, place, "aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", COVERING)
def test_a_kind_compiles(kind: str, place: str) -> None:
    check_kind(kind, place, "inductor")
