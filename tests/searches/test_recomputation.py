"""Recomputing in blocks takes less memory and gives the same numbers."""

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
    found = recompute_blocks(graph, 4)
    names = [op.name for op in graph.ops]
    assert len(found) == 3
    assert [n for block in found for n in block] == names[: sum(map(len, found))]
    with pytest.raises(InputError, match="cannot recompute in 1 blocks"):
        recompute_blocks(graph, 1)


def kept_bytes(program: object, graph: object, work: object) -> tuple[int, float]:
    """What a rank holds for the backward when the loss is known, and the loss."""
    rank = Executor(program, Hub(1).transport(0))  # type: ignore[arg-type]
    state = {**dict(work.model.named_parameters()), **dict(work.model.named_buffers())}  # type: ignore[attr-defined]

    def part(source, tensors):  # type: ignore[no-untyped-def]
        full = Box.full(graph.values[source.name].shape)  # type: ignore[attr-defined]
        return tensors[source.name].detach()[source.box.within(full)]

    rank.load(lambda s: part(s, state).clone())
    given = dict(zip(graph.inputs, [*work.inputs, *work.targets], strict=True))  # type: ignore[attr-defined]
    held: dict[int, int] = {}
    counted: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        do = rank._handlers[RecordLoss]
        rank._handlers[RecordLoss] = lambda action: (counted.append(sum(held.values())), do(action))  # type: ignore[assignment]
        loss = rank.run(lambda s: part(s, given), 0)
    assert any(
        isinstance(a, Forward) and a.recomputation for a in rank.rank_actions.actions
    ) == bool(
        program.plan.recompute  # type: ignore[attr-defined]
    )
    return counted[0], float(loss)


@pytest.mark.parametrize("name", ["resnet110-tiny", "gpt-tiny"])
def test_less_is_kept_and_predicted(name: str) -> None:
    work, graph = small(name)
    plain = plan_for(graph, cluster("p100:1x1"), "data")
    again = replace(plain, recompute=recompute_blocks(graph, 4))
    found, peaks = [], []
    for plan in (plain, again):
        program = lower(graph, plan)
        check(program)
        found.append(kept_bytes(program, graph, work))
        peaks.append(peak_bytes(simulate(program, cluster("p100:1x1")))[0])
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-12)
    assert found[1][0] < 0.6 * found[0][0]
    assert peaks[1] < peaks[0]
