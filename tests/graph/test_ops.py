"""Every operator kind, with random attributes, shapes and boxes, in float64.

For each ATen call: its operators compute what torch computes; any partition of an iteration space gives the
same results and gradients; no smaller region suffices; operations and elements equal a brute-force count.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from calls import CALLS, Call, T
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from raddle.errors import InputError
from raddle.graph.box import Box, cells
from raddle.graph.builder import Builder
from raddle.graph.graph import Graph, Op, Value
from raddle.graph.interpret import interpret
from raddle.graph.ops import OPERATOR_KINDS, make_kernel, merge_partials, work
from raddle.graph.ops.attention import with_exact_dropout

# The elements that these kinds need depend on data (indices, masks, targets) or on constants.
DATA_DEPENDENT = {
    "embedding",
    "pick",
    "index",
    "gather",
    "entropy",
    "counted",
    "dropout",
    "draw",
    "bernoulli",
    "triangle",
    "prelu",
    "slicewise",
    "ctc",
    "grouped_mm",
    "opaque",
}
# Calls whose result may not change if one operand changes.
MASKING = {
    "where",
    "masked_fill",
    "relu",
    "clamp",
    "maximum",
    "to",
    "max",
    "min",
    "any",
    "all",
    "argmax",
    "argmin",
    "argsort",
    "binary_cross_entropy",
    "hinge_embedding_loss",
    "margin_ranking_loss",
}
seen_kinds: set[str] = set()


def build(call: Call, seed: int) -> tuple[Graph, dict[str, torch.Tensor], list[Any]]:
    """The graph of a call, its tensors by name, and the results of torch."""
    b, tensors = Builder(), {}
    generator = torch.Generator().manual_seed(seed)

    def value(t: T) -> Value:
        tensor = t.make(generator)
        name = f"in{len(tensors)}"
        tensors[name] = tensor
        letters = "abdefg"[: len(t.shape)] if t.role != "input" else "nchwde"[: len(t.shape)]
        return b.add(Value(name, t.shape, tensor.dtype, letters, t.role))

    arguments = map_arguments((call.args, call.kwargs), T, value)
    result = b.call(call.target, *arguments[0], **arguments[1])
    outputs = [
        v for v in (result if isinstance(result, (list, tuple)) else [result]) if v is not None
    ]
    names = tuple(v.name for v in outputs)
    updates = {before.name: after.name for before, after in b.hidden_writes}
    graph = Graph(
        "call",
        b.values,
        tuple(b.ops),
        tuple(tensors),
        names,
        None,
        updates,
        {},
        tuple(b.fused_calls),
    )
    return graph, tensors, run_torch(call, tensors, updates)


def run_torch(call: Call, tensors: Mapping[str, torch.Tensor], updates: Iterable[str]) -> list[Any]:
    """The results of torch for a call, then the buffers after the call."""
    copies = {k: v.clone() for k, v in tensors.items()}
    given = iter(copies.values())
    args, kwargs = map_arguments((call.args, call.kwargs), T, lambda _: next(given))
    expected = call.target(*args, **kwargs)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    return [*expected, *(copies[k] for k in updates)]


def map_arguments(a: Any, kind: type, f: Any) -> Any:
    if isinstance(a, kind):
        return f(a)
    if isinstance(a, (list, tuple)):
        return type(a)(map_arguments(x, kind, f) for x in a)
    return {k: map_arguments(x, kind, f) for k, x in a.items()} if isinstance(a, Mapping) else a


@st.composite
def partition(draw: Any, op: Op) -> list[Box]:
    """The boxes of an iteration space after up to four random cuts: uneven, also in reduced dimensions."""
    boxes = [op.space.full]
    for _ in range(draw(st.integers(0, 4))):
        i = draw(st.integers(0, len(boxes) - 1))
        box = boxes[i]
        able = [
            d
            for d, dim in enumerate(op.space.dims)
            if not dim.unsplittable and box.hi[d] - box.lo[d] > 1
        ]
        if not able:
            continue
        d = draw(st.sampled_from(able))
        at = draw(st.integers(box.lo[d] + 1, box.hi[d] - 1))
        boxes[i : i + 1] = [
            Box(box.lo, (*box.hi[:d], at, *box.hi[d + 1 :])),
            Box((*box.lo[:d], at, *box.lo[d + 1 :]), box.hi),
        ]
    return boxes


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True, check_stride=False)


def run(op: Op, box: Box, operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    regions = op.space.regions(box)
    inputs = [
        None if r is None else t[r.slices_within(Box.full(t.shape))]
        for t, r in zip(operands, regions, strict=True)
    ]
    return make_kernel(with_exact_dropout(op), box)(*inputs)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_boxes(name: str) -> None:
    @given(st.data(), st.integers(0, 99))
    def check(data: st.DataObject, seed: int) -> None:
        call = data.draw(CALLS[name])
        graph, tensors, expected = build(call, seed)
        _whole_equals_torch(graph, tensors, expected, call)
        values = _all_values(graph, tensors)
        for op in graph.ops[:40]:
            seen_kinds.add(op.kind)
            operands = [values[i] for i in op.inputs]
            boxes = data.draw(partition(op))
            _boxes_equal_whole(op, operands, boxes)
            box = data.draw(st.sampled_from(boxes))
            _regions_equal_brute_force(op, box)
            if (
                op.kind not in DATA_DEPENDENT
                and "stream" not in op.attrs
                and op.attrs.get("call", "").split(".")[0] not in MASKING
            ):
                _no_smaller_region(op, operands, box)
            _flops_as_counted(op, operands, box)

    check()


def _whole_equals_torch(
    graph: Graph, tensors: dict[str, torch.Tensor], expected: list[Any], call: Call
) -> None:
    if any("stream" in op.attrs for op in graph.ops):
        return  # raddle's mask differs from torch's
    wanted = [*graph.outputs, *graph.updates.values()]
    if "adaptive_max" in str(call.target):
        expected = expected[:1]  # not the indices
    for fuse in (True, False):
        result = interpret(graph, tensors, fuse=fuse)
        for name, tensor in zip(wanted, expected, strict=True):
            close(result[name], tensor)


def _all_values(graph: Graph, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    values = {**tensors, "seed": torch.tensor(7)}
    for op in graph.ops:
        results = run(op, op.space.full, [values[i] for i in op.inputs])
        values.update(zip(op.outputs, results, strict=True))
    return values


def _leaves(operands: list[torch.Tensor]) -> list[torch.Tensor]:
    return [
        t.clone().requires_grad_() if t.is_floating_point() or t.is_complex() else t
        for t in operands
    ]


def _weighted(y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of the elements, of complex numbers that of a real number of each."""
    return ((y * (1 + 0.5j)).real if y.is_complex() else y).mul(weights).sum()


