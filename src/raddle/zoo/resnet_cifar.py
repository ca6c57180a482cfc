"""Pre-activation ResNet for CIFAR: He et al. 2016, "Identity mappings in deep residual networks".

A network of depth 9n + 2 has three stages of n bottlenecks (section 5 and the authors' code). A stage is a
run of blocks with the same image size; it has nothing to do with pipeline stages.
"""

from torch import Tensor, nn


class CifarResNet(nn.Module):
    """The network of depth 9n + 2; width: channels of the first convolution."""

    def __init__(self, n: int, *, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, kernel_size=3, padding=1, bias=False)
        blocks = []
        channels = width
        for stage in range(3):
            narrow = width * 2**stage  # channels inside a bottleneck
            for block in range(n):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(PreactivatedBottleneck(channels, narrow, stride))
                channels = 4 * narrow
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.conv(x))
        x = self.avgpool(self.relu(self.bn(x))).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


class PreactivatedBottleneck(nn.Module):
    """x + f(x), where f has batch norm and ReLU before each convolution instead of after it."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, kernel_size=1, stride=stride, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, kernel_size=1, bias=False)
        self.relu = nn.ReLU()
        self.shortcut: nn.Conv2d | None = None
        if channels != out:
            self.shortcut = nn.Conv2d(channels, out, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(x))
        if self.shortcut is not None:
            x = self.shortcut(y)  # if the shape changes, both branches use the pre-activation
        y = self.conv1(y)
        y = self.conv2(self.relu(self.bn2(y)))
        y = self.conv3(self.relu(self.bn3(y)))
        out: Tensor = x + y
        return out
