"""Trains a CNN on scikit-learn's digits with any of raddle's methods, or with a plan file.

A method (data: data parallelism; owt: one weird trick; spatial) makes a plan for as many devices as
torchrun starts ranks.

torchrun --nproc-per-node 2 examples/digits.py --method owt
torchrun --nproc-per-node 3 examples/digits.py --method spatial
torchrun --nproc-per-node 2 examples/digits.py --plan plan.json     (as --save wrote it)
"""

from __future__ import annotations

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import raddle


class Net(nn.Module):
    """Two convolutions with batch norm, and two linear layers, for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.fc1, self.fc2 = nn.Linear(32 * 4 * 4, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x[n 1 8 8]
        x = F.relu(self.bn1(self.conv1(x)))  # [n 16 8 8]
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)  # [n 32 4 4]
        return self.fc2(F.relu(self.fc1(x.flatten(1))))  # [n 10]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--method", default="data", help="data, owt, model, layerwise, spatial, ..."
    )
    parser.add_argument("--plan", help="a plan file instead")
    parser.add_argument("--save", help="write the plan to this file")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=96)
    options = parser.parse_args()
    torch.manual_seed(0)  # the same weights and the same order of samples on every rank

    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images))
    train, test = order[:1536], order[1536:]  # 16 batches of 96 samples; 261 samples to test with

    model, plan = Net(), options.plan
    loss = raddle.supervised(F.cross_entropy)
    example = images[: options.batch], labels[: options.batch]
    if plan is None:
        graph = raddle.capture(model, example, loss)
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        plan = raddle.search(
            graph,
            raddle.cluster(f"local:{ranks}"),
            options.method,
            bn="global",
            optimizer="momentum",
        )
        if options.save and os.environ.get("RANK", "0") == "0":
            from raddle.plans.plan_file import save

            save(plan, graph, options.save)

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    trainer = raddle.parallelize(model, sgd, loss=loss, example=example, plan=plan)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, options.epochs)
    for epoch in range(options.epochs):
        shuffled = train[torch.randperm(len(train))]
        for samples in shuffled.split(options.batch):
            result = trainer.step((images[samples], labels[samples]))
        schedule.step()
        scores = trainer.predict(images[test])
        right = (scores.argmax(1) == labels[test]).float().mean()
        if trainer.rank == 0:
            print(f"epoch {epoch}: loss {float(result):.4f}, {right:.1%} of the test digits right")
    trainer.close()


if __name__ == "__main__":
    main()
