"""The models that bench/runtime/gpu.py trains: some of the zoo, and two of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from gpu_timing import place
from torch import Tensor, nn

from raddle import zoo


class Work(NamedTuple):
    """A model with one batch, on the device of the bench (gpu_timing.place)."""

    model: nn.Module
    inputs: list[Tensor]
    targets: list[Tensor]
    loss: Callable[..., Tensor]


def load(name: str) -> Work:
    """Return a model by its name in MODELS, or a tiny one of the zoo, with a batch."""
    return MODELS[name]() if name in MODELS else _from_zoo(name, 8)


def _from_zoo(name: str, batch: int, *, dropout: bool = True) -> Work:
    """Return a model of the zoo; dropout False: with all probabilities of dropout set to 0."""
    work = zoo.load(name, batch=batch, device=place())
    for module in work.model.modules():
        if not dropout and isinstance(module, nn.Dropout):
            module.p = 0.0
        if not dropout and isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # attention has its probability as a number
    assert work.loss is not None
    return Work(work.model, list(work.batch[:-1]), [work.batch[-1]], work.loss.criterion)


class _Logits(nn.Module):
    """Makes a model of Hugging Face's transformers return its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


def _llama(batch: int, tokens: int) -> Work:
    """Return Llama 3.2 with 1.2 billion parameters, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=4096,
        rope_theta=500000.0, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(place()):
        model = LlamaForCausalLM(config)
    x = torch.randint(config.vocab_size, (batch, tokens + 1), device=place())
    return Work(_Logits(model), [x[:, :-1].contiguous()], [x[:, 1:].contiguous()], _token_loss)


def _vit(batch: int) -> Work:
    """Return ViT-B/16 with random weights."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    with torch.device(place()):
        model = ViTForImageClassification(ViTConfig(num_labels=1000))
    x = torch.randn(batch, 3, 224, 224, device=place())
    y = torch.randint(1000, (batch,), device=place())
    return Work(_Logits(model), [x], [y], nn.functional.cross_entropy)


def _token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy with one label per token."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


MODELS: dict[str, Callable[[], Work]] = {
    "resnet50": lambda: _from_zoo("resnet50", 128),
    "vgg16": lambda: _from_zoo("vgg16", 128),
    "unet": lambda: _from_zoo("unet", 8),
    "gpt": lambda: _from_zoo("gpt", 8),
    "gpt-without-dropout": lambda: _from_zoo("gpt", 8, dropout=False),
    "hf-llama-1b": lambda: _llama(4, 1024),
    "hf-vit": lambda: _vit(64),
}
