"""Inception v3: Szegedy et al. 2016, "Rethinking the Inception architecture for computer vision".

Layers and parameter names are torchvision's, so that its weights load. All numbers of channels are divided
by `shrink`, which is 1 in the original network: w64 is 64 channels divided by `shrink`. Blocks A to E are
torchvision's InceptionA to InceptionE.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Inception3(nn.Module):
    """Inception v3 as a whole. Its blocks run in the order in which they are registered.

    The output is (logits, auxiliary logits) in training, else only the logits.
    """

    def __init__(
        self,
        *,
        shrink: int = 1,
        # channels of the pooling branch of each block A
        pool_channels: tuple[int, ...] = (32, 64, 64),
        # inner channels of the 7x7 branches of each block C
        inner_channels: tuple[int, ...] = (128, 160, 160, 192),
        e_blocks: int = 2,  # number of blocks E
        # of the auxiliary head: window and stride of its pooling, kernel size of a convolution
        auxiliary: tuple[int, int, int] = (5, 3, 5),
        classes: int = 1000,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        w32, w64, w80, w192 = (c // shrink for c in (32, 64, 80, 192))
        self.Conv2d_1a_3x3 = Convolution(3, w32, 3, stride=2)
        self.Conv2d_2a_3x3 = Convolution(w32, w32, 3)
        self.Conv2d_2b_3x3 = Convolution(w32, w64, 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(kernel_size=3, stride=2)
        self.Conv2d_3b_1x1 = Convolution(w64, w80, 1)
        self.Conv2d_4a_3x3 = Convolution(w80, w192, 3)
        self.maxpool2 = nn.MaxPool2d(kernel_size=3, stride=2)

        channels = w192
        for letter, pool in zip("bcd", pool_channels, strict=False):
            channels = self._append(f"Mixed_5{letter}", BlockA(channels, pool // shrink, shrink))
        channels = self._append("Mixed_6a", BlockB(channels, shrink))
        for letter, inner in zip("bcde", inner_channels, strict=False):
            channels = self._append(f"Mixed_6{letter}", BlockC(channels, inner // shrink, shrink))
        self.AuxLogits = AuxiliaryHead(channels, classes, shrink, *auxiliary)
        channels = self._append("Mixed_7a", BlockD(channels, shrink))
        for letter in "bc"[:e_blocks]:
            channels = self._append(f"Mixed_7{letter}", BlockE(channels, shrink))

        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self._run(x, "Conv2d", "maxpool")  # 299 x 299 -> 35 x 35
        x = self._run(x, "Mixed_5", "Mixed_6")  # 17 x 17
        auxiliary = self.AuxLogits(x) if self.training else None
        x = self._run(x, "Mixed_7")  # 8 x 8
        x = self.dropout(self.avgpool(x)).flatten(1)
        logits: Tensor = self.fc(x)
        return logits if auxiliary is None else (logits, auxiliary)

    def _append(self, name: str, block: "InceptionBlock") -> int:
        """Registers a block; returns the number of its output channels."""
        self.add_module(name, block)
        return block.channels

    def _run(self, x: Tensor, *prefixes: str) -> Tensor:
        """Passes x through the blocks whose names have one of these prefixes; returns the last output."""
        for name, block in self.named_children():
            if name.startswith(prefixes):
                x = block(x)
        return x


class Convolution(nn.Module):
    """Convolution, batch norm and ReLU."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class InceptionBlock(nn.Module):
    """Parallel branches whose outputs are concatenated; `channels` is the number of output channels."""

    channels: int


