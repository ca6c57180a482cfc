"""Makes example batches of random data: each function describes a kind of data and returns a maker.

A maker takes the number of samples and returns (inputs, targets). For example, images(3, 224, classes=1000)
returns a maker; called with 64, it returns images of shape (64, 3, 224, 224) and labels of shape (64,). A
maker creates tensors on the default device with the default generator, so that `load` alone chooses the
device and the seed.
"""

# n: sample, t: time step

from collections.abc import Callable

import torch
from torch import Tensor

Batch = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
BatchMaker = Callable[[int], Batch]


def vectors(width: int, classes: int) -> BatchMaker:
    """Returns a maker of vectors with one label each."""

    def make(n: int) -> Batch:
        return (torch.randn(n, width),), (torch.randint(classes, (n,)),)

    return make


def images(channels: int, side: int, classes: int) -> BatchMaker:
    """Returns a maker of square images, `side` pixels high and wide, with one label each."""

    def make(n: int) -> Batch:
        return (torch.randn(n, channels, side, side),), (torch.randint(classes, (n,)),)

    return make


def masked_images(channels: int, side: int, classes: int) -> BatchMaker:
    """Returns a maker of images with one label for each pixel (the mask)."""

    def make(n: int) -> Batch:
        return (torch.randn(n, channels, side, side),), (torch.randint(classes, (n, side, side)),)

    return make


def labelled_text(vocabulary: int, steps: int, classes: int) -> BatchMaker:
    """Returns a maker of sentences of `steps` tokens with one label each."""

    def make(n: int) -> Batch:
        return (torch.randint(vocabulary, (n, steps)),), (torch.randint(classes, (n,)),)

    return make


def text(vocabulary: int, steps: int) -> BatchMaker:
    """Returns a maker of sentences; the target of step t is the token at step t + 1."""

    def make(n: int) -> Batch:
        before, after = _shift_by_one(torch.randint(vocabulary, (n, steps + 1)))
        return (before,), (after,)

    return make


def translations(vocabulary: int, steps: int) -> BatchMaker:
    """Returns a maker of pairs of sentences; the targets are the next tokens of the second sentence."""

    def make(n: int) -> Batch:
        source = torch.randint(vocabulary, (n, steps))
        before, after = _shift_by_one(torch.randint(vocabulary, (n, steps + 1)))
        return (source, before), (after,)

    return make


def _shift_by_one(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the tokens without the last step, and without the first step."""
    # Contiguous copies: slices would share memory and have unusual strides.
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
