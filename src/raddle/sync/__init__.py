"""Data-parallel training: keeps the copies of the parameters on all ranks the same.

The runtime uses this package to run plans. Any training script can use it too, with five lines as in
Horovod:

from raddle import sync

sync.init()                         # joins torchrun's job, or the process group that exists
sync.broadcast(model)               # all ranks start with the parameters and buffers of rank 0
optimizer = sync.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, sync="p3")
...                                 # loss.backward(); optimizer.step(); optimizer.zero_grad()
sync.close()

`sync` names a sync kind, as in plans (raddle/plans/sync): "p3" sends slices of parameters, the most urgent
first.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raddle.sync.session import broadcast, close, init, rank, report, size
    from raddle.sync.wrapped_optimizer import Optimizer

__all__ = ["Optimizer", "broadcast", "close", "init", "rank", "report", "size"]

# Public name -> the module that defines it. Modules are imported on first use, because the transports
# import this package and session.py imports the transports.
_PUBLIC = dict.fromkeys(("broadcast", "close", "init", "rank", "report", "size"), "session")
_PUBLIC["Optimizer"] = "wrapped_optimizer"


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value  # the next access does not call __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
