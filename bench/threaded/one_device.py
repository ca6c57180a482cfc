"""The baseline for collocated gradients: VGG-16 by layers on several ranks, rank 0 computes all gradients.

Every rank runs its layers forward and sends what their backward needs to rank 0, which has all weights,
computes all gradients and sends each rank its own. `torchrun --nproc-per-node N one_device.py BATCH STEPS`
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raddle import zoo

aten = torch.ops.aten


def layers_of(model: nn.Module) -> list[nn.Module]:
    leaves = [m for m in model.modules() if not list(m.children())]
    return [m for m in leaves if not isinstance(m, nn.Dropout | nn.AdaptiveAvgPool2d)]


def forward(layer: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and what the backward needs."""
    if isinstance(layer, nn.Conv2d):
        return aten.convolution(x, layer.weight, layer.bias, *_conv(layer)), [x]
    if isinstance(layer, nn.ReLU):
        y = torch.relu(x)
        return y, [y]
    if isinstance(layer, nn.MaxPool2d):
        y, places = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
        return y, [x, places]
    assert isinstance(layer, nn.Linear), layer
    x = x.flatten(1)
    return aten.addmm(layer.bias, x, layer.weight.t()), [x]


def backward(layer: nn.Module, g: Tensor, kept: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The gradient of the input, and those of weight and bias."""
    if isinstance(layer, nn.Conv2d):
        sizes = [layer.out_channels]
        gx, gw, gb = aten.convolution_backward(
            g, kept[0], layer.weight, sizes, *_conv(layer), [True, True, True]
        )
        return gx, [gw, gb]
    if isinstance(layer, nn.ReLU):
        return aten.threshold_backward(g.view_as(kept[0]), kept[0], 0), []
    if isinstance(layer, nn.MaxPool2d):
        x, places = kept
        g = g.view_as(places)
        return aten.max_pool2d_with_indices_backward(
            g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        ), []
    return g @ layer.weight, [g.t() @ kept[0], g.sum(0)]


def _conv(layer: nn.Conv2d) -> tuple[object, ...]:
    return list(layer.stride), list(layer.padding), list(layer.dilation), False, [0, 0], 1


def main(batch: int, steps: int) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    work = zoo.load("vgg16", batch=batch, device="cpu")
    layers = layers_of(work.model)
    cuts = json.loads(sys.argv[3])  # layers before each rank's last
    owner = [next(r for r in range(size) if at < cuts[r]) for at in range(len(layers))]
    x, y = work.inputs[0], work.targets[0]
    shapes: list[list[tuple[torch.Size, torch.dtype]]] = []
    with torch.no_grad():
        probe = x
        for layer in layers:
            probe, kept = forward(layer, probe)
            shapes.append([(t.shape, t.dtype) for t in kept])
        outs = []
        probe = x
        for layer in layers:
            probe, _ = forward(layer, probe)
            outs.append(probe.shape)
        times = []
        for _ in range(steps + 2):
            dist.barrier()
            begun = time.perf_counter()
            step(layers, owner, rank, x, y, shapes, outs)
            times.append(time.perf_counter() - begun)
    if rank == 0:
        print(json.dumps({"step_ms": 1e3 * statistics.median(times[2:])}))
    dist.destroy_process_group()


def step(layers, owner, rank, x, y, shapes, outs) -> None:  # type: ignore[no-untyped-def]
    kept_of: dict[int, list[Tensor]] = {}
    pending = []
    value = x
    for at, layer in enumerate(layers):
        if owner[at] == rank:
            if at and owner[at - 1] != rank:
                value = torch.empty(outs[at - 1])
                dist.recv(value, owner[at - 1])
            value, kept_of[at] = forward(layer, value)
            if at + 1 < len(layers) and owner[at + 1] != rank:
                pending.append((dist.isend(value.contiguous(), owner[at + 1]), value))
    if rank:
        for at in sorted(kept_of):
            for n, t in enumerate(kept_of[at]):
                pending.append((dist.isend(t.contiguous(), 0, tag=1 + 2 * at + n), t))
        last = owner[-1] == rank
        if last:
            pending.append((dist.isend(value, 0, tag=1000), value))
        for at, layer in enumerate(layers):
            if owner[at] == rank:
                for n, p in enumerate(layer.parameters()):
                    gradient = torch.empty_like(p)
                    dist.recv(gradient, 0, tag=2000 + 2 * at + n)
                    p -= 0.01 * gradient
        for work, _ in pending:
            work.wait()
        return
    waiting = []
    for at in range(len(layers)):
        if owner[at]:
            kept_of[at] = [torch.empty(s, dtype=d) for s, d in shapes[at]]
            for n, t in enumerate(kept_of[at]):
                waiting.append(dist.irecv(t, owner[at], tag=1 + 2 * at + n))
    if owner[-1]:
        value = torch.empty(outs[-1])
        dist.recv(value, owner[-1], tag=1000)
    for work in waiting:
        work.wait()
    g = (value.softmax(1) - nn.functional.one_hot(y, value.shape[1])) / len(y)
    for at in reversed(range(len(layers))):
        g, gradients = backward(layers[at], g, kept_of[at])
        for n, (p, gradient) in enumerate(zip(layers[at].parameters(), gradients, strict=True)):
            p -= 0.01 * gradient
            if owner[at]:
                sent = gradient.contiguous()
                pending.append((dist.isend(sent, owner[at], tag=2000 + 2 * at + n), sent))
    for work, _ in pending:
        work.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
