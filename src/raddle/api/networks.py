"""Parts of the zoo from which scripts build other workloads: networks, losses, and random batches.

A `BatchMaker` is a function that returns a random batch of n samples. `images`, `masked_images` (a label
for each pixel) and `text` (targets are the next tokens) return such functions. `RESNET50`, `VGG16` and
`VGG19` are tuples of depths for `ResNet` and `VGG`: how many blocks or convolutions each image size
has.
"""

from __future__ import annotations

from raddle.zoo.alexnet import AlexNet
from raddle.zoo.examples import BatchMaker, images, masked_images, text
from raddle.zoo.inception import Inception3
from raddle.zoo.losses import class_loss, class_loss_with_auxiliary, token_loss
from raddle.zoo.recurrent import LanguageModel
from raddle.zoo.resnet import RESNET50, ResNet
from raddle.zoo.resnet_cifar import CifarResNet
from raddle.zoo.unet import UNet
from raddle.zoo.vgg import VGG, VGG16, VGG19

__all__ = [
    "RESNET50",
    "VGG",
    "VGG16",
    "VGG19",
    "AlexNet",
    "BatchMaker",
    "CifarResNet",
    "Inception3",
    "LanguageModel",
    "ResNet",
    "UNet",
    "class_loss",
    "class_loss_with_auxiliary",
    "images",
    "masked_images",
    "text",
    "token_loss",
]  # fmt: skip
