"""Properties of operator kinds that their index notation does not say: for costs, memory and searches.

A file in ops/ gives them to `declare` with each operator kind, for example Traits(SavedTensors.INPUTS) for
an operator whose backward needs its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any


class SavedTensors(Enum):
    """A rule for which tensors of an operator PyTorch saves for its backward."""

    NOTHING = "nothing"
    INPUTS = "inputs"
    OUTPUT = "output"
    BOTH = "inputs and output"
    FACTORS = "factors"  # those operands that the gradient of another operand needs
    INDICES = "indices"  # the operands without a gradient: positions, masks


@dataclass(frozen=True)
class Traits:
    """The properties of one operator kind."""

    saved_tensors: SavedTensors
    # Saved for each element of the output: masks, indices of maxima; or a function of the operator.
    extra_saved_bytes: int | Callable[[Any], Fraction] = 0
    is_view: bool = False  # the output is a view of the input: no data is moved
    is_cheap: bool = False  # searches may place it together with an operator that reads its result
    # The key of Device.efficiency (fractions of a device's peak rates) that applies: "conv" or "attention".
    # If it is "", the key is "matmul" for products and "memory" for all other operators.
    family: str = ""
    # The operator computes the new value of a buffer, such as running statistics: it has no gradient, and
    # may run on every device.
    updates_buffer: bool = False
    # The operator's windows may ignore the last elements of its input, which are then outside of the
    # region. Its kernel may be given them all the same (_untrimmed_region in runtime/code_generator.py).
    strided: bool = False


TRAITS: dict[str, Traits] = {}  # by name of the kind; filled by `declare`
