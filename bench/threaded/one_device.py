"""Times the baseline for collocated gradients: VGG-16 by layers on several ranks, all gradients on rank 0.

Every rank runs its layers forward and sends the tensors that their backward needs to rank 0. Rank 0 has all
weights; it computes all gradients and sends each rank the gradients of its layers. With collocated
gradients, each rank would compute them itself.

torchrun --nproc-per-node N one_device.py BATCH STEPS CUTS

CUTS is a JSON list: rank r has the layers before number CUTS[r] that earlier ranks do not have.
"""

# at: the number of a layer, n: the number of a saved tensor or a parameter of a layer, g: a gradient

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
    """Return the layers of VGG in order, without dropout and the adaptive pooling."""
    leaves = [m for m in model.modules() if not list(m.children())]
    return [m for m in leaves if not isinstance(m, nn.Dropout | nn.AdaptiveAvgPool2d)]


def forward(layer: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the output of a layer, and the tensors that its backward needs."""
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


def backward(layer: nn.Module, g: Tensor, saved: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return the gradient of a layer's input, and those of its weight and bias.

    g: the gradient of its output; saved: the tensors that `forward` returned for the backward.
    """
    if isinstance(layer, nn.Conv2d):
        sizes = [layer.out_channels]
        gx, gw, gb = aten.convolution_backward(
            g, saved[0], layer.weight, sizes, *_conv(layer), [True, True, True]
        )
        return gx, [gw, gb]
    if isinstance(layer, nn.ReLU):
        return aten.threshold_backward(g.view_as(saved[0]), saved[0], 0), []
    if isinstance(layer, nn.MaxPool2d):
        x, places = saved
        g = g.view_as(places)
        return aten.max_pool2d_with_indices_backward(
            g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        ), []
    return g @ layer.weight, [g.t() @ saved[0], g.sum(0)]


def _conv(layer: nn.Conv2d) -> tuple[object, ...]:
    """Return the settings of a convolution, as the aten calls take them."""
    return list(layer.stride), list(layer.padding), list(layer.dilation), False, [0, 0], 1


def main(batch: int, steps: int) -> None:
    """Train some steps; rank 0 prints the median time of a step."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    work = zoo.load("vgg16", batch=batch, device="cpu")
    layers = layers_of(work.model)
    cuts = json.loads(sys.argv[3])
    owner = [next(r for r in range(size) if at < cuts[r]) for at in range(len(layers))]  # by layer
    x, y = work.batch[0], work.batch[-1]
    shapes: list[list[tuple[torch.Size, torch.dtype]]] = []  # by layer: of its saved tensors
    with torch.no_grad():
        value = x
        for layer in layers:
            value, saved = forward(layer, value)
            shapes.append([(t.shape, t.dtype) for t in saved])
        outs = []  # by layer: the shape of its output
        value = x
        for layer in layers:
            value, _ = forward(layer, value)
            outs.append(value.shape)
        times = []
        for _ in range(steps + 2):  # the first two are a warm-up
            dist.barrier()
            start = time.perf_counter()
            step(layers, owner, rank, x, y, shapes, outs)
            times.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps({"step_ms": 1e3 * statistics.median(times[2:])}))
    dist.destroy_process_group()


def step(layers, owner, rank, x, y, shapes, outs) -> None:  # type: ignore[no-untyped-def]
    """Run one training step on this rank; the arguments are explained in `main`.

    Tags of messages: 1 + 2 * at + n for saved tensors, 1000 for the last output, 2000 + 2 * at + n for
    gradients.
    """
    saved_of: dict[int, list[Tensor]] = {}  # by layer
    pending = []  # sends that have not ended, with their tensors, which must live as long
    value = x
    for at, layer in enumerate(layers):
        if owner[at] == rank:
            if at and owner[at - 1] != rank:
                value = torch.empty(outs[at - 1])
                dist.recv(value, owner[at - 1])
            value, saved_of[at] = forward(layer, value)
            if at + 1 < len(layers) and owner[at + 1] != rank:
                pending.append((dist.isend(value.contiguous(), owner[at + 1]), value))
    if rank:
        for at in sorted(saved_of):
            for n, t in enumerate(saved_of[at]):
                pending.append((dist.isend(t.contiguous(), 0, tag=1 + 2 * at + n), t))
        last = owner[-1] == rank
        if last:
            pending.append((dist.isend(value, 0, tag=1000), value))
        for at, layer in enumerate(layers):
            if owner[at] == rank:
                for n, p in enumerate(layer.parameters()):
                    gradient = torch.empty_like(p)
                    dist.recv(gradient, 0, tag=2000 + 2 * at + n)
                    p -= 0.01 * gradient  # SGD with the learning rate 0.01
        for work, _ in pending:
            work.wait()
        return
    # Rank 0: receive all saved tensors and the output, then run the backward of all layers.
    waiting = []
    for at in range(len(layers)):
        if owner[at]:
            saved_of[at] = [torch.empty(s, dtype=d) for s, d in shapes[at]]
            for n, t in enumerate(saved_of[at]):
                waiting.append(dist.irecv(t, owner[at], tag=1 + 2 * at + n))
    if owner[-1]:
        value = torch.empty(outs[-1])
        dist.recv(value, owner[-1], tag=1000)
    for work in waiting:
        work.wait()
    # The gradient of the cross entropy.
    g = (value.softmax(1) - nn.functional.one_hot(y, value.shape[1])) / len(y)
    for at in reversed(range(len(layers))):
        g, gradients = backward(layers[at], g, saved_of[at])
        for n, (p, gradient) in enumerate(zip(layers[at].parameters(), gradients, strict=True)):
            p -= 0.01 * gradient
            if owner[at]:
                sent = gradient.contiguous()
                pending.append((dist.isend(sent, owner[at], tag=2000 + 2 * at + n), sent))
    for work, _ in pending:
        work.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