def _boxes_equal_whole(op: Op, operands: list[torch.Tensor], boxes: list[Box]) -> None:
    """Results of boxes, and gradients summed over boxes, equal those of the whole operator."""
    left, right = _leaves(operands), _leaves(operands)
    full = run(op, op.space.full, left)
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(y.shape, generator=generator, dtype=torch.float64) for y in full]
    produced = [op.space.output_boxes(box) for box in boxes]
    parts = [run(op, box, right) for box in boxes]
    covered = [torch.zeros(y.shape, dtype=torch.int64) for y in full]
    total = torch.zeros((), dtype=torch.float64)
    split = any(op.space.is_partial(box) for box in boxes)
    for cell, owners in (
        cells([p[0] for p in produced]) if split else [(p[0], (i,)) for i, p in enumerate(produced)]
    ):
        pieces = [
            tuple(t[cell.slices_within(produced[i][0])] if split else t for t in parts[i])
            for i in owners
        ]
        final = not op.space.is_partial(boxes[owners[0]])
        assert final == (len(owners) == 1)
        tensors = pieces[0] if final else merge_partials(op, pieces, [boxes[i] for i in owners])
        for k, tensor in enumerate(tensors):
            box = cell if split else produced[owners[0]][k]
            close(tensor, full[k][box.slices_within(Box.full(full[k].shape))])
            covered[k][box.slices_within(Box.full(full[k].shape))] += 1
            if tensor.requires_grad:
                weights = seeds[k][box.slices_within(Box.full(full[k].shape))]
                total = total + _weighted(tensor, weights)
    assert all((c == 1).all() for c in covered)
    reference = sum(
        (_weighted(y, s) for y, s in zip(full, seeds, strict=True) if y.requires_grad),
        torch.zeros(()),
    )
    if not reference.requires_grad:
        return
    wanted = [t for t in left if t.requires_grad]
    ours = [t for t in right if t.requires_grad]
    expected = torch.autograd.grad(reference, wanted, allow_unused=True, materialize_grads=True)
    if not total.requires_grad:
        assert all((g == 0).all() for g in expected)
        return
    gradients = torch.autograd.grad(total, ours, allow_unused=True, materialize_grads=True)
    for a, b in zip(gradients, expected, strict=True):
        close(a, b)


