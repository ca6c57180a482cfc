"""Searches find plans for Hugging Face models: pipelines, OptCNN's optima and `auto`."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.program.checks.check import check
from raddle.searches.comparison import plan_and_predict
from raddle.searches.settings import Settings

hf = pytest.importorskip("transformers")

SAMPLES, TOKENS = 4, 8
TEXT = {
    "vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "max_position_embeddings": 16,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "use_cache": False,
}  # fmt: skip
ROTARY = ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma", "StableLm", "Olmo2")
SWIN = {
    "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2],
    "window_size": 4, "num_labels": 5, "drop_path_rate": 0.0, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


@cache
def graph_of(name: str) -> Graph:
    """The graph of a small model with its loss, captured on the meta device."""
    image = name == "Swin"
    made = getattr(hf, f"{name}For{'ImageClassification' if image else 'CausalLM'}")
    with torch.device("meta"):
        model = made(made.config_class(**(SWIN if image else TEXT)))
        inputs: dict[str, Tensor] = (
            {"pixel_values": torch.zeros(SAMPLES, 3, 16, 16)}
            if image
            else {"input_ids": torch.zeros(SAMPLES, TOKENS, dtype=torch.long)}
        )
        labels = torch.zeros((SAMPLES,) if image else (SAMPLES, TOKENS), dtype=torch.long)
    return capture(
        model, {**inputs, "labels": labels}, supervised(lambda out: out.loss, targets=0), name=name
    )


def search(name: str, method: str, on: str = "p100:1x2") -> Any:
    options = Settings(budget=0.2, proposals=20)
    evaluated = plan_and_predict(graph_of(name), cluster(on), method, settings=options)
    check(evaluated.timeline.program)
    return evaluated


@pytest.mark.parametrize("name", ROTARY)
def test_models_with_rotary_embeddings_are_cut_into_stages(name: str) -> None:
    plan = search(name, "pipeline").plan
    assert len(plan.stages) == 2


ALL = [(name, method) for name in (*ROTARY, "Swin") for method in ("optcnn", "auto")]
QUICK = {("Llama", "auto"), ("Swin", "optcnn"), ("Swin", "auto")}


@pytest.mark.parametrize(
    ("name", "method"),
    [pytest.param(*c, marks=[] if c in QUICK else [pytest.mark.slow]) for c in ALL],
)
def test_models_are_searched_and_nothing_fails(name: str, method: str) -> None:
    row = search(name, method).row
    assert row["fits"]
    assert [f for f in row.get("failed", ()) if not f["refused"]] == []
    if method == "auto":
        pipelines = [t["name"] for t in row["tried"] if "stages" in t["name"]]
        assert any("micro-batches" in pipeline for pipeline in pipelines)
