"""The one file that uses private names of PyTorch, and the reason for each.

The end of a backward. After `loss.backward()` p.grad has to contain averages, also if some parameters had
no gradient, so raddle waits for the sums at the end of the backward. To wait in `step()` would be too
late for clipping, and ranks could deadlock: a GradScaler that sees gradients before they are summed may
skip the step on some ranks only. PyTorch has no public hook for this moment.
`torch.autograd.graph.register_multi_grad_hook` comes closest, but it holds each gradient until the last
one has come, so autograd copies all of them, and it makes `torch.autograd.grad` of a parameter an error.
DistributedDataParallel uses the same callback in C++, and FSDP in Python.

The job's store. The stall inspector writes there which rank waits. A second store would need one more port.

Hooks of an optimizer's step. They are meant for all parameters at once, so an optimizer that has some
cannot update slice by slice. No public function tells whether it has any.

tests/sync/test_private_torch.py checks what raddle relies on, with any version of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist


class BackwardEnd:
    """Calls `on_end` once at the end of each backward in which `watch` was called."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._task = -1  # id of the backward that runs; -1: none

    def watch(self) -> None:
        """Asks for the call at the end of the backward that runs now. Called in hooks of autograd."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._task = -1
        self._on_end()


def default_store() -> dist.Store:  # type: ignore[name-defined]
    """Returns the store through which the ranks of the job have found each other."""
    return dist.distributed_c10d._get_default_store()


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the optimizer has hooks before or after its step."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
