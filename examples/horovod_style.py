"""Plain PyTorch on scikit-learn's digits, plus five numbered lines that train it on many processes.

It uses `raddle.sync` alone, without a plan: each process has the whole model and a part of each batch, as
with Horovod or DDP.

torchrun --nproc-per-node 2 examples/horovod_style.py
torchrun --nproc-per-node 2 examples/horovod_style.py --sync ps:ssp=2
torchrun --nproc-per-node 4 examples/horovod_style.py --sync allreduce --timeline trace.json
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from raddle import sync

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--sync",
    default="p3",
    help="allreduce, allreduce:bf16, sharded, ps, ps:ssp=2, p3, p3:collective",
)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--timeline", default="", help="a file for chrome://tracing or ui.perfetto.dev")
options = parser.parse_args()

sync.init(timeline=options.timeline)  # 1: joins torchrun's job
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)  # [n 1 8 8]
labels = torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
train, test = order[:1536], order[1536:]

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
)  # fmt: skip
sync.broadcast(model)  # 2: all begin with the weights of rank 0

optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = sync.Optimizer(optimizer, model, sync=options.sync)  # 3: averages gradients
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

# The same order on all ranks; each rank takes its part of a batch.
shuffle = torch.Generator().manual_seed(1)
for epoch in range(options.epochs):
    mixed = train[torch.randperm(len(train), generator=shuffle)]
    for samples in mixed.split(96):
        part = samples.chunk(sync.size())[sync.rank()]  # 4: a part of the batch
        loss = F.cross_entropy(model(images[part]), labels[part])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).float().mean()
    if sync.rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}, {right:.1%} of the test digits right")

if sync.rank() == 0:
    report = optimizer.report()
    print(
        f"{options.sync}: {report['bytes'] / 1e6:.1f} MB in {report['messages']} messages of rank 0"
    )
sync.close()  # 5: waits for outstanding messages and leaves
