"""Captured graphs run box by box equal the module: loss, gradients and updated buffers, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from tilings import random_tiles

from raddle import zoo
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.interpret import interpret

TINY = [name for name in zoo.names() if name.endswith("-tiny")]


def without_dropout(model: torch.nn.Module) -> None:
    for module in model.modules():
        for name in ("p", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("name", TINY)
def test_equals_the_module(name: str) -> None:
    work = zoo.load(name, device="cpu", dtype=torch.float64)
    model = work.model.train()
    without_dropout(model)
    graph = capture(model, work.batch, work.loss)
    assert not graph.opaque_ops

    reference = copy.deepcopy(model)
    loss = work.loss(reference, work.batch)
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in reference.parameters()]).norm()

    tensors = {
        **state(model),
        **dict(zip(graph.inputs, work.batch, strict=True)),
    }
    runs = [({}, True), ({}, False), *((random_tiles(graph, seed), True) for seed in range(3))]
    for tiles, fuse in runs:
        model.zero_grad()
        result = interpret(graph, tensors, tiles=tiles, fuse=fuse)
        result[graph.loss].backward()
        assert abs(result[graph.loss] - loss) <= 1e-11 * max(1, abs(loss))
        for (parameter, ours), theirs in zip(
            model.named_parameters(), reference.parameters(), strict=True
        ):
            assert (ours.grad - theirs.grad).norm() <= 1e-9 * norm, parameter
        after = dict(reference.named_buffers())
        assert set(graph.updates) == set(after)
        for buffer, value in graph.updates.items():
            torch.testing.assert_close(result[value], after[buffer], rtol=1e-9, atol=1e-12)


def tiled_loss(
    graph: Graph, tensors: dict[str, torch.Tensor], seed: int, tiles_seed: int | None
) -> float:
    tiles = {} if tiles_seed is None else random_tiles(graph, tiles_seed)
    return interpret(graph, tensors, tiles=tiles, seed=seed)[graph.loss].item()


@pytest.mark.parametrize("name", ["alexnet-tiny", "gpt-tiny", "rnnlm-tiny"])
def test_dropout_does_not_depend_on_tiles(name: str) -> None:
    work = zoo.load(name, device="cpu", dtype=torch.float64)
    graph = capture(work.model.train(), work.batch, work.loss)
    assert any(op.kind == "dropout" for op in graph.ops)
    tensors = {
        **state(work.model),
        **dict(zip(graph.inputs, work.batch, strict=True)),
    }
    whole = tiled_loss(graph, tensors, 1, None)
    assert tiled_loss(graph, tensors, 1, 0) == pytest.approx(whole, rel=1e-11)
    assert tiled_loss(graph, tensors, 1, 1) == pytest.approx(whole, rel=1e-11)
    assert tiled_loss(graph, tensors, 2, None) != pytest.approx(whole, rel=1e-6)


def test_dropout_keeps_the_right_share() -> None:
    x = torch.ones(200, 500, dtype=torch.float64)
    for p in (0.1, 0.5, 0.9):
        graph = capture(torch.nn.Dropout(p), [x])
        masks = [interpret(graph, {"input": x}, seed=s)[graph.outputs[0]] for s in range(3)]
        for mask in masks:
            kept = (mask != 0).double()
            assert kept.mean().item() == pytest.approx(1 - p, abs=0.01)
            assert kept.mean(0).std().item() == pytest.approx((p * (1 - p) / 200) ** 0.5, rel=0.2)
            assert kept.mean(1).std().item() == pytest.approx((p * (1 - p) / 500) ** 0.5, rel=0.2)
        together = ((masks[0] != 0) & (masks[1] != 0)).double().mean().item()
        assert together == pytest.approx((1 - p) ** 2, abs=0.01)
