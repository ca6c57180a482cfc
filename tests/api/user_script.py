"""A script of a user: a test runs it, and another checks it with mypy --strict (test_user_script.py)."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import raddle


class Net(nn.Module):
    def __init__(self, features: int = 12) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 8 * 8, features)
        self.head = nn.Linear(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.relu(self.fc(F.relu(self.conv(x)).flatten(1))))
        return y


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    scores = model(batch["image"])
    right = (scores.argmax(1) == batch["label"]).float().mean()
    return F.cross_entropy(scores, batch["label"]), {"accuracy": right}


def example(samples: int = 8) -> dict[str, Tensor]:
    return {"image": torch.randn(samples, 1, 8, 8), "label": torch.arange(samples) % 3}


def main(folder: str) -> None:
    model, batch = Net(), example()
    result: raddle.PlanResult = raddle.plan(
        model, batch, loss, cluster="p100:1x2", method="owt", pins={}, optimizer="adam"
    )
    step: float = result.step_ms
    fits: bool = result.fits
    explained: str = result.explain("fc")["op"]
    print(f"{step:.3f} ms, {fits}, {explained}")

    comparison = raddle.compare(model, batch, loss, cluster="p100:1x2", methods=["data", "owt"])
    best: raddle.PlanResult = comparison.best
    seconds: float = raddle.simulate(best, cluster=raddle.cluster("p100:2x1")).step_seconds
    print(comparison, seconds)

    result.save(f"{folder}/plan.json")
    loaded = raddle.load_plan(f"{folder}/plan.json", model=model, example=batch, loss=loss)
    holds: bool = raddle.verify(loaded, steps=1).holds
    raddle.report([loaded, best], f"{folder}/page.html", alternatives=0)
    raddle.report(comparison, f"{folder}/methods.html", alternatives=0)
    print(holds, loaded.plan.devices, loaded.graph.name)


def mistakes(model: nn.Module, batch: Tensor) -> None:
    """A type checker finds each of these: with mypy --strict, an ignore without an error is an error."""
    result = raddle.plan(model, batch, loss, cluster="p100:1x2")
    result.stepms  # type: ignore[attr-defined]  # noqa: B018
    result.plan.step_ms  # type: ignore[attr-defined]  # noqa: B018
    raddle.plan(model, batch, loss)  # type: ignore[call-arg]
    raddle.plan(model, batch, loss, "p100:1x2")  # type: ignore[call-arg]
    raddle.plan(model, batch, loss, cluster=2)  # type: ignore[arg-type]
    raddle.report(model, "page.html")  # type: ignore[arg-type]
    raddle.search(model)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(sys.argv[1])
