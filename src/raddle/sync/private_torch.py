"""The one file that uses private names of PyTorch: what raddle needs and has no public name, each with why.

The end of a backward. Whoever reads p.grad after `loss.backward()` has to find averages there, also where
some parameters had no gradient, so sums are waited for at the end of the backward; finishing them in
`step()` would be too late for clipping, and could make ranks wait for each other in a circle. PyTorch has
no public hook for that moment. `torch.autograd.graph.register_multi_grad_hook` comes closest, but it holds
each gradient until the last one has come, so that autograd copies all of them instead of handing them over,
and it makes `torch.autograd.grad` of a parameter an error. DistributedDataParallel uses the same callback
in C++, and FSDP in Python.

The job's store. Who keeps a sum waiting is said there. A store of our own would need one more port.

Hooks of an optimizer's step. They are meant for all parameters at once, and nothing public says whether
there are any.

tests/sync/test_private_torch.py checks all that is relied on, with any version.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


class BackwardEnd:
    """Calls `ended` once for each backward in which `watch` was called, when all gradients are there."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._task = -1  # the backward that runs

    def watch(self) -> None:
        """To be called in hooks of autograd, any number of times."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._task = -1
        self._on_end()


def default_store() -> dist.Store:  # type: ignore[name-defined]
    """The store by which the ranks of the job have found each other."""
    return dist.distributed_c10d._get_default_store()


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether something else is called before or after each step."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
