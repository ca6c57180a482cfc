"""Provides models to plan for: networks of the papers, a tiny version of each, and any `file.py:function`.

load("resnet50", batch=64) returns a Workload: the module, one example batch and the loss.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raddle.zoo.loading import load
    from raddle.zoo.registry import names
    from raddle.zoo.workload import Workload

__all__ = ["Workload", "load", "names"]

# Public name -> its module, which is imported at first use: `import raddle.zoo` must not import torch.
_PUBLIC = {
    "Workload": "raddle.zoo.workload",
    "load": "raddle.zoo.loading",
    "names": "raddle.zoo.registry",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
