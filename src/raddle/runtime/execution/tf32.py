"""Switches TF32 on while a step runs, if the plan's precision asks for it, and restores PyTorch's switches.

PyTorch has a switch for products and one for convolutions, both for the whole process. Ranks that are
threads of one process share them: the first that enters switches, the last that leaves restores.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tf32_products(*, enabled: bool) -> Iterator[None]:
    """In this context, float32 products and convolutions compute in TF32 on GPUs that have it.

    enabled: if False, PyTorch's switches stay as they are.

    >>> with tf32_products(enabled=True):
    ...     torch.get_float32_matmul_precision()
    'high'
    >>> torch.get_float32_matmul_precision()
    'highest'
    """
    if not enabled:
        yield
        return
    _SWITCHES.enter()
    try:
        yield
    finally:
        _SWITCHES.leave()


class _Switches:
    """PyTorch's switches for TF32, and what they were before the first rank switched TF32 on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0  # ranks of this process that are between `enter` and `leave`
        self._products: str | None = None
        self._convolutions = False

    def enter(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            self._products, self._convolutions = (
                _product_precision(),
                torch.backends.cudnn.allow_tf32,
            )
            if self._products is not None:
                torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            if self._products is not None:
                torch.set_float32_matmul_precision(self._products)
            torch.backends.cudnn.allow_tf32 = self._convolutions


_SWITCHES = _Switches()  # one for the process, as PyTorch's are


def _product_precision() -> str | None:
    """Returns PyTorch's switch for products; None: the newer switch, `fp32_precision`, has set TF32."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # both switches were used, and they differ
        return None
