"""The communicators that a program needs: few, whatever the number of devices and messages."""

from __future__ import annotations

import pytest
from pipeline_plans import cut_evenly, make_pipeline_plan, split, tiny
from random_plans import SYNCS, random_plan
from small_models import make_plan, mlp, small

from raddle.plans.plan import Plan
from raddle.program.communicators import DOWN, UP, Communicator, communicators, most_on_a_device
from raddle.program.lower import lower
from raddle.program.program import Gather, Move, Reduce

MOST = 8  # communicators on a rank of a 3-D plan


def three_dimensional(model: str, data: int, stages: int, tensor: int, sync: str) -> Plan:
    """Data parallel times a pipeline times filters, channels or heads.

    The table of a language model, which its first and its last stage share, is not split.
    """
    piped = tiny(model, data)
    names = cut_evenly(piped.graph, stages)
    width = data * tensor
    tiles = {}
    for s, ops in enumerate(names):
        devices = range(s * width, (s + 1) * width)
        for name in ops:
            op = piped.graph.op(name)
            table = "wte.weight" in op.inputs
            tiles[name] = split(op, {"n": data, "c": 1 if table else tensor}, devices)
    return make_pipeline_plan(piped, tiles, width * stages, 2, names, "1f1b", sync=sync)


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 4, 8)])
@pytest.mark.parametrize("model", ["vgg16-tiny", "gpt-tiny"])
def test_a_plan_in_three_dimensions_needs_few(
    model: str, sizes: tuple[int, int, int], sync: str
) -> None:
    data, stages, tensor = sizes
    plan = three_dimensional(model, data, stages, tensor, sync)
    needed = communicators(lower(tiny(model, data).graph, plan))
    assert 3 <= most_on_a_device(needed) <= MOST
    everyone = tuple(range(data * stages * tensor))
    assert needed[0] == (everyone, 0)
    assert needed[-2:] == ((everyone, UP), (everyone, DOWN))


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("seed", range(5))
def test_every_transfer_has_its_communicator(sync: str, seed: int) -> None:
    graph = small("lenet-tiny")[1]
    program = lower(graph, random_plan(graph, 4, seed, sync=sync))
    needed = communicators(program)
    assert len(set(needed)) == len(needed)
    assert all(list(c.devices) == sorted(set(c.devices)) for c in needed)
    for i in program.instructions:
        if isinstance(i, Reduce | Gather):
            for region in (r for regions in i.regions for r in regions):
                for ring in region.rings(i.collective):
                    assert Communicator(ring) in needed
        elif isinstance(i, Move) and not (program.slices and i.kind.is_of_parameter):
            for m in i.messages:
                assert (tuple(range(4)), UP if m.source < m.target else DOWN) in needed


def test_one_device_needs_none() -> None:
    assert communicators(lower(mlp(), make_plan(mlp(), {}, 1))) == ()
    assert most_on_a_device(()) == 0


def test_messages_in_one_direction_need_one() -> None:
    tiles = {"fc1": "x2 @0,1", "relu": "x2 @0,1", "fc2": "x2 @0,1", "sum": "x2 @0,1"}
    assert communicators(lower(mlp(), make_plan(mlp(), tiles, 2))) == (((0, 1), 0),)
    assert str(Communicator((0, 2))) == "collectives over 0, 2"
    assert str(Communicator((0, 1), UP)) == "messages up over 0, 1"
