"""The traits of operator kinds, and that every kind declares them once."""

from __future__ import annotations

import pytest

from raddle.graph.operator_kind import declare
from raddle.graph.ops import OPERATOR_KINDS
from raddle.graph.traits import TRAITS, SavedTensors, Traits


def test_every_kind_says_what_its_backward_keeps() -> None:
    assert TRAITS.keys() == OPERATOR_KINDS.keys()
    assert {k for k, t in TRAITS.items() if t.is_view} == {
        "reshape",
        "permute",
        "expand",
        "select",
        "slice",
    }
    assert {k for k, t in TRAITS.items() if t.updates_buffer} == {"running"}
    assert all(TRAITS[k].is_cheap for k in TRAITS if TRAITS[k].is_view)
    assert TRAITS["linear"].saved_tensors == SavedTensors.FACTORS
    assert {k[:-2] for k, t in TRAITS.items() if t.strided} == {"conv", "max_pool", "avg_pool"}


def test_a_kind_is_declared_once() -> None:
    with pytest.raises(ImportError, match="two files declare operators of kind 'linear'"):
        declare("linear", "y[n] = x[n]", lambda site: lambda x: x, Traits(SavedTensors.NOTHING))
