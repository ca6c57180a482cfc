"""Unmodified Hugging Face models, small ones: a step of the graph equals a step of the module.

The graph runs whole, without fused calls, and with random tiles. No operator is opaque.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tilings import random_tiles
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.interpret import interpret
from raddle.graph.operator_kind import work
from raddle.graph.supervised import supervised

hf = pytest.importorskip("transformers")

# n: sequences or images, t: tokens, s: tokens of the source
N, T, S, VOCABULARY, CLASSES = 3, 9, 7, 61, 7
IDS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1}
TEXT = {
    **IDS, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 16,
}  # fmt: skip
EAGER = {"attn_implementation": "eager"}  # attention as matmul, softmax, matmul
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {
    **IDS, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False,
}  # fmt: skip
ROTARY = {**TEXT, "num_key_value_heads": 2, "head_dim": 6, "use_cache": False}
MIXTRAL = {
    **ROTARY, "num_local_experts": 4, "num_experts_per_tok": 2,
    # "eager" has shapes that depend on data; "grouped_mm" is not for float64
    "experts_implementation": "batched_mm",
}  # fmt: skip
T5 = {
    **IDS, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 3,
    "relative_attention_num_buckets": 8, "dropout_rate": 0.0, "decoder_start_token_id": 0,
    "pad_token_id": 0, "use_cache": False,
}  # fmt: skip
RESNET = {"embedding_size": 6, "hidden_sizes": [8, 12], "depths": [1, 2], "num_labels": CLASSES}
BASIC = {"layer_type": "basic"}  # two convolutions a block, no bottleneck
CONVNEXT = {"num_stages": 2, "hidden_sizes": [8, 12], "depths": [1, 2], "num_labels": CLASSES}
VIT = {
    "image_size": 12, "patch_size": 4, "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 3, "intermediate_size": 40, "num_labels": CLASSES, **NO_DROPOUT,
}  # fmt: skip
SWIN = {
    "image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 1], "num_heads": [2, 4],
    "window_size": 4, "num_labels": CLASSES, "drop_path_rate": 0.0, **NO_DROPOUT,
}  # fmt: skip


def token_ids(*shape: int) -> Tensor:
    return torch.randint(2, VOCABULARY, shape)


def labels(*shape: int) -> Tensor:
    """Tokens to predict; the first two of each sequence are ignored."""
    return token_ids(*shape).index_fill(1, torch.tensor([0, 1]), -100)


def text() -> dict[str, Tensor]:
    return {"input_ids": token_ids(N, T), "labels": labels(N, T)}


def padded() -> dict[str, Tensor]:
    lengths = torch.tensor([T, T - 3, T - 1])
    mask = (torch.arange(T) < lengths[:, None]).long()
    return {**text(), "attention_mask": mask}


def translation() -> dict[str, Tensor]:
    return {"input_ids": token_ids(N, S), "labels": labels(N, T)}


def images(size: int) -> Callable[[], dict[str, Tensor]]:
    return lambda: {
        "pixel_values": torch.randn(N, 3, size, size, dtype=torch.float64),
        "labels": torch.randint(CLASSES, (N,)),
    }


class Case(NamedTuple):
    model: str
    config: dict[str, Any]
    inputs: Callable[[], dict[str, Tensor]]


CASES = {
    "gpt2": Case("GPT2LMHeadModel", GPT2, text),
    "gpt2-eager": Case("GPT2LMHeadModel", {**GPT2, **EAGER}, padded),
    "bert": Case("BertForMaskedLM", {**TEXT, **NO_DROPOUT}, padded),
    "llama": Case("LlamaForCausalLM", ROTARY, padded),
    "llama-eager": Case("LlamaForCausalLM", {**ROTARY, **EAGER}, text),
    "mixtral": Case("MixtralForCausalLM", MIXTRAL, padded),
    "t5": Case("T5ForConditionalGeneration", T5, translation),
    "vit": Case("ViTForImageClassification", VIT, images(12)),
    "swin": Case("SwinForImageClassification", SWIN, images(16)),
    "resnet": Case("ResNetForImageClassification", RESNET, images(21)),
    "resnet-basic": Case("ResNetForImageClassification", {**RESNET, **BASIC}, images(21)),
    "convnext": Case("ConvNextForImageClassification", CONVNEXT, images(24)),
}


class Float32AsFloat64(TorchFunctionMode):
    """Replaces float32 by float64: some models compute norms, rotations and losses in float32 for every
    dtype."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = torch.Tensor.double if function is torch.Tensor.float else function
        named = {k: _raise_dtype(a) for k, a in (kwargs or {}).items()}
        return function(*map(_raise_dtype, args), **named)


