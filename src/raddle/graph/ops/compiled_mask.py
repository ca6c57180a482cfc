"""Compiles the function of an exact dropout mask, for dropout that runs eagerly on a GPU.

An exact mask is a hash (random.py) of about 25 elementwise operations. torch.compile makes one kernel of
them; eagerly they are 25 kernels, and a step of gpt in bfloat16 took a third longer. So masks are compiled
also where nothing else is. The bits are the same. What cannot be compiled runs as it is.
"""

from __future__ import annotations

import types
from collections.abc import Callable

import torch
from torch import Tensor

# Returns which elements are kept, from the seed and the stream.
Mask = Callable[[Tensor, Tensor | int], Tensor]


class CompiledMask:
    """The function of one mask, compiled when it is called for the first time."""

    def __init__(self, function: Mask) -> None:
        self.function = function
        # A code object of its own: torch.compile limits how often it compiles one code object.
        of_its_own = types.FunctionType(
            function.__code__.replace(), function.__globals__, closure=function.__closure__
        )
        self._compiled: Mask | None = torch.compile(of_its_own, dynamic=False, fullgraph=True)

    @property
    def compiles(self) -> bool:
        """Whether compiling has not failed so far."""
        return self._compiled is not None

    def __call__(self, seed: Tensor, stream: Tensor | int) -> Tensor:
        number = stream if isinstance(stream, Tensor) else torch.tensor(stream, dtype=torch.int32)
        if self._compiled is not None:
            try:
                return self._compiled(seed, number)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # compilers raise errors of many kinds
                self._compiled = None
        return self.function(seed, number)
