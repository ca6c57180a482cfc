"""Which operands tiles need: what `Space.regions` says of one tile, for as many at a time as there are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

from raddle.graph.space import Access


def needed_operands(
    operands: Sequence[Access], nonempty: Sequence[Any], at_origin: Any = None
) -> list[Any]:
    """By operand, whether tiles need it: booleans, or arrays of them; what nothing changes stays itself.

    `full`: by operand, whether its regions have elements; `first`: whether the tiles hold the origin of the
    summed dimensions (None: all of them do).
    """
    need = [
        f & at_origin if access.added_once and at_origin is not None else f
        for access, f in zip(operands, nonempty, strict=True)
    ]
    factors = [n for access, n in zip(operands, need, strict=True) if access.is_factor]
    if all(n is factors[0] for n in factors):
        return need
    # One factor lies wholly in the padding: the product is zero, whatever the others are.
    product_needed = reduce(and_, factors)
    return [
        product_needed if access.is_factor else n for access, n in zip(operands, need, strict=True)
    ]
