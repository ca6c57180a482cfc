"""raddle finds the fastest way to train a PyTorch module on a cluster, simulates it and runs it."""

from importlib import import_module
from typing import TYPE_CHECKING

from raddle.version import __version__

if TYPE_CHECKING:
    from raddle.api.training import parallelize
    from raddle.clusters import cluster
    from raddle.errors import InputError
    from raddle.graph.capture import capture
    from raddle.graph.graph import Graph
    from raddle.graph.supervised import supervised
    from raddle.reports.page.page_report import report
    from raddle.runtime.trainer import Trainer
    from raddle.searches.planning import plan_for as search

__all__ = [
    "Graph", "InputError", "Trainer", "__version__", "capture", "cluster", "parallelize", "report",
    "search", "supervised",
]  # fmt: skip

# Public name -> (module, name in that module). A name is imported at its first use, so that `import raddle`
# is fast.
_PUBLIC = {
    "capture": ("raddle.graph.capture", "capture"),
    "cluster": ("raddle.clusters", "cluster"),
    "search": ("raddle.searches.planning", "plan_for"),
    "supervised": ("raddle.graph.supervised", "supervised"),
    "report": ("raddle.reports.page.page_report", "report"),
    "parallelize": ("raddle.api.training", "parallelize"),
    "Graph": ("raddle.graph.graph", "Graph"),
    "Trainer": ("raddle.runtime.trainer", "Trainer"),
    "InputError": ("raddle.errors", "InputError"),
}


def __getattr__(name: str) -> object:
    """Imports a public name at its first use, and returns its value."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value  # the next access does not call __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
