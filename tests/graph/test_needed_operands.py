"""Which operands tiles need, for many tiles at once: the same as `Space.regions` for each tile."""

import numpy as np
import pytest
from small_models import mlp, small

from raddle.graph.needed_operands import needed_operands
from raddle.plans.notation import read_tiling


@pytest.mark.parametrize(("model", "name", "text"), [
    ("mlp", "fc1", "k/2 @0,1"), ("mlp", "fc1", "n/2 c/2 @0-3"), ("lenet-tiny", "conv1", "h/4 @0-3"),
])  # fmt: skip
def test_one_tile_or_many(model: str, name: str, text: str) -> None:
    graph = mlp() if model == "mlp" else small(model)[1]
    op = next((op for op in graph.ops if op.name == name), graph.ops[0])
    space, boxes = op.space, read_tiling(op, text).boxes
    ranges = [tuple(zip(box.lo, box.hi, strict=True)) for box in boxes]
    nonempty = [
        [
            all(lo < hi for lo, hi in (index.range(box_ranges) for index in access.indices))
            for box_ranges in ranges
        ]
        for access in space.operands
    ]
    at_origin = [all(box.lo[d] == 0 for d in space.reduced_dims) for box in boxes]
    many = needed_operands(
        space.operands, [np.array(by_box) for by_box in nonempty], np.array(at_origin)
    )
    for t, box in enumerate(boxes):
        expected = [region is not None for region in space.regions(box)]
        assert (
            needed_operands(space.operands, [by_box[t] for by_box in nonempty], at_origin[t])
            == expected
        )
        assert [bool(by_box[t]) for by_box in many] == expected


def test_what_nothing_changes_stays_itself() -> None:
    op = next(op for op in mlp().ops if op.name == "fc1")
    present = np.ones(3, bool)
    assert all(
        need is present for need in needed_operands(op.space.operands, [present] * len(op.inputs))
    )
