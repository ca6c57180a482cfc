"""VGG: Simonyan and Zisserman 2015, "Very deep convolutional networks".

Parameter names are torchvision's, so that its weights load.
"""

from torch import Tensor, nn

# One number for each of the five stages. A stage of VGG is a run of convolutions up to a pooling; it has
# nothing to do with pipeline stages.
PerStage = tuple[int, int, int, int, int]
WIDTHS: PerStage = (64, 128, 256, 512, 512)  # channels
VGG16: PerStage = (2, 2, 3, 3, 3)  # number of convolutions
VGG19: PerStage = (2, 2, 4, 4, 4)


class VGG(nn.Module):
    """Five stages of 3x3 convolutions, each followed by a pooling, then three linear layers."""

    def __init__(
        self,
        depths: PerStage,
        *,
        widths: PerStage = WIDTHS,
        hidden: int = 4096,
        classes: int = 1000,
        pool: int = 7,  # height and width, in pixels, that the classifier gets
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for depth, width in zip(depths, widths, strict=True):
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(pool)
        self.classifier = nn.Sequential(
            nn.Linear(channels * pool * pool, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x)).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def _initialise(layer: nn.Module) -> None:
    """Sets the weights of a layer by He's (Kaiming's) method, and its bias to zero.

    There is no batch norm: with PyTorch's default weights the signal would vanish over sixteen layers.
    """
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
