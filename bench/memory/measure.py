"""Measures the peak memory of training steps in plain PyTorch on a GPU; needs only torch and raddle's zoo.

python bench/memory/measure.py > bench/memory/measured.json
"""

from __future__ import annotations

import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "src"))

from raddle import zoo

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
}


def peak(name: str, batch: int, optimizer: str) -> int:
    """Return the peak bytes of PyTorch's allocator over three training steps."""
    torch.cuda.empty_cache()
    work = zoo.load(name, batch=batch, device="cuda")
    opt = OPTIMIZERS[optimizer](work.model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        opt.zero_grad(set_to_none=True)
        work.loss(work.model, work.batch).backward()
        opt.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def main() -> None:
    """Measure all cases and print them as JSON."""
    torch.backends.cudnn.benchmark = False
    rows = []
    for name, optimizer, batches in [
        ("vgg16", "sgd", (32, 64, 128, 256, 512)),
        ("vgg16", "adam", (32, 512)),
        ("resnet50", "sgd", (32, 128)),
        ("unet", "sgd", (8, 32)),
        ("gpt", "adam", (4, 16)),
    ]:
        for batch in batches:
            peak_bytes = peak(name, batch, optimizer)
            rows.append(
                {"model": name, "batch": batch, "optimizer": optimizer, "bytes": peak_bytes}
            )
    device = torch.cuda.get_device_name()
    json.dump({"device": device, "torch": torch.__version__, "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
