"""Large messages between processes of a machine: through shared memory, byte for byte."""

from __future__ import annotations

from pathlib import Path

import torch

from raddle.graph.capture import capture
from raddle.plans import plan_file
from raddle.plans.pipelining import cut_stages
from raddle.plans.plan import Plan, describe_inputs, parameter_shapes
from raddle.plans.tiling import whole_tiling
from raddle.transport.shared_memory import (
    LARGE_BYTES,
    ReceivePool,
    SharedAreas,
    can_access,
    locate_process,
)
from raddle.verification.verify_plan import verify
from raddle.zoo.loading import load

MODEL = """
import torch
from torch import nn

def build(batch=8):
    model = nn.Sequential(nn.Linear(16, 8192), nn.ReLU(), nn.Linear(8192, 4))
    return model, torch.randn(batch, 16), lambda model, x: model(x).square().mean()
"""


def test_a_pipeline_of_large_activations(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text(MODEL)
    name = f"{source}:build"
    work = load(name, batch=8)
    graph = capture(work.model, work.batch, work.loss, name=name)
    stages = cut_stages(graph, [graph.ops[0].name])
    stage_of = {n: s for s, names in enumerate(stages) for n in names}
    tiles = {
        op.name: whole_tiling([d.size for d in op.space.dims], [stage_of[op.name]]) for op in graph.ops
    }  # fmt: skip
    plan = Plan(
        tiles, 2, bn="microbatch", microbatches=3, batch=24, stages=stages, schedule="1f1b", model=name,
        fingerprint=graph.fingerprint(), inputs=describe_inputs(graph),
        parameters=parameter_shapes(graph),
    )  # fmt: skip
    plan_file.save(plan, graph, tmp_path / "plan.json")
    result = verify(str(tmp_path / "plan.json"), steps=4)
    assert result["holds"], result
    each = 8 * 8192 * 8  # float64
    assert each >= LARGE_BYTES
    assert {(r["source"], r["target"]): r["transport"] for r in result["sent"]} == {
        (0, 1): 4 * 3 * each,
        (1, 0): 4 * 3 * each,
    }


def test_an_area_is_used_again_when_nobody_looks_at_it() -> None:
    areas = SharedAreas()
    first = areas.get(areas.put(torch.arange(100.0)), 100, torch.float32)
    second = areas.get(areas.put(torch.arange(100.0) + 1), 100, torch.float32)
    view = first[10:20]
    del first
    assert torch.equal(view, torch.arange(10.0, 20.0))  # still held by a view
    address = second.data_ptr()
    del second
    third = areas.get(areas.put(torch.zeros(100)), 100, torch.float32)
    assert third.data_ptr() == address
    assert torch.equal(view, torch.arange(10.0, 20.0))
    areas.close()


def test_a_pool_gives_back_what_nobody_holds() -> None:
    pool = ReceivePool()
    one = pool.take(1000, torch.float32)
    address = one.data_ptr()
    kept = (one * 1).requires_grad_()
    saved = kept * one  # autograd keeps what arrived
    del one
    assert pool.take(1000, torch.float32).data_ptr() != address
    del saved
    assert pool.take(1000, torch.float32).data_ptr() == address


def test_who_sees_whom() -> None:
    location = locate_process()
    assert can_access(location, location)
    assert not can_access(location, location._replace(host="elsewhere"))
    assert not can_access(location, location._replace(file=-1))
