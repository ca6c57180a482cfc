"""raddle finds the fastest way to train a PyTorch module on a cluster, simulates it and runs it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raddle.errors import InputError
    from raddle.graph.capture import capture
    from raddle.graph.graph import Graph
    from raddle.run.trainer import Trainer, parallelize

__version__ = "0.1.0"

__all__ = ["Graph", "InputError", "Trainer", "__version__", "capture", "parallelize"]

# Public name -> its module, imported on first use: `import raddle` must not wait for torch.
_PUBLIC = {
    "capture": "raddle.graph.capture",
    "Graph": "raddle.graph.graph",
    "InputError": "raddle.errors",
    "Trainer": "raddle.run.trainer",
    "parallelize": "raddle.run.trainer",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
