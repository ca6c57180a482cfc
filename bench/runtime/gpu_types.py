"""Checks plans on a GPU against the plain module: complex values, dropout and resuming from a checkpoint.

python bench/runtime/gpu_types.py    (one device, no torch.distributed)
torchrun --standalone --nproc-per-node 2 bench/runtime/gpu_types.py    (two ranks on one card, over gloo)
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import raddle
from raddle.graph.capture import capture
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
STEPS = 4

# Functions of a real tensor v that compute with complex numbers in between.
FUNCTIONS = {
    "fft": lambda v: torch.fft.fft(v).real,
    "rfft": lambda v: torch.fft.irfft(torch.fft.rfft(v) * 2),
    "rotary": lambda v: torch.view_as_real(torch.view_as_complex(v.reshape(-1, 4, 2)) * (1 + 2j)),
    "ihfft": lambda v: torch.fft.ihfft(v).abs(),  # torch marks the result as conjugated
}


class Through(nn.Module):
    """A linear layer, and then a function that computes with complex numbers (FUNCTIONS)."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(self.first(x)).square().mean()
        return result


class Dropping(nn.Module):
    """Two linear layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.dropout(torch.relu(self.first(x)), 0.5, True)).square().mean()


def train(model: nn.Module, x: Tensor) -> Any:
    """Return a trainer of a copy of the model; operator i is on rank i % RANKS, so all values are sent."""
    graph = capture(model, [x])
    tiles = {
        op.name: Grid(tuple((0, d.size) for d in op.space.dims), (number % RANKS,))
        for number, op in enumerate(graph.ops)
    }
    settings: dict[str, Any] = {"backend": "gloo"} if RANKS > 1 else {}
    return raddle.parallelize(
        copy.deepcopy(model),
        sgd,
        plan=Plan(tiles, RANKS, optimizer="momentum"),
        graph=graph,
        device="cuda:0",
        **settings,
    )


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def deviation(model: nn.Module, x: Tensor) -> float:
    """Return the largest relative deviation of a parameter from the plain module's after STEPS steps."""
    trainer = train(model, x)
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        trainer.step((x,))
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
    state = trainer.state_dict()
    trainer.close()
    return max(
        float((state[name] - p.detach().cpu()).norm() / p.detach().norm().cpu())
        for name, p in model.named_parameters()
    )


def resumes_alike(x: Tensor) -> bool:
    """Return whether a run that is saved and loaded half-way equals an uninterrupted one, bit by bit."""
    model = Dropping().to(x)
    uninterrupted, first = train(model, x), train(model, x)
    for _ in range(2):
        uninterrupted.step((x,))
        first.step((x,))
    saved = first.state_dict(), first.optimizer_state_dict()
    first.close()
    second = train(model, x)
    second.load_state_dict(saved[0])
    second.load_optimizer_state_dict(saved[1])
    same = all(float(uninterrupted.step((x,))) == float(second.step((x,))) for _ in range(STEPS))
    states = uninterrupted.state_dict(), second.state_dict()
    uninterrupted.close()
    second.close()
    return same and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def main() -> None:
    """Run all checks; rank 0 prints a line for each."""
    if RANKS > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(4, 8, dtype=torch.float64, device="cuda")
    deviations = {
        name: deviation(Through(function).to(x), x) for name, function in FUNCTIONS.items()
    }
    alike = resumes_alike(x)
    if os.environ.get("RANK", "0") == "0":
        for name, worst in deviations.items():
            print(
                f"{RANKS} rank(s) {name:8} worst deviation {worst:.1e}",
                "ok" if worst < 1e-9 else "WRONG",  # the computation is in float64
            )
        print(f"{RANKS} rank(s) resumed with dropout:", "the same bits" if alike else "DIFFERS")


if __name__ == "__main__":
    main()
