"""The probe measures the blocks that the executor runs, and plans use them."""

from __future__ import annotations

import pytest
import torch

from raddle import zoo
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.probe.blocks import make_trainer, measure_blocks, single_device_plan, small_batch


@pytest.mark.parametrize(
    ("model", "precision"),
    [("lenet-tiny", "float32"), ("gpt-tiny", "bf16"), ("mlp-tiny", "bf16:pure")],
)
def test_every_operator_is_measured_forward_and_backward(model: str, precision: str) -> None:
    work = zoo.load(model, batch=16, device="cpu")
    graph = capture(work.model, work.batch, work.loss, name=model)
    plan = single_device_plan(graph, precision, "adamw")
    trainer = make_trainer(
        graph, work.model, work.loss, plan, compile=False, place=torch.device("cpu")
    )
    device = cluster("local:1").devices[0]
    blocks = measure_blocks(trainer, work.batch, device)
    trainer.close()
    names = [op.name for op in graph.ops]
    for phase in "FB":
        measured = [b for b in blocks.blocks if b.phase == phase]
        assert sorted(name for b in measured for name in b.shares) == sorted(names)
        assert all(sum(b.shares.values()) == pytest.approx(1) for b in measured)
        assert all(b.seconds > 0 and b.floor == 0 for b in measured)
    assert (blocks.precision, blocks.compiled, blocks.batch) == (precision, False, 16)


def test_a_small_batch_has_at_least_two_samples() -> None:
    for batch, small in ((1, 1), (2, 2), (8, 2), (64, 8)):
        work = zoo.load("mlp-tiny", batch=batch)
        assert small_batch(capture(work.model, work.batch, work.loss)) == small