def _raise_dtype(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


class Result(NamedTuple):
    """The result of one step."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]  # those that the step changes


def build(case: Case) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    made = getattr(hf, case.model)
    return made(made.config_class(**case.config)).double().train(), case.inputs()


def step_of_module(model: nn.Module, inputs: dict[str, Tensor]) -> Result:
    before, model = dict(model.named_buffers()), copy.deepcopy(model)
    loss = model(**inputs).loss
    after = dict(model.named_buffers())
    changed = {k: v for k, v in after.items() if not torch.equal(v, before[k])}
    return Result(loss.detach(), gradients(loss, model), changed)


def step_of_graph(graph: Graph, model: nn.Module, inputs: dict[str, Tensor], **how: Any) -> Result:
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = interpret(graph, {**state, **inputs}, **how)
    loss = values[graph.loss]
    changed = {buffer: values[value] for buffer, value in graph.updates.items()}
    return Result(loss.detach(), gradients(loss, model), changed)


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    names, parameters = zip(*trained, strict=True)
    grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return dict(zip(names, grads, strict=True))


def assert_same(actual: Result, expected: Result, tolerance: float, how: str) -> None:
    """Compares two steps; errors of gradients are relative to the norm of all gradients."""
    assert actual.loss.item() == pytest.approx(expected.loss.item(), rel=tolerance), how
    scale = torch.stack([g.norm() for g in expected.gradients.values()]).norm()
    assert scale > 0
    for name, gradient in expected.gradients.items():
        assert (actual.gradients[name] - gradient).norm() <= tolerance * scale, (how, name)
    assert actual.buffers.keys() == expected.buffers.keys()
    for name, buffer in expected.buffers.items():
        torch.testing.assert_close(
            actual.buffers[name], buffer, rtol=tolerance, atol=tolerance, msg=f"{how}: {name}"
        )


def check(
    model: nn.Module, inputs: dict[str, Tensor], graph: Graph, expected: Result, tolerance: float
) -> None:
    ways: dict[str, dict[str, Any]] = {"whole": {}, "un-fused": {"fuse": False}}
    for seed in range(3):
        ways[f"tiles of seed {seed}"] = {"tiles": random_tiles(graph, seed)}
    for how, options in ways.items():
        assert_same(step_of_graph(graph, model, inputs, **options), expected, tolerance, how)


@pytest.mark.parametrize("name", CASES)
def test_step(name: str) -> None:
    model, inputs = build(CASES[name])
    with Float32AsFloat64():
        graph = capture(model, inputs, supervised(lambda out: out.loss, targets=0))
        expected = step_of_module(model, inputs)
    assert [op.attrs["call"] for op in graph.opaque_ops] == []
    check(model, inputs, graph, expected, 1e-9)


# Decoders with the default configuration but for sizes and dropout: they fill a cache, which starts empty.
# OPT, BART and Whisper ask for random numbers, to leave out layers with the probability 0.
BART = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "dropout": 0.0,
}  # fmt: skip
BART_IDS = {
    **IDS, "pad_token_id": 1, "decoder_start_token_id": 1, "max_position_embeddings": 16,
    "forced_eos_token_id": None,
}  # fmt: skip
WHISPER = {
    **BART, **IDS, "pad_token_id": 1, "decoder_start_token_id": 1, "num_mel_bins": 5,
    "max_source_positions": 6, "max_target_positions": 16, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip
OPT = {**TEXT, "ffn_dim": 40, "word_embed_proj_dim": 24, "dropout": 0.0, "pad_token_id": 1}


def speech() -> dict[str, Tensor]:
    return {"input_features": torch.randn(N, 5, 12, dtype=torch.float64), "labels": labels(N, T)}


def without_cache_setting(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "use_cache"}


AS_THEY_COME = {
    "gpt2": Case("GPT2LMHeadModel", without_cache_setting(GPT2), text),
    "llama": Case("LlamaForCausalLM", without_cache_setting(ROTARY), padded),
    "t5": Case("T5ForConditionalGeneration", without_cache_setting(T5), translation),
    "opt": Case("OPTForCausalLM", OPT, padded),
    "bart": Case("BartForConditionalGeneration", {**BART, **BART_IDS}, translation),
    "whisper": Case("WhisperForConditionalGeneration", WHISPER, speech),
}


@pytest.mark.parametrize("name", AS_THEY_COME)
def test_decoders_as_they_come(name: str) -> None:
    model, inputs = build(AS_THEY_COME[name])
    assert getattr(model.config, "use_cache", True)
    with Float32AsFloat64():
        graph = capture(model, inputs, supervised(lambda out: out.loss, targets=0))
        expected = step_of_module(model, inputs)
    assert getattr(model.config, "use_cache", True)
    assert [op.attrs["call"] for op in graph.opaque_ops] == []
    check(model, inputs, graph, expected, 1e-9)


def test_grouped_product_of_experts() -> None:
    """The default product of a mixture of experts can be split, and costs what it computes."""
    config = {k: v for k, v in MIXTRAL.items() if k not in ("experts_implementation", "use_cache")}
    model, inputs = build(Case("MixtralForCausalLM", config, text))
    model.float()
    graph = capture(model, inputs, supervised(lambda out: out.loss, targets=0))
    expected = step_of_module(model, inputs)
    assert not graph.opaque_ops
    products = [op for op in graph.ops if op.kind == "grouped_mm"]
    assert products
    for op in products:
        rows, features = graph.values[op.inputs[0]].shape
        assert (
            work(op, op.space.full).flops
            == 2 * rows * features * graph.values[op.outputs[0]].shape[-1]
        )
        assert graph.dim_kinds(op) == "SARR"
    actual = step_of_graph(graph, model, inputs)
    assert_same(actual, expected, 1e-5, "float32")


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_step_with_parts_in_float32(name: str) -> None:
    """The unmodified model in float64, which computes the loss or every norm in float32."""
    model, inputs = build(CASES[name])
    graph = capture(model, inputs, supervised(lambda out: out.loss, targets=0))
    assert torch.float32 in {value.dtype for value in graph.values.values()}
    check(model, inputs, graph, step_of_module(model, inputs), 1e-6)
