"""Values that depend on constants alone are evaluated: attention recognises computed masks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import raddle
from raddle.graph.interpret import interpret

Mask = Callable[[Tensor], Tensor]


class Attention(nn.Module):
    """Self-attention with a mask that its forward computes."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask
        self.project = nn.Linear(4, 4)
        self.register_buffer("everywhere", torch.ones(6, 6, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(x).unsqueeze(1)
        mask = self.everywhere if self.mask is buffer else self.mask(x)
        return F.scaled_dot_product_attention(y, y, y, mask)


def causal(x: Tensor) -> Tensor:
    queries, keys = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])[None]
    return (keys <= queries).expand(x.shape[0], 1, -1, -1)


def packed(x: Tensor) -> Tensor:
    """As transformers does it: positions that rise by one belong to one sequence."""
    positions = torch.arange(x.shape[1]).expand(x.shape[0], -1)
    sequence = (torch.diff(positions, prepend=positions[:, :1] - 1) != 1).cumsum(-1)
    return causal(x) & (sequence[:, None, :, None] == sequence[:, None, None, :])


def hides_nothing(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)


def window(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().triu(-2)


def of_the_input(x: Tensor) -> Tensor:
    return (x[:, None, :1, :1] > -9).expand(-1, 1, x.shape[1], x.shape[1])


def buffer(x: Tensor) -> Tensor:
    raise AssertionError("the module has a buffer")


@pytest.mark.parametrize(
    ("mask", "has_mask", "is_causal"),
    [
        (causal, False, True),
        (packed, False, True),
        (hides_nothing, False, False),
        (window, True, False),
        (of_the_input, True, False),
        (buffer, True, False),
    ],
)
def test_constant_masks_are_recognised(mask: Mask, has_mask: bool, is_causal: bool) -> None:
    torch.manual_seed(0)
    model, x = Attention(mask), torch.randn(3, 6, 4)
    graph = raddle.capture(model, [x])
    (attention,) = (op for op in graph.ops if op.kind == "attention")
    assert (len(attention.inputs) > 3, attention.attrs["causal"]) == (has_mask, is_causal)
    results = interpret(
        graph, {"x": x, **dict(model.named_parameters()), **dict(model.named_buffers())}
    )
    torch.testing.assert_close(results[graph.outputs[0]], model(x))


def test_a_mask_that_hides_nothing_leaves_no_operators() -> None:
    with_mask = raddle.capture(Attention(hides_nothing), [torch.randn(3, 6, 4)])
    assert not [op for op in with_mask.ops if op.kind in ("full", "arange")]
