"""All ranks have wrapped the same: else the first difference is named."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, zip_longest
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Entry = tuple[str, str]  # what it is about, and what this rank has


def describe(
    names: Sequence[str],
    parameters: Sequence[Tensor],
    optimizer: Optimizer,
    settings: dict[str, Any],
) -> list[Entry]:
    """What must be the same on all ranks."""
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
    """Raises ValueError where a rank's lines are not those of rank 0."""
    first = entries_by_rank[0]
    for rank, entries in enumerate(entries_by_rank):
        for number in range(max(len(first), len(entries))):
            here = first[number] if number < len(first) else (entries[number][0], "none")
            there = entries[number] if number < len(entries) else (here[0], "none")
            if here != there:
                raise ValueError(
                    f"{here[0]} is {here[1]} on rank 0, and on rank {rank} {there[0]} is {there[1]}: "
                    f"{advice}"
                )


def check_orders(sums_by_rank: Sequence[Sequence[tuple[tuple[int, ...], str]]]) -> None:
    """Raises ValueError where two ranks are about to sum in different orders what they sum together.

    By rank, its sums in their order: the ranks that take part, and what is summed.
    """
    for a, b in combinations(range(len(sums_by_rank)), 2):
        here = [what for ranks, what in sums_by_rank[a] if b in ranks]
        there = [what for ranks, what in sums_by_rank[b] if a in ranks]
        for number, (one, other) in enumerate(zip_longest(here, there, fillvalue="none")):
            if one != other:
                raise ValueError(
                    f"sum {number} of ranks {a} and {b} is {one} on rank {a} and {other} on rank {b}: "
                    f"{PLAN_ADVICE}"
                )
