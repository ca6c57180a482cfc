"""Precisions: the text in a plan, the dtypes that follow from it, and errors that say what there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_plans import random_plan
from small_models import mlp

from raddle.errors import InputError
from raddle.plans.precision import DTYPES, EXAMPLES, KINDS, Precision, read_precision
from raddle.plans.validation import validate

BF16, FP16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("float32", Precision()),
        ("tf32", Precision("tf32")),
        ("bf16", Precision("bf16")),
        ("fp16", Precision("fp16")),
        ("bf16:pure", Precision("bf16", pure=True)),
        ("bf16,gather=bf16", Precision("bf16", gather=BF16)),
        ("bf16:gather=bf16,reduce=float32", Precision("bf16", gather=BF16, reduce=F32)),
        ("bf16:pure,reduce=float32", Precision("bf16", pure=True, reduce=F32)),
        ("float32,reduce=fp16", Precision(reduce=FP16)),
    ],
)
def test_reads(text: str, precision: Precision) -> None:
    assert read_precision(text) == precision


@given(
    kind=st.sampled_from(KINDS),
    options=st.lists(
        st.sampled_from([f"{o}={d}" for o in ("gather", "reduce") for d in DTYPES]),
        max_size=2,
        unique_by=lambda option: option.split("=")[0],
    ),
)
def test_options_may_come_in_any_order(kind: str, options: list[str]) -> None:
    texts = [",".join([kind, *order]) for order in (options, options[::-1])]
    assert read_precision(texts[0]) == read_precision(texts[1])


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("", ""),
        ("float16", ""),
        ("bfloat16", ""),
        ("fp16:pure", "pure"),
        ("bf16:pure,pure", "pure"),
        ("bf16,gather", "gather"),
        ("bf16,gather=int8", "gather=int8"),
        ("bf16,gather=bf16,gather=fp16", "gather=fp16"),
        ("bf16,master", "master"),
    ],
)
def test_refuses_other_texts(text: str, option: str) -> None:
    with pytest.raises(InputError) as caught:
        read_precision(text)
    detail = f", which has '{option}'" if option else ""
    assert str(caught.value) == f"precision is '{text}'{detail}: choose as in {EXAMPLES}."


def test_all_examples_are_precisions() -> None:
    for text in EXAMPLES.split(", "):
        read_precision(text)


def test_dtypes() -> None:
    """The dtypes that parameters have, are gathered in and whose gradients are summed in."""
    dtypes = {
        text: (
            p.autocast,
            p.parameter_dtype(F32),
            p.master_dtype(F32),
            p.gather_dtype(p.parameter_dtype(F32)),
            p.reduce_dtype(p.parameter_dtype(F32)),
        )
        for text in ("float32", "tf32", "bf16", "fp16", "bf16:pure", "bf16:pure,reduce=float32")
        for p in (read_precision(text),)
    }
    assert dtypes == {
        "float32": (None, F32, None, F32, F32),
        "tf32": (None, F32, None, F32, F32),
        "bf16": (BF16, F32, None, F32, F32),
        "fp16": (FP16, F32, None, F32, F32),
        "bf16:pure": (None, BF16, F32, BF16, BF16),
        "bf16:pure,reduce=float32": (None, BF16, F32, BF16, F32),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_only_float32_parameters_change(dtype: torch.dtype) -> None:
    precision = read_precision("bf16:pure,gather=fp16,reduce=bf16")
    assert precision.parameter_dtype(dtype) == dtype
    assert precision.master_dtype(dtype) is None
    assert precision.gather_dtype(dtype) == precision.reduce_dtype(dtype) == dtype


def test_a_plan_is_refused_for_a_precision_that_it_cannot_use() -> None:
    graph = mlp()
    plan = random_plan(graph, 2, 0)
    with pytest.raises(InputError, match="precision is 'half': choose as in float32, tf32"):
        validate(replace(plan, precision="half"), graph)
    for text in ("bf16,reduce=float32", "bf16,gather=bf16"):
        with pytest.raises(InputError, match="'allreduce' shards no parameters: leave"):
            validate(replace(plan, precision=text), graph)
        validate(replace(plan, precision=text, sync="sharded"), graph)
