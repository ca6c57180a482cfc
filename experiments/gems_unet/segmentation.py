"""Draws a small segmentation task: scikit-learn's digits, enlarged, on noisy canvases with blocks.

The blocks are filled rectangles that distract. The mask marks the ink of the digits. Everything is drawn
from a seed, so every rank can make the same data.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray
INK = 8  # a pixel of a digit with this value or more (of 16) is in the mask
DIGITS, BLOCKS = 5, 3  # how many are on a canvas


@lru_cache(maxsize=1)
def digits() -> Array:
    """Returns 1797 images of 8 x 8 pixels, with values from 0 to 16."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    return np.asarray(load_digits().images)


def batch(count: int, side: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the canvases (n, 3, h, w) of floats, and masks (n, h, w) of 0 and 1."""
    rng = np.random.default_rng(seed)
    canvases = [canvas(rng, side) for _ in range(count)]
    images = np.stack([image for image, _ in canvases]).astype(np.float32)
    masks = np.stack([mask for _, mask in canvases]).astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(masks)


def canvas(rng: np.random.Generator, side: int) -> tuple[Array, Array]:
    """Returns an image (3, h, w) and its mask (h, w)."""
    # ink: a digit or block (h, w), with values from 0 to 16
    image, mask = rng.normal(0.0, 0.3, (3, side, side)), np.zeros((side, side), np.int64)
    for number in range(DIGITS + BLOCKS):
        ink = _digit(rng, side) if number >= BLOCKS else _block(rng, side)
        h, w = ink.shape
        y, x = rng.integers(0, side - h + 1), rng.integers(0, side - w + 1)
        colour = rng.uniform(0.5, 1.5, (3, 1, 1))
        image[:, y : y + h, x : x + w] += colour * ink / 16
        # blocks are added, so they hide no digit; they are never part of the mask
        mask[y : y + h, x : x + w] |= (ink >= INK) & (number >= BLOCKS)
    return image, mask


def _digit(rng: np.random.Generator, side: int) -> Array:
    """Returns a random digit, enlarged by a random factor."""
    scale = int(rng.integers(1, max(2, side // 32) + 1))
    chosen = digits()[rng.integers(len(digits()))]
    return np.kron(chosen, np.ones((scale, scale)))


def _block(rng: np.random.Generator, side: int) -> Array:
    """Returns a full rectangle of random size."""
    h, w = rng.integers(side // 16, side // 4, 2)
    return np.full((h, w), 16.0)
