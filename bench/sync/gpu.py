"""Compares weights after 20 steps of `raddle.sync` and of DDP, on two ranks that share a GPU.

    torchrun --standalone --nproc-per-node 2 bench/sync/gpu.py [KIND ...]

A KIND is a sync kind, as "p3:collective". NCCL does not accept two ranks on one card, so sums go over gloo.
On a machine with a card for each rank, RADDLE_BACKEND=nccl sums over NCCL.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before torch: sums in one order

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from raddle import sync

STEPS = 20
KINDS = (
    "allreduce", "allreduce:bf16", "sharded", "ps", "ps:one", "ps:sliced,greedy", "ps:slice=5000",
    "p3", "p3:slice=5000", "p3:collective", "p3:collective,slice=5000",
)  # fmt: skip
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
}


def model(place: torch.device) -> nn.Module:
    """Return the network, with the same weights in each call."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 4),
        nn.ReLU(), nn.Flatten(), nn.Linear(64 * 25, 257), nn.ReLU(), nn.Linear(257, 10),
    ).to(place)  # fmt: skip


def train(net: nn.Module, optimizer: torch.optim.Optimizer, place: torch.device) -> None:
    """Train STEPS steps on batches that depend only on the step and the rank."""
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(16, 3, 24, 24, generator=generator).to(place)
        y = torch.randint(10, (16,), generator=generator).to(place)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def main(kinds: list[str]) -> int:
    """Compare all kinds with all optimizers; return the number of comparisons that fail."""
    torch.use_deterministic_algorithms(True)
    backend = os.environ.get("RADDLE_BACKEND", "gloo")
    sync.init(backend=backend)
    shared = backend == "gloo"
    place = torch.device("cuda", 0 if shared else int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(place)
    wrong = 0
    for name, optimizer_of in OPTIMIZERS.items():
        expected = model(place)
        ddp = DDP(expected, broadcast_buffers=False)
        train(ddp, optimizer_of(expected.parameters()), place)
        for kind in kinds:
            net = model(place)
            optimizer = sync.Optimizer(optimizer_of(net.parameters()), net, sync=kind)
            train(net, optimizer, place)
            optimizer.synchronize()
            pairs = zip(net.parameters(), expected.parameters(), strict=True)
            deviation = max(float((a - b).detach().abs().max()) for a, b in pairs)
            optimizer.close()
            # Gradients that are compressed to 16 bits must differ, but not by much.
            fine = deviation == 0 if "16" not in kind else 0 < deviation < 0.05
            wrong += not fine
            if dist.get_rank() == 0:
                verdict = "the same bits" if not deviation else f"{deviation:.1e} away"
                print(f"{name:5} {kind:18} {verdict}{'' if fine else '  WRONG'}", flush=True)
    sync.close()
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(KINDS)))
