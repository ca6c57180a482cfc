"""Tells which operands tiles need, for many tiles at once: the rule that `Space.regions` has for one box.

A tile does not need an operand of which it reads only padding, nor a bias that another tile adds. The words
are those of space.py. An *access* is an operand with its indices. A *factor* is an operand of a product. A
bias is *added once*: by the tile at the origin of the *reduced* (summed) dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

from raddle.graph.space import Access


def needed_operands(
    operands: Sequence[Access], nonempty: Sequence[Any], at_origin: Any = None
) -> list[Any]:
    """Returns, for each operand, whether the tiles need it.

    The result for an operand is a boolean if there is one tile, else an array with a boolean for each.

    nonempty: for each operand, whether its region has elements. at_origin: whether the tiles contain the
    origin of the reduced dimensions (None: all do). An array that needs no change is returned as it is.
    """
    # f: whether the region of an operand has elements, n: whether the operand is needed
    need = [
        f & at_origin if access.added_once and at_origin is not None else f
        for access, f in zip(operands, nonempty, strict=True)
    ]
    factor_needs = [n for access, n in zip(operands, need, strict=True) if access.is_factor]
    # If the factors share one array (the same object), the same tiles need them: nothing changes.
    if all(n is factor_needs[0] for n in factor_needs):
        return need
    # If one factor is entirely padding, the product is zero, so no factor is needed.
    product_needed = reduce(and_, factor_needs)
    return [
        product_needed if access.is_factor else n for access, n in zip(operands, need, strict=True)
    ]
