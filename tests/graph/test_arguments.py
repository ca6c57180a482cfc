"""Batches of any nesting are taken apart and put together again, and checked by name."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raddle.errors import InputError
from raddle.graph.arguments import BatchTemplate, leaves, map_leaves
from raddle.graph.step_module import batch_template


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Record:
    left: Any
    right: Any


LEAVES = st.one_of(st.builds(torch.tensor, st.integers(0, 9)), st.integers(), st.none(), st.text())
TREES = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.builds(Pair, part, part),
        st.builds(Record, part, part),
        st.dictionaries(st.sampled_from("abc"), part, max_size=3),
        st.dictionaries(st.sampled_from("abc"), part, max_size=3).map(UserDict),
        st.dictionaries(st.sampled_from("abc"), part, max_size=3).map(OrderedDict),
        st.tuples(part, part),
    ),
    max_leaves=8,
)


@given(TREES)
def test_a_tree_is_mapped_to_a_tree_of_the_same_types(tree: Any) -> None:
    before = leaves(tree)
    mapped = map_leaves(lambda path, leaf: (path, id(leaf)).__hash__(), tree)
    assert [path for path, _ in leaves(mapped)] == [path for path, _ in before]
    assert [leaf for _, leaf in leaves(mapped)] == [(p, id(leaf)).__hash__() for p, leaf in before]
    assert type(mapped) is type(tree) or before == [((), tree)]
    assert [id(leaf) for _, leaf in leaves(tree)] == [id(leaf) for _, leaf in before], "unchanged"


@given(TREES)
def test_a_template_takes_the_batch_it_was_made_of(tree: Any) -> None:
    template = batch_template(torch.nn.Identity(), tree, lambda model, batch: None)
    tensors = [leaf for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]
    assert len(template.names) == len(tensors)
    if len(set(template.names.values())) == len(tensors):
        assert [id(t) for t in template.tensors(tree).values()] == [id(t) for t in tensors]


X = torch.zeros(2)
TEMPLATE = BatchTemplate({("ids",): "ids", ("mask",): "mask"}, {("scale",): 2.0})


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ({"ids": X, "scale": 2.0}, "the batch has no 'mask': give ids, mask, as at capture"),
        (
            {"ids": X, "musk": X, "scale": 2.0},
            "the batch has no 'mask' and has 'musk', which the example had not: give ids, mask",
        ),
        ({"ids": X, "mask": X, "scale": 3.0}, "'scale' is 3.0, but was captured as 2.0: what is"),
        ({"ids": X, "mask": [1, 2], "scale": 2.0}, "'mask' is a list: give a tensor"),
        ({"ids": X, "mask": None, "scale": 2.0}, "'mask' is a NoneType: give a tensor"),
        ((X, X), "the batch has no 'ids', 'mask', 'scale' and has 'batch.0', 'batch.1'"),
    ],
)
def test_a_batch_that_is_not_as_captured_is_one_sentence(batch: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TEMPLATE.tensors(batch)


def test_the_order_of_keys_does_not_matter() -> None:
    tensors = TEMPLATE.tensors({"scale": 2.0, "mask": X + 1, "ids": X})
    assert list(tensors) == ["ids", "mask"]
    assert torch.equal(tensors["mask"], X + 1)
