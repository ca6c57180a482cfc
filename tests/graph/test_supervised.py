"""One contract of losses, loss(model, batch): what is captured, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import raddle
from raddle.errors import InputError
from raddle.graph.interpret import interpret


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.first(x) + self.second(other)


X, OTHER, Y = torch.randn(6, 4), torch.randn(6, 2), torch.randint(3, (6,))


def with_metrics(model: nn.Module, batch: Any) -> Any:
    scores = model(batch["x"] * batch["scale"], other=batch["more"][0])
    right = (scores.argmax(1) == batch["y"]).float().mean()
    return F.cross_entropy(scores, batch["y"]), {"accuracy": right, "norm": scores.square().mean()}


def test_a_loss_with_metrics_on_a_nested_batch() -> None:
    model = Mixed()
    batch = {"x": X, "more": [OTHER], "y": Y, "scale": 0.5}
    graph = raddle.capture(model, batch, with_metrics)
    assert graph.inputs == ("x", "more.0", "y")
    values = dict(zip(graph.inputs, (X, OTHER, Y), strict=True))
    results = interpret(graph, {**dict(model.named_parameters()), **values})
    loss, _ = with_metrics(model, batch)
    torch.testing.assert_close(results[graph.loss], loss)
    assert set(graph.metrics) == {"accuracy", "norm"}
    half = graph.for_batch(3)
    assert (half.batch, set(half.metrics)) == (3, {"accuracy", "norm"})
    assert (
        graph.fingerprint()
        != raddle.capture(model, batch, lambda m, b: with_metrics(m, b)[0]).fingerprint()
    )


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        ((X, OTHER, Y), ("x", "other", "target")),
        ([X, OTHER, Y], ("x", "other", "target")),
        ({"x": X, "labels": Y, "other": OTHER}, ("x", "labels", "other")),
        (({"x": X, "other": OTHER}, Y), ("x", "other", "target")),
    ],
)
def test_supervised_takes_what_loaders_give(batch: Any, names: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model, loss = Mixed(), raddle.supervised(F.cross_entropy)
    assert raddle.capture(model, batch, loss).inputs == names
    torch.testing.assert_close(loss(model, batch), F.cross_entropy(model(X, OTHER), Y))


def test_a_loss_of_ones_own_names_positions() -> None:
    graph = raddle.capture(Mixed(), (X, OTHER, Y), lambda m, b: F.cross_entropy(m(*b[:2]), b[2]))
    assert graph.inputs == ("batch.0", "batch.1", "batch.2")


@pytest.mark.parametrize(
    ("batch", "loss", "sentence"),
    [
        (
            (X, OTHER),
            lambda m, b: m(*b),
            "the loss is a tensor of shape .6, 3., torch.float32: return",
        ),
        (
            (X, OTHER),
            lambda m, b: (m(*b).mean(), {"a": m(*b)}),
            "metric 'a' is a tensor of shape .6, 3",
        ),
        ((X, OTHER), lambda m, b: (m(*b).mean(), {"a": 1.0}), "the metric 'a' is a float"),
        (X, raddle.supervised(F.mse_loss), "with 1 parts has no input beside 1 targets"),
        (
            {"x": X, "other": OTHER},
            raddle.supervised(F.mse_loss),
            "has 0 targets, not 1: call a target",
        ),
        ((X, object()), lambda m, b: m(X), "'batch.1' is a object: a batch consists of tensors"),
        ((X, OTHER), F.mse_loss, "cannot be captured"),
        ((X, OTHER, Y), "ce", "the loss is a str: give loss"),
    ],
)
def test_a_wrong_loss_is_one_sentence(batch: Any, loss: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        raddle.capture(Mixed(), batch, loss)