def _regions_equal_brute_force(op: Op, box: Box) -> None:
    """Regions equal those from evaluating the notation, as text, at every point of the box."""
    names = [d.name for d in op.space.dims]
    _, right = re.split(r"\s\w*\+?=", op.notation, maxsplit=1)
    accesses = re.findall(r"\w+\[([^\]]*)\]", right)
    regions = op.space.regions(box)
    if math.prod(box.shape) > 4000:
        return
    points = [
        dict(zip(names, p, strict=True)) for p in itertools.product(*map(range, box.lo, box.hi))
    ]
    elements = work(op, box).elements
    for operand, (text, region) in enumerate(zip(accesses, regions, strict=True)):
        access = op.space.operands[operand]
        assert elements[operand] == (region.volume if region else 0)
        if (
            region is None
            or ("(" in text.replace("(", "", 0) and re.search(r"[a-z]\d*\(", text))
            or ":" in text
        ):
            continue
        tokens = text.split()
        exact = [re.sub(r"\)/(\d+)", r")//\1", t) for t in tokens]
        reads = set()
        for point in points:
            at = [eval(t, {}, point) for t in exact]
            whole = all("/" not in t or "//" in t or _divides(t, point) for t in tokens)
            if whole and all(
                0 <= i < index.extent for i, index in zip(at, access.indices, strict=True)
            ):
                reads.add(tuple(at))
        assert reads
        los, his = (tuple(map(f, zip(*reads, strict=True))) for f in (min, max))
        assert region == Box(los, tuple(h + 1 for h in his)), op.notation


def _divides(token: str, point: dict[str, int]) -> bool:
    numerator, denominator = re.fullmatch(r"\((.*)\)/(\d+)", token).groups()  # type: ignore[union-attr]
    return eval(numerator, {}, point) % int(denominator) == 0


def _no_smaller_region(op: Op, operands: list[torch.Tensor], box: Box) -> None:
    """Changing the outermost elements on any side of a region changes the result."""
    generator = torch.Generator().manual_seed(2)
    operands = [
        torch.rand(t.shape, generator=generator, dtype=t.dtype) + 0.5
        if t.is_floating_point()
        else t
        for t in operands
    ]
    before = run(op, box, operands)

    def wide(t: torch.Tensor) -> torch.Tensor:
        return t if t.is_complex() else t.double()

    for i, region in enumerate(op.space.regions(box)):
        if region is None or not operands[i].is_floating_point():
            continue
        keys = op.space.regions(box)[1].shape[-2:] if op.kind == "attention" else (0,)
        if keys[0] == 1 and i != 2:
            continue  # a single key always has weight 1
        if op.attrs.get("causal") and i == 0:
            continue  # the first query sees only one key
        for d, index in enumerate(op.space.operands[i].indices):
            taken_whole = any(op.space.dims[t.dim].unsplittable for t in index.terms) or (
                index.table and not index.terms
            )
            if taken_whole and not _window(op, i):
                continue
            for at in {region.lo[d], region.hi[d] - 1}:
                face = tuple(
                    slice(at, at + 1) if k == d else slice(lo, hi)
                    for k, (lo, hi) in enumerate(zip(region.lo, region.hi, strict=True))
                )
                changed = False
                for by in (9.0, -9.0, 0.7):
                    moved = [t.clone() for t in operands]
                    noise = (
                        torch.rand(moved[i][face].shape, generator=generator, dtype=torch.float64)
                        + 0.5
                    )
                    moved[i][face] += by * noise.to(moved[i].dtype)
                    after = run(op, box, moved)
                    changed = changed or any(
                        not torch.allclose(wide(a), wide(b), rtol=1e-12, atol=1e-12)
                        for a, b in zip(before, after, strict=True)
                    )
                assert changed, (
                    f"{op.notation}: {op.inputs[i]} {region} along {d} at {at} is not needed by {box}"
                )


def _window(op: Op, operand: int) -> bool:
    """Whether it is the input of a convolution or pool, whose window moves with the box."""
    return operand == 0 and ("conv" in op.kind or "pool" in op.kind)


