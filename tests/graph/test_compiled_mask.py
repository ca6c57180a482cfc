"""Masks of dropout that are compiled alone have the bits of masks that are not compiled."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.graph.ops.compiled_mask import CompiledMask
from raddle.graph.ops.random import drop, keep_mask, stream_of

PLACES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHAPE, BOX = (6, 5, 7), Box((2, 0, 1), (5, 5, 7))  # a tile of a larger tensor
P, SEED = 0.3, torch.tensor(7)


def mask(place: str = "cpu") -> CompiledMask:
    return CompiledMask(keep_mask(BOX, SHAPE, P, torch.device(place)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("place", PLACES)
def test_same_bits(place: str) -> None:
    compiled = mask(place)
    for stream in (stream_of(2), torch.tensor(stream_of(2), dtype=torch.int32), stream_of(3)):
        keep = compiled(SEED.to(place), stream)
        assert torch.equal(keep.cpu(), compiled.function(SEED, stream).cpu())
        assert 0 < keep.sum() < keep.numel()
    assert compiled.compiles


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dropout_and_its_gradient_are_the_same_on_a_gpu(place: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, up = torch.randn(2, *BOX.shape, dtype=dtype)

    def results(device: str) -> list[Tensor]:
        leaf = x.to(device).requires_grad_()
        dropped = drop(leaf, SEED.to(device), BOX, SHAPE, P, stream_of(2))
        (gradient,) = torch.autograd.grad(dropped, leaf, up.to(device))
        return [dropped.detach().cpu(), gradient.cpu()]

    kept = keep_mask(BOX, SHAPE, P, torch.device("cpu"))(SEED, stream_of(2))
    for actual, tensor in zip(results(place), (x, up), strict=True):
        torch.testing.assert_close(actual, tensor * kept * (1 / (1 - P)), rtol=0, atol=0)


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(function: object, **options: object) -> object:
        def fails(*arguments: object) -> None:
            raise RuntimeError("no compiler")

        return fails

    monkeypatch.setattr(torch, "compile", no_compiler)
    compiled = mask()
    assert torch.equal(compiled(SEED, 5), compiled.function(SEED, torch.tensor(5)))
    assert not compiled.compiles
