"""Refuses models with tensors that share memory, such as two views of one tensor, if a step writes to one.

A captured graph treats them as separate values: a write to one of them would not change the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

from torch import Tensor

from raddle.errors import InputError

NamedTensor = tuple[str, Tensor]


def refuse_parameters_as_inputs(
    inputs: Iterable[tuple[str, Any]], parameters: Iterable[NamedTensor]
) -> None:
    """Refuses an input that shares memory with a trained parameter, whose gradient would be incomplete."""
    trained = [(name, p) for name, p in parameters if p.requires_grad]
    for name, value in inputs:
        for parameter_name, parameter in trained:
            if isinstance(value, Tensor) and value.requires_grad and _overlap(value, parameter):
                raise InputError(
                    f"'{name}' shares memory with the trained parameter '{parameter_name}', and no "
                    "gradient flows through an input: give x.detach()."
                )


def refuse_shared_memory(
    states: Iterable[NamedTensor], constants: Sequence[NamedTensor], written: set[str]
) -> None:
    """Refuses shared memory of tensors if the model or the optimizer writes to one of them.

    states: the parameters and buffers. constants: tensors that the code of the model or loss uses directly;
    a graph holds copies of them. written: names of the parameters and buffers that a step writes.
    """
    constant_names = {name for name, _ in constants}
    for pair in _overlapping_pairs([*states, *constants]):
        written_name = next((name for name in pair if name in written), None)
        if written_name is None:
            continue
        other_name = pair[1] if written_name == pair[0] else pair[0]
        if other_name in constant_names:
            raise InputError(
                f"the model or its loss uses '{written_name}' through a variable of its own, and a graph "
                "would hold a copy that never changes: use the module's attribute in each call instead."
            )
        raise InputError(
            f"a step writes to '{written_name}', which shares memory with '{other_name}': "
            "keep them in tensors of their own."
        )


def _overlapping_pairs(named: Iterable[NamedTensor]) -> Iterator[tuple[str, str]]:
    """Yields pairs of names of different tensors that have memory in common."""
    storages: list[Any] = []  # keeps the storage objects alive, so that their ids stay unique
    groups: dict[int, list[NamedTensor]] = {}
    for name, tensor in named:
        storages.append(tensor.untyped_storage())
        groups.setdefault(id(storages[-1]), []).append((name, tensor))
    for group in groups.values():
        for (first_name, first), (second_name, second) in combinations(group, 2):
            if first is not second and _overlap(first, second):
                yield first_name, second_name


def _overlap(a: Tensor, b: Tensor) -> bool:
    (start, end), (other_start, other_end) = _byte_range(a), _byte_range(b)
    same = a.untyped_storage() is b.untyped_storage()
    return same and start < other_end and other_start < end


def _byte_range(tensor: Tensor) -> tuple[int, int]:
    """Returns the range of bytes of its storage in which a tensor's elements lie."""
    element_bytes = tensor.element_size()
    begin = int(tensor.storage_offset()) * element_bytes
    if not tensor.numel():
        return begin, begin
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * element_bytes
