"""LeNet-5: LeCun et al. 1998, "Gradient-based learning applied to document recognition".

Differs from the paper: the second convolution reads all channels of the first, the pooling has no weights,
and the output is a linear layer.
"""

from torch import Tensor, nn


class LeNet(nn.Module):
    """Two convolutions, each with a pooling, and three linear layers."""

    def __init__(
        self,
        *,
        maps: tuple[int, int] = (6, 16),  # output channels of the convolutions
        hidden: tuple[int, int] = (120, 84),  # widths of the linear layers
        classes: int = 10,
        side: int = 28,  # height and width of the image, in pixels
    ) -> None:
        super().__init__()
        a, b = maps
        self.features = nn.Sequential(
            # The image has 28 x 28 pixels; in the paper it has 32 x 32, and there is no padding.
            nn.Conv2d(1, a, kernel_size=5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(a, b, kernel_size=5),
            nn.Tanh(),
            nn.AvgPool2d(2),
        )
        side_left = (side // 2 - 4) // 2  # height and width after the second pooling
        c, d = hidden
        self.classifier = nn.Sequential(
            nn.Linear(b * side_left * side_left, c),
            nn.Tanh(),
            nn.Linear(c, d),
            nn.Tanh(),
            nn.Linear(d, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits
