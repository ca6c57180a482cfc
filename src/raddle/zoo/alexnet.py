"""AlexNet with a single tower: Krizhevsky 2014, "One weird trick for parallelizing CNNs".

Layers and parameter names are torchvision's, so that its weights load. Differs from torchvision: ReLUs are
not in place, here and in the whole zoo, because a captured graph is easier to read if no operator writes to
its input.
"""

from torch import Tensor, nn


class AlexNet(nn.Module):
    """Five convolutions and three linear layers."""

    def __init__(
        self,
        *,
        maps: tuple[int, int, int, int, int] = (64, 192, 384, 256, 256),  # output channels
        hidden: int = 4096,
        classes: int = 1000,
        pool: int = 6,  # height and width, in pixels, that the classifier gets
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        a, b, c, d, e = maps
        self.features = nn.Sequential(
            nn.Conv2d(3, a, kernel_size=11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(a, b, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(b, c, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c, d, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(d, e, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(pool)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(e * pool * pool, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x)).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits
