"""All ranks have wrapped the same: else the first difference is named."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, zip_longest
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Line = tuple[str, str]  # what it is about, and what this rank has


def describe(
    names: Sequence[str],
    parameters: Sequence[Tensor],
    optimizer: Optimizer,
    settings: dict[str, Any],
) -> list[Line]:
    """What must be the same on all ranks."""
    lines = [(name, str(value)) for name, value in settings.items()]
    lines.append(("the optimizer", type(optimizer).__name__))
    for number, group in enumerate(optimizer.param_groups):
        for name, value in sorted(group.items()):
            if name not in ("params", "param_names"):
                held = value.tolist() if isinstance(value, Tensor) else value
                lines.append((f"{name} of parameter group {number}", repr(held)))
    for number, (name, p) in enumerate(zip(names, parameters, strict=True)):
        lines.append((f"parameter {number}", f"'{name}' {list(p.shape)} {p.dtype}"))
    return lines


ALIKE = "make the model, the optimizer and its wrapper alike on all ranks, in the same order"
SAME = "give all ranks the same model, plan and order"


def check_same(every: Sequence[Sequence[Line]], advice: str = ALIKE) -> None:
    """Raises ValueError where a rank's lines are not those of rank 0."""
    first = every[0]
    for rank, lines in enumerate(every):
        for number in range(max(len(first), len(lines))):
            here = first[number] if number < len(first) else (lines[number][0], "none")
            there = lines[number] if number < len(lines) else (here[0], "none")
            if here != there:
                raise ValueError(
                    f"{here[0]} is {here[1]} on rank 0, and on rank {rank} {there[0]} is {there[1]}: "
                    f"{advice}"
                )


def check_orders(every: Sequence[Sequence[tuple[tuple[int, ...], str]]]) -> None:
    """Raises ValueError where two ranks are about to sum in different orders what they sum together.

    By rank, its sums in their order: the ranks that take part, and what is summed.
    """
    for a, b in combinations(range(len(every)), 2):
        here = [what for ranks, what in every[a] if b in ranks]
        there = [what for ranks, what in every[b] if a in ranks]
        for number, (one, other) in enumerate(zip_longest(here, there, fillvalue="none")):
            if one != other:
                raise ValueError(
                    f"sum {number} of ranks {a} and {b} is {one} on rank {a} and {other} on rank {b}: "
                    f"{SAME}"
                )
