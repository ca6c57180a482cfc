"""Checks that all ranks have the same model, optimizer and order of sums; the error names the difference.

A sum is an all-reduce of gradients. Each rank describes its model and optimizer as a list of entries: pairs
of a name and a value, such as ("lr of parameter group 0", "0.1").
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, zip_longest
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Entry = tuple[str, str]  # name, value on this rank


def describe(
    names: Sequence[str],
    parameters: Sequence[Tensor],
    optimizer: Optimizer,
    settings: dict[str, Any],
) -> list[Entry]:
    """Returns entries for all that must be the same on all ranks."""
    entries = [(name, str(value)) for name, value in settings.items()]
    entries.append(("the optimizer", type(optimizer).__name__))
    for number, group in enumerate(optimizer.param_groups):
        for name, value in sorted(group.items()):
            if name not in ("params", "param_names"):
                plain_value = value.tolist() if isinstance(value, Tensor) else value
                entries.append((f"{name} of parameter group {number}", repr(plain_value)))
    for number, (name, p) in enumerate(zip(names, parameters, strict=True)):
        entries.append((f"parameter {number}", f"'{name}' {list(p.shape)} {p.dtype}"))
    return entries


WRAP_ADVICE = "make the model, the optimizer and its wrapper alike on all ranks, in the same order"
PLAN_ADVICE = "give all ranks the same model, plan and order"


def check_same(entries_by_rank: Sequence[Sequence[Entry]], advice: str = WRAP_ADVICE) -> None:
    """Raises ValueError if a rank's entries differ from those of rank 0. advice: the end of the message."""
    entries_0 = entries_by_rank[0]
    for rank, entries in enumerate(entries_by_rank):
        for number in range(max(len(entries_0), len(entries))):
            # The entries with this number on rank 0 and on `rank`; a missing one counts as "none".
            name_0, value_0 = (
                entries_0[number] if number < len(entries_0) else (entries[number][0], "none")
            )
            name, value = entries[number] if number < len(entries) else (name_0, "none")
            if (name_0, value_0) != (name, value):
                raise ValueError(
                    f"{name_0} is {value_0} on rank 0, and on rank {rank} {name} is {value}: {advice}"
                )


def check_orders(sums_by_rank: Sequence[Sequence[tuple[tuple[int, ...], str]]]) -> None:
    """Raises ValueError if two ranks are about to sum in different orders.

    sums_by_rank: for each rank its sums in order, each as (the ranks that take part, a description).
    a, b: two ranks, of which only common sums are compared.
    """
    for a, b in combinations(range(len(sums_by_rank)), 2):
        sums_a = [description for ranks, description in sums_by_rank[a] if b in ranks]
        sums_b = [description for ranks, description in sums_by_rank[b] if a in ranks]
        for number, (on_a, on_b) in enumerate(zip_longest(sums_a, sums_b, fillvalue="none")):
            if on_a != on_b:
                raise ValueError(
                    f"sum {number} of ranks {a} and {b} is {on_a} on rank {a} and {on_b} on rank {b}: "
                    f"{PLAN_ADVICE}"
                )
