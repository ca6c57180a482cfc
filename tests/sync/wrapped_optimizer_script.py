"""A training script as users write it; its first argument says how rank 1 ends."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

from raddle import sync

how, kind = sys.argv[1:3]
sync.init()
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 2))
sync.broadcast(model)
optimizer = sync.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, sync=kind, stall=30)
try:
    for step in range(40):
        if sync.rank() == 1 and step == 5:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raises":
                raise KeyError("no such sample")
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
except RuntimeError as error:
    print(f"rank {sync.rank()} hears: {error}", flush=True)
    raise
# No close: the end of the process has to do it.
total = sum(t.double().sum() for t in model.state_dict().values())  # waits for all
print(f"rank {sync.rank()} ends with {float(total):.12f}", flush=True)
