"""Defines a narrow VGG-16 for small images; lab ranks load it as `lab_model.py:vgg`.

Its convolutions are an eighth as wide as the original's, its linear layers a quarter. The linear layers
have 84 % of the parameters; in the original they have 89 %.
"""

from __future__ import annotations

from raddle import supervised
from raddle.api.models import Workload
from raddle.api.networks import VGG, VGG16, class_loss, images

SIDE = 32  # pixels
CLASSES = 50  # as many as the thesis trains on
NAME = "vgg16 / 8"


def vgg(batch: int = 16) -> Workload:
    """Returns the network with random images and labels."""
    # widths: channels of the five stages; pool: height and width of what the linear layers get
    widths = (8, 16, 32, 64, 64)
    model = VGG(VGG16, widths=widths, hidden=1024, classes=CLASSES, pool=1, dropout=0.0)
    inputs, targets = images(3, SIDE, classes=CLASSES)(batch)
    return Workload(NAME, model, (*inputs, *targets), supervised(class_loss))
