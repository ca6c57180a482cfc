"""Changes the text of an operator's index notation: absent operands and named integers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# An operand in index notation with the sign before it, such as "* w[c k]".
_ACCESS = re.compile(r"[*+,]?\s*\w+\[[^\]]*\]")


def drop_operands(notation: str, missing: Sequence[int]) -> str:
    """Returns the notation without the operands that are absent, such as an optional bias."""
    if not missing:
        return notation
    outputs, assign, operands = re.split(r"(\s\w*\+?=)", notation, maxsplit=1)
    accesses = _ACCESS.findall(operands)
    present = [access for i, access in enumerate(accesses) if i not in missing]
    return outputs + assign + " ".join(["", *present])


def substitute(notation: str, integers: Mapping[str, int]) -> str:
    """Returns the notation with the names of attributes replaced by their integers."""
    for name, number in integers.items():
        if len(name) > 1:  # a name of one letter is a dimension
            notation = re.sub(rf"\b{name}\b", str(number), notation)
    return notation
