"""The boxes that devices read are the regions of their tiles, each once."""

import pytest
from small_models import mlp

from raddle.graph.box import Box
from raddle.plans.notation import read_tiling
from raddle.plans.regions import add_read_boxes, add_unread_boxes, operand_regions


@pytest.mark.parametrize("text", ["n/2 @0,1", "c/2 @0,1", "k/2 @0,1", "x2 @0,1", "n/2 c/2 @0-3"])
def test_regions_of_operands_are_those_of_the_tiles(text: str) -> None:
    op = next(op for op in mlp().ops if op.name == "fc1")
    tiling = read_tiling(op, text)
    for operand in range(len(op.inputs)):
        expected = {(t.device, op.space.regions(t.box)[operand]) for t in tiling.tiles}
        assert set(operand_regions(op, operand, tiling)) == expected


def test_boxes_are_added_once_and_what_nobody_reads_to_the_first() -> None:
    op = next(op for op in mlp().ops if op.name == "fc1")
    held: dict[int, list[Box]] = {}
    for _ in range(2):
        add_read_boxes(held, op, 1, read_tiling(op, "c/2 @2,1"))
    assert held == {2: [Box((0, 0), (4, 4))], 1: [Box((4, 0), (8, 4))]}
    add_unread_boxes(held, (9, 4))
    assert held[1] == [Box((4, 0), (8, 4)), Box((8, 0), (9, 4))]
