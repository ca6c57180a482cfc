"""U-Net: Ronneberger et al. 2015, "Convolutional networks for biomedical image segmentation".

Differs from the paper: the convolutions are padded, so that the mask has the size of the image and no skip
connection is cropped; each convolution has a batch norm.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn


class UNet(nn.Module):
    """An encoder with `widths` channels per level, and a decoder with a skip connection at each level."""

    def __init__(
        self,
        *,
        widths: tuple[int, ...] = (64, 128, 256, 512, 1024),
        channels: int = 3,
        classes: int = 2,
    ) -> None:
        super().__init__()
        down_widths = list(pairwise((channels, *widths)))
        self.down = nn.ModuleList(_two_convolutions(i, o) for i, o in down_widths)
        self.pool = nn.MaxPool2d(2)
        up_widths = list(pairwise(reversed(widths)))
        # Each doubles height and width.
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(i, o, kernel_size=2, stride=2) for i, o in up_widths
        )
        self.up = nn.ModuleList(_two_convolutions(2 * o, o) for _, o in up_widths)
        self.out = nn.Conv2d(widths[0], classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level in self.down[:-1]:
            skips.append(level(x))
            x = self.pool(skips[-1])
        x = self.down[-1](x)
        for grow, level in zip(self.grow, self.up, strict=True):
            x = level(torch.cat((skips.pop(), grow(x)), dim=1))
        logits: Tensor = self.out(x)  # one logit per class for each pixel
        return logits


def _two_convolutions(channels: int, out: int) -> nn.Sequential:
    """Returns two 3x3 convolutions, from `channels` to `out` channels; each has a batch norm and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
        nn.Conv2d(out, out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    )