def _flops_as_counted(op: Op, operands: list[torch.Tensor], box: Box) -> None:
    """Flops of contractions equal torch's count of the real calls; of others, they follow the volume."""
    forward = work(op, box).flops
    if op.kind == "grouped_mm":  # as if all experts had equally many rows
        experts = next(d.size for d in op.space.dims if d.name == "e")
        assert forward == 2 * box.volume // experts
        return
    if not op.space.is_product and op.kind != "attention":
        assert forward == op.space.flops_per_point * box.volume
        return
    if op.attrs.get("groups", 1) > 1:
        assert forward == 2 * box.volume or "transpose" in op.kind
        return  # torch counts the weight's gradient without groups
    if op.kind == "attention" or (op.kind == "einsum" and len(op.inputs) > 2):
        return  # attention has its own test; torch contracts several operands in pairs
    leaves = _leaves(operands)
    with FlopCounterMode(display=False) as counter:
        results = run(op, box, leaves)
    counted = counter.get_total_flops()
    if counted == 0:
        return  # an outer product, or a region in the padding: torch calls no contraction
    assert forward == counted, (op.notation, box)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(
            results[0].sum(), [t for t in leaves if t.requires_grad], allow_unused=True
        )
    backward = sum(work(op, box, i).flops for i in range(len(leaves)))
    assert backward == counter.get_total_flops()


@settings(max_examples=20)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_attention_flops(n: int, h: int, t: int, s: int, k: int, c: int) -> None:
    call = Call(
        torch.ops.aten.scaled_dot_product_attention.default,
        (T((n, h, t, k)), T((n, h, s, k)), T((n, h, s, c))),
    )
    graph, _, _ = build(call, 0)
    (op,) = graph.ops
    full = op.space.full
    assert work(op, full).flops == 2 * n * h * t * s * (k + c)
    assert sum(work(op, full, i).flops for i in range(3)) == 2 * n * h * t * s * (3 * k + 2 * c)


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_flops_of_causal_attention_are_those_of_the_keys_that_queries_see(
    t: int, s: int, data: st.DataObject
) -> None:
    shapes = [(2, t, 3), (2, s, 3), (2, s, 5)]
    call = Call(
        torch.ops.aten.scaled_dot_product_attention.default,
        tuple(T(shape) for shape in shapes),
        {"is_causal": True},
    )
    graph, _, _ = build(call, 0)
    (op,) = graph.ops
    lo = data.draw(st.integers(0, t - 1))
    hi = data.draw(st.integers(lo + 1, t))
    (axis,) = (d for d, dim in enumerate(op.space.dims) if dim.size == t and d == 1)
    full = op.space.full
    box = Box(
        tuple(lo if d == axis else n for d, n in enumerate(full.lo)),
        tuple(hi if d == axis else n for d, n in enumerate(full.hi)),
    )
    seen = sum(min(query + 1, s) for query in range(lo, hi))
    assert work(op, box).flops == 2 * 2 * seen * (3 + 5)


def test_sums_of_nothing() -> None:
    b = Builder()
    x = b.add(Value("x", (4, 6), torch.float64, "nc", "input"))
    empty = b.call(torch.ops.aten.repeat.default, x, [1, 0])
    results = [
        b.call(torch.ops.aten.sum.default, empty),
        b.call(torch.ops.aten.mean.dim, empty, [1]),
        b.call(torch.ops.aten.sum.dim_IntList, empty, [1], True),
    ]
    names = tuple(v.name for v in results)
    graph = Graph("call", b.values, tuple(b.ops), ("x",), names, None, {}, {})
    outputs = interpret(graph, {"x": torch.ones(4, 6, dtype=torch.float64)})
    none = torch.ones(4, 0, dtype=torch.float64)
    for name, tensor in zip(names, (none.sum(), none.mean(1), none.sum(1, True)), strict=True):
        close(outputs[name], tensor)


def test_outputs_share_letters_of_equal_size() -> None:
    call = Call(torch.ops.aten.gradient.scalarint, (T((2, 3, 2)),))
    (op,) = build(call, 0)[0].ops
    assert op.notation == "y0[A B C], y1[A B C], y2[A B C] = x0[: : :]"
    b = Builder()
    x = b.add(Value("x", (26 * 27 // 2,), torch.float64, "n", "input"))
    with pytest.raises(InputError, match="more than 25 different dimensions"):
        b.opaque(
            torch.ops.aten.split_with_sizes.default,
            (x, list(range(1, 27))),
            {},
            [torch.empty(i) for i in range(1, 27)],
        )


def test_every_kind_is_tested() -> None:
    """CALLS draws every declared kind, so that a new kind is not forgotten."""
    kinds: set[str] = set()

    def collect_kinds(call: Call) -> None:
        graph, _, _ = build(call, 0)
        kinds.update(op.kind for op in graph.ops)

    for strategy in CALLS.values():
        settings(max_examples=30)(given(strategy)(collect_kinds))()
    assert kinds == set(OPERATOR_KINDS)
