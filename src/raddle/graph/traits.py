"""What a kind of operator says of itself beside its line of notation: whoever needs to know asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SavedTensors(Enum):
    """What PyTorch keeps of an operator for its backward."""

    NOTHING = "nothing"
    INPUTS = "inputs"
    OUTPUT = "output"
    BOTH = "inputs and output"
    FACTORS = "factors"  # an operand is needed for the gradients of the others
    INDICES = "indices"  # operands without a gradient: positions, masks


@dataclass(frozen=True)
class Traits:
    """Of a kind of operator."""

    saved_tensors: SavedTensors
    extra_saved_bytes: int = (
        0  # bytes kept for each element of the output: masks, and where a maximum was
    )
    is_view: bool = False  # it only changes how memory is looked at
    is_cheap: bool = False  # it costs little: it goes with whoever reads its result
    family: str = ""  # whose efficiency applies: "" is matmul for products, else memory
    updates_buffer: bool = (
        False  # it updates a buffer beside the step: no gradient, and it may be everywhere
    )
    strided: bool = False  # it reads windows at a stride: what it reads may be a bit larger


TRAITS: dict[str, Traits] = {}  # by kind, as `declare` fills it
