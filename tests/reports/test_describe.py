"""`describe_model`: parameters and flops of captured models are the published numbers."""

from __future__ import annotations

import pytest

from raddle import zoo
from raddle.graph.capture import capture
from raddle.reports.model_summary import describe_model

# Parameters and multiply-adds of one image as torchvision lists them; GPT-2's count is its paper's model.
PUBLISHED = {
    "alexnet": (61_100_840, 0.71e9),
    "vgg16": (138_357_544, 15.47e9),
    "vgg19": (143_667_240, 19.63e9),
    "resnet50": (25_557_032, 4.09e9),
    "resnet101": (44_549_160, 7.80e9),
    "inception_v3": (27_161_264, 5.71e9),
    "gpt": (124_439_808, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    params, macs = PUBLISHED[name]
    work = zoo.load(name, batch=2)
    work.model.eval()  # Inception's figure is without its auxiliary head
    loss = None if name == "inception_v3" else work.loss
    described = describe_model(capture(work.model, work.batch if loss else work.batch[:-1], loss))
    assert described["params"] == params
    if macs is not None:
        assert described["flops_forward"] / 2 / 2 == pytest.approx(macs, rel=0.01)


def test_backward_is_twice_the_forward_but_for_the_input() -> None:
    work = zoo.load("vgg16", batch=2)
    described = describe_model(capture(work.model, work.batch, work.loss))
    first = described["layers"][0]
    assert first["name"] == "features.0"
    assert described["flops_backward"] == 2 * described["flops_forward"] - first["flops"]
    assert sum(layer["params"] for layer in described["layers"]) == described["params"]
