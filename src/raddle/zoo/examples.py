"""Example batches: each function here describes a kind of data and returns a maker of random batches.

A maker takes the number of samples and returns (inputs, targets). It creates tensors on the default device
with the default generator, so that `load` alone chooses the device and the seed.
"""

# n: sample, t: time step

from collections.abc import Callable

import torch
from torch import Tensor

Batch = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
BatchMaker = Callable[[int], Batch]


def vectors(width: int, classes: int) -> BatchMaker:
    """Vectors with one label each."""

    def make(n: int) -> Batch:
        return (torch.randn(n, width),), (torch.randint(classes, (n,)),)

    return make


def images(channels: int, side: int, classes: int) -> BatchMaker:
    """Square images, `side` pixels high and wide, with one label each."""

    def make(n: int) -> Batch:
        return (torch.randn(n, channels, side, side),), (torch.randint(classes, (n,)),)

    return make


def masked_images(channels: int, side: int, classes: int) -> BatchMaker:
    """Images with one label for each pixel (the mask)."""

    def make(n: int) -> Batch:
        return (torch.randn(n, channels, side, side),), (torch.randint(classes, (n, side, side)),)

    return make


def labelled_text(vocabulary: int, steps: int, classes: int) -> BatchMaker:
    """Sentences of `steps` tokens with one label each."""

    def make(n: int) -> Batch:
        return (torch.randint(vocabulary, (n, steps)),), (torch.randint(classes, (n,)),)

    return make


def text(vocabulary: int, steps: int) -> BatchMaker:
    """Sentences; the target of step t is the token at step t + 1."""

    def make(n: int) -> Batch:
        before, after = _shift_by_one(torch.randint(vocabulary, (n, steps + 1)))
        return (before,), (after,)

    return make


def translations(vocabulary: int, steps: int) -> BatchMaker:
    """Pairs of sentences; the decoder reads the second one and predicts its next token at each step."""

    def make(n: int) -> Batch:
        source = torch.randint(vocabulary, (n, steps))
        before, after = _shift_by_one(torch.randint(vocabulary, (n, steps + 1)))
        return (source, before), (after,)

    return make


def _shift_by_one(tokens: Tensor) -> tuple[Tensor, Tensor]:
    # Contiguous copies: slices would share memory and have unusual strides.
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
