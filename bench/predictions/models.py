"""The models of this benchmark: of Hugging Face and timm, with random weights, and some of the zoo."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from raddle import zoo

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Entry:
    """A model, the batch at which it is profiled, and the other batch, which is predicted."""

    build: Callable[[], tuple[nn.Module, Callable[[int], Batch], Callable[..., Tensor]]]
    batch: int
    other: int
    optimizer: str = "adamw"
    counted: bool = True  # whether its errors count


class Logits(nn.Module):
    """Makes a model of transformers return its logits alone; names: of its inputs."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).logits
        return logits


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy with one label per token."""
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def tokens(words: int, length: int, count: int = 2) -> Callable[[int], Batch]:
    """Return a maker of batches with `count` tensors of tokens; the last one has the labels."""
    return lambda n: tuple(torch.randint(words, (n, length)) for _ in range(count))


def images(side: int, classes: int = 1000) -> Callable[[int], Batch]:
    """Return a maker of batches of square images with a label each."""
    return lambda n: (torch.randn(n, 3, side, side), torch.randint(classes, (n,)))


def gpt2(length: int = 1024, **sizes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(use_cache=False, **sizes)
    return (
        Logits(GPT2LMHeadModel(config), "input_ids"),
        tokens(config.vocab_size, length),
        token_loss,
    )


def llama(length: int = 256, **sizes: Any) -> Any:
    """Llama 3.2 with 1.2 billion parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
        "tie_word_embeddings": True, "use_cache": False, **sizes,
    })  # fmt: skip
    return (
        Logits(LlamaForCausalLM(config), "input_ids"),
        tokens(config.vocab_size, length),
        token_loss,
    )


def bert(length: int = 512, **sizes: Any) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**sizes)
    return (
        Logits(BertForMaskedLM(config), "input_ids"),
        tokens(config.vocab_size, length),
        token_loss,
    )


def distilbert(length: int = 512, **sizes: Any) -> Any:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = DistilBertConfig(**sizes)
    model = Logits(DistilBertForMaskedLM(config), "input_ids")
    return model, tokens(config.vocab_size, length), token_loss


def t5(length: int = 512, **sizes: Any) -> Any:
    """T5-small."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(use_cache=False, decoder_start_token_id=0, **sizes)
    model = Logits(T5ForConditionalGeneration(config), "input_ids", "decoder_input_ids")
    return model, tokens(config.vocab_size, length, 3), token_loss


def vit(side: int = 224, **sizes: Any) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_labels=1000, image_size=side, **sizes)
    return Logits(ViTForImageClassification(config), "pixel_values"), images(side), cross_entropy


def swin() -> Any:
    """Swin-T."""
    from transformers import SwinConfig, SwinForImageClassification

    model = SwinForImageClassification(SwinConfig(num_labels=1000))
    return Logits(model, "pixel_values"), images(224), cross_entropy


def mobilevit() -> Any:
    from transformers import MobileViTConfig, MobileViTForImageClassification

    model = MobileViTForImageClassification(MobileViTConfig(num_labels=1000))
    return Logits(model, "pixel_values"), images(256), cross_entropy


def wav2vec2() -> Any:
    """wav2vec 2.0 base on two seconds of sound; without masks and layers that Python draws."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(layerdrop=0.0, apply_spec_augment=False, num_labels=10)
    model = Logits(Wav2Vec2ForSequenceClassification(config), "input_values")
    return model, lambda n: (torch.randn(n, 32000), torch.randint(10, (n,))), cross_entropy


def timm(name: str, side: int = 224) -> Any:
    from vision import import_torchvision

    import_torchvision()
    import timm

    return timm.create_model(name), images(side), cross_entropy


def from_zoo(name: str) -> Any:
    """Return a model of the zoo with its own batches; on the device that is the default."""
    device = torch.get_default_device()
    work = zoo.load(name, batch=2, device=device)
    assert work.loss is not None

    def make(n: int) -> Batch:
        return tuple(zoo.load(name, batch=n, device="cpu").batch)

    return work.model, make, work.loss.criterion


MODELS: dict[str, Entry] = {
    "hf-gpt2": Entry(gpt2, 8, 16),
    "hf-llama-1b": Entry(llama, 8, 16, "sgd"),
    "hf-vit": Entry(vit, 64, 128),
    "hf-bert": Entry(bert, 16, 32),
    "timm-convnext-tiny": Entry(lambda: timm("convnext_tiny"), 64, 128),
    "timm-efficientnet-b0": Entry(lambda: timm("efficientnet_b0"), 128, 256),
    "timm-regnety-016": Entry(lambda: timm("regnety_016"), 128, 256),
    "hf-t5-small": Entry(t5, 16, 32),
    "hf-distilbert": Entry(distilbert, 32, 64),
    "hf-swin-tiny": Entry(swin, 64, 128),
    "hf-wav2vec2": Entry(wav2vec2, 16, 32),
    "hf-mobilevit": Entry(mobilevit, 64, 128),
    "resnet50": Entry(lambda: from_zoo("resnet50"), 128, 256, "sgd", counted=False),
    "vgg16": Entry(lambda: from_zoo("vgg16"), 64, 128, "sgd", counted=False),
    "unet": Entry(lambda: from_zoo("unet"), 8, 16, "sgd", counted=False),
    "alexnet": Entry(lambda: from_zoo("alexnet"), 256, 512, "sgd", counted=False),
    "gpt": Entry(lambda: from_zoo("gpt"), 8, 16, "sgd", counted=False),
}
# Small enough for a trial on a CPU.
TINY: dict[str, Entry] = {
    "mlp-tiny": Entry(lambda: from_zoo("mlp-tiny"), 64, 128),
    "gpt-tiny": Entry(lambda: from_zoo("gpt-tiny"), 16, 32, "sgd"),
    "bert-tiny": Entry(
        lambda: bert(
            32, vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=128,
        ), 8, 16,
    ),
}  # fmt: skip
