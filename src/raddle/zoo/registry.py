"""Lists all models of the zoo: how to build each one, its example batches, loss and batch size.

`NAME-tiny` has the same operators as NAME in a network that trains on one core within seconds. Most of its
sizes are not powers of two, so that tests see uneven splits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from raddle.zoo.alexnet import AlexNet
from raddle.zoo.examples import (
    BatchMaker,
    images,
    labelled_text,
    masked_images,
    text,
    translations,
    vectors,
)
from raddle.zoo.gpt import GPT
from raddle.zoo.inception import Inception3
from raddle.zoo.lenet import LeNet
from raddle.zoo.losses import class_loss, class_loss_with_auxiliary, token_loss
from raddle.zoo.mlp import MLP
from raddle.zoo.recurrent import LanguageModel, TextClassifier, Translator
from raddle.zoo.resnet import RESNET50, RESNET101, ResNet
from raddle.zoo.resnet_cifar import CifarResNet
from raddle.zoo.unet import UNet
from raddle.zoo.vgg import VGG, VGG16, VGG19


@dataclass(frozen=True)
class ZooEntry:
    """One model of the zoo."""

    build: Callable[[], nn.Module]
    examples: BatchMaker  # number of samples -> (inputs, targets)
    loss: Callable[..., Tensor]  # (output, *targets) -> scalar
    batch: int  # the usual number of samples in a step


def names() -> list[str]:
    """Returns the names of all models of the zoo, sorted."""
    return sorted(ZOO)


_imagenet = images(3, 224, classes=1000)
_cifar = images(3, 32, classes=10)
_small_vgg = partial(VGG, widths=(6, 10, 12, 12, 20), hidden=24, classes=5, pool=1)
_small_lstm = {"vocabulary": 20, "hidden": 10}

# Arguments of ZooEntry: build, examples, loss, batch. images(channels, side in pixels, classes),
# text(vocabulary, time steps) and the like are explained in examples.py. CifarResNet(n) has depth 9n + 2.
ZOO: dict[str, ZooEntry] = {
    "mlp": ZooEntry(partial(MLP, 784, 4096, 4096, 10), vectors(784, 10), class_loss, 64),
    "mlp-tiny": ZooEntry(partial(MLP, 20, 24, 18, 5), vectors(20, 5), class_loss, 8),
    "lenet": ZooEntry(LeNet, images(1, 28, classes=10), class_loss, 64),
    "lenet-tiny": ZooEntry(
        partial(LeNet, maps=(3, 6), hidden=(20, 12), classes=5, side=16),
        images(1, 16, classes=5),
        class_loss,
        8,
    ),
    "alexnet": ZooEntry(AlexNet, _imagenet, class_loss, 256),
    "alexnet-tiny": ZooEntry(
        partial(AlexNet, maps=(6, 10, 12, 10, 10), hidden=24, classes=5, pool=2),
        images(3, 95, classes=5),
        class_loss,
        8,
    ),
    "vgg16": ZooEntry(partial(VGG, VGG16), _imagenet, class_loss, 64),
    "vgg16-tiny": ZooEntry(partial(_small_vgg, VGG16), images(3, 32, classes=5), class_loss, 8),
    "vgg19": ZooEntry(partial(VGG, VGG19), _imagenet, class_loss, 64),
    "vgg19-tiny": ZooEntry(partial(_small_vgg, VGG19), images(3, 32, classes=5), class_loss, 8),
    "resnet50": ZooEntry(partial(ResNet, RESNET50), _imagenet, class_loss, 64),
    "resnet50-tiny": ZooEntry(
        partial(ResNet, (1, 2, 2, 1), width=6, classes=5), images(3, 48, classes=5), class_loss, 8
    ),
    "resnet101": ZooEntry(partial(ResNet, RESNET101), _imagenet, class_loss, 64),
    "resnet101-tiny": ZooEntry(
        partial(ResNet, (1, 2, 4, 1), width=6, classes=5), images(3, 48, classes=5), class_loss, 8
    ),
    "resnet110": ZooEntry(partial(CifarResNet, 12), _cifar, class_loss, 128),
    "resnet110-tiny": ZooEntry(
        partial(CifarResNet, 2, width=3, classes=5), images(3, 16, classes=5), class_loss, 8
    ),
    "resnet1001": ZooEntry(partial(CifarResNet, 111), _cifar, class_loss, 128),
    "resnet1001-tiny": ZooEntry(
        partial(CifarResNet, 5, width=3, classes=5), images(3, 16, classes=5), class_loss, 8
    ),
    "inception_v3": ZooEntry(
        Inception3, images(3, 299, classes=1000), class_loss_with_auxiliary, 64
    ),
    "inception_v3-tiny": ZooEntry(
        partial(
            Inception3,
            shrink=16,
            pool_channels=(32, 64),
            inner_channels=(128, 160),
            e_blocks=1,
            auxiliary=(3, 2, 3),
            classes=5,
        ),
        # Sizes in pixels: 139 -> 15 -> 7 -> 3; the original has 299 -> 35 -> 17 -> 8.
        images(3, 139, classes=5),
        class_loss_with_auxiliary,
        4,
    ),
    "unet": ZooEntry(UNet, masked_images(3, 256, classes=2), class_loss, 8),
    "unet-tiny": ZooEntry(
        partial(UNet, widths=(6, 10, 12, 18, 24)), masked_images(3, 32, classes=2), class_loss, 4
    ),
    "rnntc": ZooEntry(TextClassifier, labelled_text(18765, 40, classes=2), class_loss, 64),
    "rnntc-tiny": ZooEntry(
        partial(TextClassifier, **_small_lstm, classes=5),
        labelled_text(20, 3, classes=5),
        class_loss,
        8,
    ),
    "rnnlm": ZooEntry(LanguageModel, text(10000, 40), token_loss, 64),
    "rnnlm-tiny": ZooEntry(partial(LanguageModel, **_small_lstm), text(20, 5), token_loss, 8),
    "nmt": ZooEntry(Translator, translations(32000, 40), token_loss, 64),
    "nmt-tiny": ZooEntry(partial(Translator, **_small_lstm), translations(20, 4), token_loss, 6),
    "gpt": ZooEntry(GPT, text(50257, 1024), token_loss, 8),
    "gpt-tiny": ZooEntry(
        partial(GPT, vocabulary=20, context=6, layers=2, heads=3, width=12),
        text(20, 5),
        token_loss,
        6,
    ),
}
