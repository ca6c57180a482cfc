"""The architectures of transformers: every model type of its automatic classes, with reduced sizes.

A configuration is the default one of its class; only sizes are reduced. The number of layers is the
smallest that still has every kind of layer of the default configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rows import MAX_PARAMETERS, Example, Row, first_tensor_loss

N, T = 2, 16  # samples, tokens


# Reduced sizes, with the names that configurations have for them.
SIZES = {
    32: """hidden_size d_model n_embd embed_dim dim model_dim embedding_size encoder_hidden_size
        decoder_hidden_size hidden_dim projection_dim d_embed lru_width conv_dim_out word_embed_proj_dim
        expert_hidden_size embedding_dim linear_key_dim linear_value_dim""",
    64: """intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim moe_intermediate_size
        shared_expert_intermediate_size d_inner feed_forward_size ffn_hidden_size
        expert_intermediate_size shared_intermediate_size dim_feedforward intermediate_size_mlp
        mamba_d_ssm ffn_intermediate_size moe_shared_expert_intermediate_size""",
    4: """num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads
        num_experts num_local_experts n_routed_experts moe_num_experts encoder_num_attention_heads
        decoder_num_attention_heads num_mem_blocks mamba_n_heads""",
    2: """num_experts_per_tok num_experts_per_token top_k_experts moe_topk moe_k moe_top_k
        num_key_value_heads n_group topk_group""",
    8: """head_dim d_kv v_head_dim qk_nope_head_dim qk_rope_head_dim attention_head_size global_head_dim
        kv_lora_rank mamba_d_state ssm_state_size rope_head_dim linear_key_head_dim
        linear_value_head_dim swa_head_dim""",
    16: "q_lora_rank o_lora_rank state_size mamba_d_head index_head_dim hidden_size_per_layer_input",
    99: """vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size encoder_vocab_size n_tokens
        vocab_size_per_layer_input""",
    65: "max_position_embeddings n_positions max_sequence_length n_ctx",
}
LAYERS = """num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers
    num_decoder_layers num_encoder_layers depth encoder_num_hidden_layers decoder_num_hidden_layers
    num_blocks n_layers_enc""".split()  # noqa: SIM905
DENSE_LAYERS = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
TOKENS = tuple(
    f"{kind}_token_id"
    for kind in ("pad", "bos", "eos", "decoder_start", "image", "forced_eos", "sep", "cls")
)
KINDS_OF_LAYERS = ("layer_types", "mlp_layer_types", "layers_block_type")
SMALL = {name: size for size, names in SIZES.items() for name in names.split()}


# What is reduced, in the order in which it is tried: some models need sizes that fit each other.
EVERYTHING = frozenset(SMALL) | {"image_size", "depths", "layers"}
ATTENTION = frozenset(n for size in (4, 2, 8, 16) for n in SIZES[size].split())
LEVELS = [
    EVERYTHING,
    EVERYTHING - ATTENTION,
    frozenset(SIZES[64].split()) | {"vocab_size", "max_position_embeddings", "depths", "layers"},
    frozenset({"vocab_size", "depths", "layers"}),
    frozenset(),
]


def reduced(config_class: Any, names: frozenset[str] = EVERYTHING) -> Any:
    """Returns the default configuration of a class with fewer layers and smaller values of these names."""
    default = config_class()
    return config_class(**_reduced_arguments(default, names))


def _reduced_arguments(default: Any, names: frozenset[str]) -> dict[str, Any]:
    """Returns the arguments of a configuration class that differ from a default configuration."""
    arguments: dict[str, Any] = {}
    values = dict(vars(default))
    accepted = set(values) | set(inspect.signature(type(default).__init__).parameters)
    for name in sorted(accepted | set(getattr(default, "attribute_map", {}).values())):
        value = values.get(name)
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            arguments[name] = type(value)(**_reduced_arguments(value, names))
        elif (
            type(value) is int
            and (smaller := _reduced_integer(name, value, values, names)) is not None
        ):
            arguments[name] = smaller
        elif name in names & {"depths", "layers"} and isinstance(value, (list, tuple)):
            arguments[name] = [min(v, 2) for v in value if type(v) is int]
    if values.get("num_key_value_heads") == values.get("num_attention_heads") is not None:
        arguments["num_key_value_heads"] = arguments["num_attention_heads"]
    # A list with an entry for each layer is cut to the smaller number of layers.
    count = next((arguments[n] for n in LAYERS if n in arguments), None)
    for name in KINDS_OF_LAYERS:
        if isinstance(values.get(name), (list, tuple)) and count:
            arguments[name] = list(values[name])[:count]
    return arguments


def _reduced_integer(
    name: str, value: int, values: dict[str, Any], names: frozenset[str]
) -> int | None:
    """Returns a smaller value for an integer of a configuration; None: it stays."""
    if name in LAYERS:
        return min(value, _layers_needed(values, value))
    if name == "embedding_size" and value < (values.get("hidden_size") or value):
        return 16  # smaller than the reduced hidden size, as by default
    if name in SMALL and name in names:
        return min(value, SMALL[name])
    if name in DENSE_LAYERS:
        return min(value, 1)
    if name in TOKENS and value >= 99 and "vocab_size" in names:  # of the reduced vocabulary
        return 90 + TOKENS.index(name)
    if name == "image_size" and name in names:
        patch = values.get("patch_size")
        if "window_size" in values:
            return min(value, 112)
        return min(value, 4 * patch) if isinstance(patch, int) else None
    return None


def _layers_needed(values: dict[str, Any], default: int) -> int:
    """Returns how many of the first layers have all kinds of layers that the default configuration has."""
    needed = 2
    for name in KINDS_OF_LAYERS:
        kinds = values.get(name)
        if isinstance(kinds, (list, tuple)) and kinds and all(isinstance(k, str) for k in kinds):
            needed = max(needed, *(list(kinds).index(kind) + 1 for kind in set(kinds)))
    return min(needed, default)


# -- inputs ----------------------------------------------------------------------------


def _vocabulary(config: Any) -> int:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    sizes = [getattr(c, "vocab_size", None) for c in (config, text)]
    return next((s for s in sizes if isinstance(s, int)), 90)


def token_ids(config: Any, length: int = T) -> torch.Tensor:
    return torch.randint(3, min(_vocabulary(config), 89), (N, length))


def text(config: Any) -> dict[str, Any]:
    return {"input_ids": token_ids(config), "labels": token_ids(config)}


def translation(config: Any) -> dict[str, Any]:
    return {"input_ids": token_ids(config), "labels": token_ids(config, 8)}


def _image_size(config: Any) -> tuple[int, int]:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or getattr(config, "input_size", None) or 64
    size = size if isinstance(size, (list, tuple)) else (size, size)
    return int(size[0]), int(size[1])


def _pixels(config: Any) -> torch.Tensor:
    vision = getattr(config, "vision_config", config)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    return torch.randn(N, channels if isinstance(channels, int) else 3, *_image_size(config))


def image_classes(config: Any) -> dict[str, Any]:
    return {"pixel_values": _pixels(config), "labels": torch.randint(config.num_labels, (N,))}


def segments(config: Any) -> dict[str, Any]:
    labels = torch.randint(config.num_labels, (N, *_image_size(config)))
    return {"pixel_values": _pixels(config), "labels": labels}


def images(config: Any) -> dict[str, Any]:
    return {"pixel_values": _pixels(config)}


def pairs(config: Any) -> dict[str, Any]:
    return {"input_ids": token_ids(config), "pixel_values": _pixels(config), "return_loss": True}


def speech(config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(N, 4000), "labels": torch.randint(1, 30, (N, 4))}


def speech_classes(config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(N, 4000), "labels": torch.randint(config.num_labels, (N,))}


def speech_to_text(config: Any) -> dict[str, Any]:
    if hasattr(config, "max_source_positions") and config.model_type == "whisper":
        frames = 2 * config.max_source_positions
        features = torch.randn(N, config.num_mel_bins, frames)
        return {"input_features": features, "labels": token_ids(config, 6)}
    if config.model_type in ("speecht5", "moonshine"):
        return {"input_values": torch.randn(N, 4000), "labels": token_ids(config, 6)}
    features = torch.randn(N, 64, getattr(config, "input_feat_per_channel", 80))
    return {"input_features": features, "labels": token_ids(config, 6)}


HEADS: list[tuple[str, Callable[[Any], dict[str, Any]]]] = [
    ("MODEL_FOR_CAUSAL_LM", text),
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", translation),
    ("MODEL_FOR_MASKED_LM", text),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ", speech_to_text),
    ("MODEL_FOR_CTC", speech),
    ("MODEL_FOR_AUDIO_CLASSIFICATION", speech_classes),
    ("MODEL_FOR_IMAGE_CLASSIFICATION", image_classes),
    ("MODEL_FOR_SEMANTIC_SEGMENTATION", segments),
    ("MODEL_FOR_OBJECT_DETECTION", images),
    ("MODEL_FOR_UNIVERSAL_SEGMENTATION", images),
    ("MODEL_FOR_DEPTH_ESTIMATION", images),
    ("MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION", pairs),
]
# Types whose automatic class is a decoder for another model's encoder, or needs other inputs.
SEQ_TO_SEQ_FIRST = [
    "bart",
    "mbart",
    "pegasus",
    "marian",
    "blenderbot",
    "blenderbot-small",
    "bigbird_pegasus",
    "mvp",
    "plbart",
    "prophetnet",
    "whisper",
    "pegasus_x",
]
EXTRA = {"whisper": "MODEL_FOR_SPEECH_SEQ_2_SEQ"}


def rows() -> Iterator[Row]:
    """Yields one row for each model type of which raddle's inputs fit an automatic class."""
    from transformers.models.auto import modeling_auto as auto

    chosen: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {}
    for head, inputs in HEADS:
        for kind, names in getattr(auto, f"{head}_MAPPING_NAMES").items():
            better = EXTRA.get(kind, "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM")
            if kind in SEQ_TO_SEQ_FIRST and head != better:
                continue
            name = names if isinstance(names, str) else names[-1]
            chosen.setdefault(kind, (name, inputs))
    for kind, (name, inputs) in sorted(chosen.items()):
        yield Row("transformers", kind, lambda name=name, inputs=inputs: _build(name, inputs))


def not_tried() -> list[str]:
    """Returns the model types of transformers for which there is no row."""
    from transformers.models.auto import modeling_auto as auto

    return sorted(set(auto.MODEL_MAPPING_NAMES) - {row.name for row in rows()})


def _build(name: str, inputs: Callable[[Any], dict[str, Any]]) -> Example:
    """Returns the smallest of several configurations that computes a loss."""
    import transformers

    model_class = getattr(transformers, name)
    failure: Exception | None = None
    for names in LEVELS:
        try:
            config = reduced(model_class.config_class, names)
            with torch.device("meta"):
                count = sum(p.numel() for p in model_class(config).parameters())
            if count > MAX_PARAMETERS:
                raise ValueError(f"{count} parameters: sizes not reduced")
            example = Example(model_class(config).train(), inputs(config), [], _loss, name)
            with torch.no_grad():
                example.loss(example.model, example.batch)
            return example
        except Exception as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _loss(output: Any) -> torch.Tensor:
    """The model's own loss if it has one, else the mean square of its first output."""
    loss = output.get("loss") if hasattr(output, "get") else None
    return loss if loss is not None else first_tensor_loss(output)
