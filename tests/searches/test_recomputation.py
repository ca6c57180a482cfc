"""Activation checkpointing in blocks saves memory and gives the same loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import small

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.runtime.actions import Forward, RecordLoss
from raddle.runtime.executor import Executor
from raddle.searches.planning import plan_for
from raddle.searches.recomputation import recompute_blocks
from raddle.simulation.memory.peaks import peak_bytes
from raddle.simulation.timeline import simulate
from raddle.transport.thread_transport import Hub


def test_blocks_are_the_forward_without_its_last_part() -> None:
    graph = small("resnet110-tiny")[1]
    blocks = recompute_blocks(graph, 4)
    names = [op.name for op in graph.ops]
    assert len(blocks) == 3
    assert [n for block in blocks for n in block] == names[: sum(map(len, blocks))]
    with pytest.raises(InputError, match="cannot recompute in 1 blocks"):
        recompute_blocks(graph, 1)


def saved_bytes(program: object, graph: object, work: object) -> tuple[int, float]:
    """Bytes that a rank has saved for the backward when the loss is recorded, and the loss."""
    rank = Executor(program, Hub(1).transport(0))  # type: ignore[arg-type]
    state = {**dict(work.model.named_parameters()), **dict(work.model.named_buffers())}  # type: ignore[attr-defined]

    def part(source, tensors):  # type: ignore[no-untyped-def]
        full = Box.full(graph.values[source.name].shape)  # type: ignore[attr-defined]
        return tensors[source.name].detach()[source.box.slices_within(full)]

    rank.load(lambda s: part(s, state).clone())
    inputs = dict(zip(graph.inputs, work.batch, strict=True))  # type: ignore[attr-defined]
    saved: dict[int, int] = {}
    counted: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        do = rank._handlers[RecordLoss]
        rank._handlers[RecordLoss] = lambda action: (
            counted.append(sum(saved.values())),
            do(action),
        )  # type: ignore[assignment]
        loss = rank.run(lambda s: part(s, inputs), 0)
    assert any(
        isinstance(a, Forward) and a.recomputation for a in rank.rank_actions.actions
    ) == bool(
        program.plan.recompute  # type: ignore[attr-defined]
    )
    return counted[0], float(loss)


@pytest.mark.parametrize("name", ["resnet110-tiny", "gpt-tiny"])
def test_less_is_saved_and_predicted(name: str) -> None:
    work, graph = small(name)
    plain = plan_for(graph, cluster("p100:1x1"), "data")
    recomputed = replace(plain, recompute=recompute_blocks(graph, 4))
    saved, peaks = [], []
    for plan in (plain, recomputed):
        program = lower(graph, plan)
        check(program)
        saved.append(saved_bytes(program, graph, work))
        peaks.append(peak_bytes(simulate(program, cluster("p100:1x1")))[0])
    assert saved[0][1] == pytest.approx(saved[1][1], rel=1e-12)
    assert saved[1][0] < 0.6 * saved[0][0]
    assert peaks[1] < peaks[0]
