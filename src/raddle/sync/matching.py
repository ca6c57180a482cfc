"""All ranks have wrapped the same: else the first difference is named."""

from __future__ import annotations

from collections.abc import Sequence
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


def check_same(every: Sequence[Sequence[Line]]) -> None:
    """Raises ValueError where a rank's lines are not those of rank 0."""
    first = every[0]
    for rank, lines in enumerate(every):
        for number in range(max(len(first), len(lines))):
            here = first[number] if number < len(first) else (lines[number][0], "none")
            there = lines[number] if number < len(lines) else (here[0], "none")
            if here != there:
                raise ValueError(
                    f"{here[0]} is {here[1]} on rank 0, and on rank {rank} {there[0]} is {there[1]}: "
                    "make the model, the optimizer and its wrapper alike on all ranks, in the same order"
                )
