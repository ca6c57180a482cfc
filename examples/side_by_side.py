"""Plain PyTorch next to raddle: the same training loop.

Lines marked - are plain PyTorch only, + raddle only.

python examples/side_by_side.py                              plain, one process
torchrun --nproc-per-node 2 examples/side_by_side.py         raddle, two processes
"""

import os

import torch
from torch import nn
from torch.nn import functional as F

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
)
x, y = torch.randn(512, 64), torch.randint(8, (512,))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


if RANKS == 1:
    optimizer = sgd(model.parameters())  # -
else:
    import raddle  # +

    loss, batch = raddle.supervised(F.cross_entropy), (x[:64], y[:64])  # +
    graph = raddle.capture(model, batch, loss)  # +
    plan = raddle.search(graph, raddle.cluster(f"local:{RANKS}"), "owt")  # + or a plan.json
    trainer = raddle.parallelize(model, sgd, loss=loss, plan=plan, graph=graph)  # +

for step in range(40):
    first = 64 * (step % 8)  # index of the batch's first sample
    inputs, targets = x[first : first + 64], y[first : first + 64]
    if RANKS == 1:
        optimizer.zero_grad()  # -
        loss = F.cross_entropy(model(inputs), targets)  # -
        loss.backward()  # -
        optimizer.step()  # -
    else:
        loss = trainer.step((inputs, targets)).loss  # +
    if step % 8 == 7 and int(os.environ.get("RANK", "0")) == 0:
        print(f"step {step + 1}: loss {loss.item():.6f}")
