"""Floating-point operations of opaque operators, so that what is never split is not free of cost either.

A call without a formula counts one operation for each element of its result. The bytes that it reads and
writes cost time besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def opaque_flops_per_point(name: str, args: Sequence[Any]) -> int:
    """Returns the operations for each element of the result of an ATen call; args: its arguments.

    name: of the ATen function, such as cdist. The arguments that are tensors have a shape.
    """
    shapes = [a.shape for a in args if hasattr(a, "shape")]
    if not shapes or not shapes[0]:
        return 1
    features = int(shapes[0][-1])
    if "grouped_mm" in name:  # the product of each group of rows with the matrix of its group
        return 2 * features
    if "cdist" in name:  # difference, square and sum
        return 3 * features
    if "fft" in name and "shift" not in name and "freq" not in name:
        # The fast Fourier transform of n numbers takes about 5 n log2(n) operations (Cooley and Tukey).
        length = math.prod(shapes[0][-2:]) if name.endswith(("2", "n")) else features
        return math.ceil(5 * math.log2(max(length, 2)))
    return 1