class BlockA(InceptionBlock):
    """Branches with one 5x5 and with two 3x3 convolutions, at 35 x 35 pixels.

    pool: output channels of the pooling branch.
    """

    def __init__(self, channels: int, pool: int, shrink: int) -> None:
        super().__init__()
        w48, w64, w96 = (c // shrink for c in (48, 64, 96))
        self.channels = w64 + w64 + w96 + pool
        self.branch1x1 = Convolution(channels, w64, 1)
        self.branch5x5_1 = Convolution(channels, w48, 1)
        self.branch5x5_2 = Convolution(w48, w64, 5, padding=2)
        self.branch3x3dbl_1 = Convolution(channels, w64, 1)
        self.branch3x3dbl_2 = Convolution(w64, w96, 3, padding=1)
        self.branch3x3dbl_3 = Convolution(w96, w96, 3, padding=1)
        self.branch_pool = Convolution(channels, pool, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.branch1x1(x)
        five = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        pool = self.branch_pool(_average(x))
        return torch.cat((one, five, double, pool), dim=1)


class BlockB(InceptionBlock):
    """Reduces 35 x 35 to 17 x 17 pixels."""

    def __init__(self, channels: int, shrink: int) -> None:
        super().__init__()
        w64, w96, w384 = (c // shrink for c in (64, 96, 384))
        self.channels = w384 + w96 + channels
        self.branch3x3 = Convolution(channels, w384, 3, stride=2)
        self.branch3x3dbl_1 = Convolution(channels, w64, 1)
        self.branch3x3dbl_2 = Convolution(w64, w96, 3, padding=1)
        self.branch3x3dbl_3 = Convolution(w96, w96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        three = self.branch3x3(x)
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        pool = F.max_pool2d(x, kernel_size=3, stride=2)
        return torch.cat((three, double, pool), dim=1)


class BlockC(InceptionBlock):
    """7x7 convolutions, factorised into rows (1x7) and columns (7x1), at 17 x 17 pixels."""

    def __init__(self, channels: int, inner: int, shrink: int) -> None:
        super().__init__()
        w192 = 192 // shrink
        self.channels = 4 * w192
        self.branch1x1 = Convolution(channels, w192, 1)
        self.branch7x7_1 = Convolution(channels, inner, 1)
        self.branch7x7_2 = Convolution(inner, inner, (1, 7), padding=(0, 3))
        self.branch7x7_3 = Convolution(inner, w192, (7, 1), padding=(3, 0))
        self.branch7x7dbl_1 = Convolution(channels, inner, 1)
        self.branch7x7dbl_2 = Convolution(inner, inner, (7, 1), padding=(3, 0))
        self.branch7x7dbl_3 = Convolution(inner, inner, (1, 7), padding=(0, 3))
        self.branch7x7dbl_4 = Convolution(inner, inner, (7, 1), padding=(3, 0))
        self.branch7x7dbl_5 = Convolution(inner, w192, (1, 7), padding=(0, 3))
        self.branch_pool = Convolution(channels, w192, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.branch1x1(x)
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        pool = self.branch_pool(_average(x))
        return torch.cat((one, seven, double, pool), dim=1)


class BlockD(InceptionBlock):
    """Reduces 17 x 17 to 8 x 8 pixels."""

    def __init__(self, channels: int, shrink: int) -> None:
        super().__init__()
        w192, w320 = 192 // shrink, 320 // shrink
        self.channels = w320 + w192 + channels
        self.branch3x3_1 = Convolution(channels, w192, 1)
        self.branch3x3_2 = Convolution(w192, w320, 3, stride=2)
        self.branch7x7x3_1 = Convolution(channels, w192, 1)
        self.branch7x7x3_2 = Convolution(w192, w192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = Convolution(w192, w192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = Convolution(w192, w192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        three = self.branch3x3_2(self.branch3x3_1(x))
        seven = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))
        seven = self.branch7x7x3_4(seven)
        pool = F.max_pool2d(x, kernel_size=3, stride=2)
        return torch.cat((three, seven, pool), dim=1)


class BlockE(InceptionBlock):
    """3x3 convolutions, split into parallel row (1x3) and column (3x1) convolutions, at 8 x 8 pixels."""

    def __init__(self, channels: int, shrink: int) -> None:
        super().__init__()
        w192, w320, w384, w448 = (c // shrink for c in (192, 320, 384, 448))
        self.channels = w320 + 4 * w384 + w192
        self.branch1x1 = Convolution(channels, w320, 1)
        self.branch3x3_1 = Convolution(channels, w384, 1)
        self.branch3x3_2a = Convolution(w384, w384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = Convolution(w384, w384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = Convolution(channels, w448, 1)
        self.branch3x3dbl_2 = Convolution(w448, w384, 3, padding=1)
        self.branch3x3dbl_3a = Convolution(w384, w384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = Convolution(w384, w384, (3, 1), padding=(1, 0))
        self.branch_pool = Convolution(channels, w192, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.branch1x1(x)
        three = self.branch3x3_1(x)
        three = torch.cat((self.branch3x3_2a(three), self.branch3x3_2b(three)), dim=1)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        double = torch.cat((self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)), dim=1)
        pool = self.branch_pool(_average(x))
        return torch.cat((one, three, double, pool), dim=1)


class AuxiliaryHead(nn.Module):
    """A second classifier in the middle of the network: in training, early blocks get gradients from it."""

    def __init__(
        self, channels: int, classes: int, shrink: int, window: int, stride: int, kernel: int
    ) -> None:
        super().__init__()
        w128, w768 = 128 // shrink, 768 // shrink
        self.pool = nn.AvgPool2d(window, stride)
        self.conv0 = Convolution(channels, w128, 1)
        self.conv1 = Convolution(w128, w768, kernel)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(w768, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.conv0(self.pool(x)))  # 17 x 17 -> 5 x 5 -> 1 x 1
        x = self.avgpool(x).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


def _average(x: Tensor) -> Tensor:
    """Returns 3 x 3 averages with the size of the input."""
    return F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)
