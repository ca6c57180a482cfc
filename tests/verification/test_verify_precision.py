"""`raddle verify` of modules with casts: it uses the tolerance of float64, and still detects errors."""

from __future__ import annotations

import json
import pathlib
import signal
import sys
from typing import Any
from unittest import mock

import pytest
import torch
from casting_modules import DTYPES, usable_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from raddle import zoo
from raddle.cli import main as cli
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.plans import plan_file
from raddle.runtime.execution.parameter_updater import ParameterUpdater
from raddle.runtime.job import load_job
from raddle.searches.planning import plan_for
from raddle.verification.precision import DoublePrecisionMode
from raddle.verification.verify_plan import TOLERANCE, verify

USABLE = usable_blocks()
accumulate = ParameterUpdater.accumulate


def off_by_little(self: Any, weights: Any, gradients: Any) -> None:
    accumulate(self, weights, [None if g is None else g * (1 + 1e-6) for g in gradients])


def write_plan(folder: pathlib.Path, text: str, method: str = "data", **more: Any) -> str:
    """Write a model file with this text, and a plan for it; return the path of the plan."""
    (folder / "mine.py").write_text(text)
    name = f"{folder}/mine.py:build"
    work = zoo.load(name)
    graph = capture(work.model, work.batch, work.loss, name=work.name)
    made = plan_for(graph, cluster("local:2"), method, model=name, **more)
    plan_file.save(made, graph, folder / "plan.json")
    return str(folder / "plan.json")


def casting(blocks: list[tuple[str, str]]) -> str:
    return f"import casting_modules\n\ndef build():\n    return casting_modules.build({blocks!r})\n"


def failed_checks(result: dict[str, Any]) -> Any:
    return result["failure"] or [check for check in result["checks"] if not check["holds"]]


@settings(max_examples=6)
@given(
    st.lists(st.sampled_from(USABLE), min_size=1, max_size=4), st.sampled_from(["data", "model"])
)
def test_it_holds_and_can_fail_whatever_the_module_casts_to(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[tuple[str, str]], method: str
) -> None:
    path = write_plan(tmp_path_factory.mktemp("casts"), casting(blocks), method)
    result = verify(path, threads=True, steps=1)
    assert failed_checks(result) == []
    assert result["tolerance"] == TOLERANCE == 1e-9
    with mock.patch.object(ParameterUpdater, "accumulate", off_by_little):
        result = verify(path, threads=True, steps=1)
    assert "gradients" in [check["what"] for check in result["checks"] if not check["holds"]]


def test_every_type_and_every_way_to_cast_in_one_module(tmp_path: pathlib.Path) -> None:
    # Each type with the last way to cast to it, and each way with its first type.
    some = {name: (way, name) for way, name in USABLE}
    some |= {way: (way, name) for way, name in reversed(USABLE)}
    assert len({name for _, name in USABLE}) > len(DTYPES) / 2
    result = verify(write_plan(tmp_path, casting([*some.values()])), threads=True, steps=1)
    assert failed_checks(result) == []
    assert result["casts"]["bfloat16"] > 1
    explanation = result["precision"]
    assert explanation.startswith("compared in float64: casts inside the model are neutralised (")
    assert "to bfloat16" in explanation
    assert "the tolerance of 1e-09 is one of float64" in explanation


LLAMA = """
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

class Logits(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, vocab_size=23)
        heads = dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16)
        self.llama = LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False))

    def forward(self, ids):
        return self.llama(input_ids=ids).logits

def loss(model, batch):
    ids, targets = batch
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

def build(batch=4):
    ids = torch.randint(0, 23, (batch, 6))
    return Logits(), (ids[:, :-1], ids[:, 1:].contiguous()), loss
"""


def test_llama_by_command(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("transformers")
    path = write_plan(tmp_path, LLAMA, "model")
    monkeypatch.setattr(
        sys, "argv", ["raddle", "verify", path, "--threads", "--steps", "1", "--json"]
    )
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    result = json.loads(capsys.readouterr().out)
    assert failed_checks(result) == []
    assert result["dtype"] == "float64"


DEPENDS = """
import torch
from torch import nn

class Depends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return (y.sin() if y.dtype == torch.float32 else y.cos()).sum()

def build():
    return Depends(), (torch.randn(4, 4),)
"""


def test_code_that_depends_on_the_precision_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    path = write_plan(tmp_path, DEPENDS)
    with pytest.raises(InputError, match="has other operators in float64 than in float32"):
        load_job(path, dtype="float64", device="meta")  # as `raddle run --dtype float64` does
    with pytest.raises(InputError, match=r"computes 'sin' \(sin\) where it computes 'cos' \(cos\)"):
        verify(path, threads=True, steps=1)


@pytest.mark.parametrize("name", ["torch.HalfTensor", torch.HalfTensor, torch.float16])
def test_old_names_of_types_are_raised_too(name: Any) -> None:
    x = torch.tensor([0.1], dtype=torch.float64)
    assert x.type(name).dtype == torch.float16
    with DoublePrecisionMode():
        assert x.type(name).item() == 0.1
