"""ResNet for ImageNet: He et al. 2016, "Deep residual learning", with torchvision's names.

Differs from the paper: the stride of a block is in its 3x3 convolution (torchvision's "V1.5").
"""

from torch import Tensor, nn

Depths = tuple[int, int, int, int]
# Blocks in each stage, layer1 to layer4. A stage of ResNet has nothing to do with pipeline stages.
RESNET50: Depths = (3, 4, 6, 3)
RESNET101: Depths = (3, 4, 23, 3)


class ResNet(nn.Module):
    """A convolution and a pooling, four stages of bottleneck blocks, and a linear layer."""

    def __init__(self, depths: Depths, *, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        a, b, c, d = depths
        # Arguments of _stage: number of blocks, input channels, inner channels of a bottleneck.
        self.layer1 = _stage(a, width, width, stride=1)
        self.layer2 = _stage(b, 4 * width, 2 * width, stride=2)
        self.layer3 = _stage(c, 8 * width, 4 * width, stride=2)
        self.layer4 = _stage(d, 16 * width, 8 * width, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.avgpool(x).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


class Bottleneck(nn.Module):
    """relu(x + f(x)), where f reduces to `width` channels, convolves, and expands to 4 * width."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(channels, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


def _stage(depth: int, channels: int, width: int, *, stride: int) -> nn.Sequential:
    """Returns `depth` blocks; the first one has the stride and changes the number of channels."""
    later_blocks = [Bottleneck(4 * width, width, stride=1) for _ in range(depth - 1)]
    return nn.Sequential(Bottleneck(channels, width, stride), *later_blocks)
