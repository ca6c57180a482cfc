"""Takes a snapshot of a module before its forward is traced, and restores the module afterwards.

A forward may do anything to its module: install hooks at the first call, count calls, append activations to
a list, switch to `eval()`. Tracing runs it on tensors without data, so these changes must be undone. The
snapshot does not depend on names of attributes: every dictionary, list and set that can be reached from the
module (hooks, parameters, buffers and children are stored in such) gets its content back, and every object
its attributes.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

Restore = Callable[[], None]  # undoes one change


@contextmanager
def restore_on_exit(*roots: Any) -> Iterator[None]:
    """Restores the roots, all objects reachable from them, and the global state of the process.

    Global state: random generators, the default dtype, the autograd mode and hooks of all modules.
    """
    with ExitStack() as stack:
        for restore in (*_save_process_state(), *_Snapshot(roots).restores):
            stack.callback(restore)
        yield


def _save_process_state() -> Iterator[Restore]:
    """Saves the global state of the process; yields functions that restore it."""
    for get, put in (
        (torch.get_rng_state, torch.set_rng_state),
        (random.getstate, random.setstate),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
    ):
        yield _deferred(put, get())
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield _deferred(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    if (numpy := sys.modules.get("numpy")) is not None:
        yield _deferred(numpy.random.set_state, numpy.random.get_state())
    for value in vars(nn.modules.module).values():  # global module hooks
        if isinstance(value, OrderedDict):
            yield _ContainerSnapshot(value).restore


def _deferred(put: Callable[[Any], Any], value: Any) -> Restore:
    """Returns a function that calls put(value) later."""
    return lambda: put(value)


class _Snapshot:
    """The state of everything reachable from some objects; `restores` has functions that restore it."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.restores: list[Restore] = []
        self._seen: dict[int, Any] = {}  # by id; keeps them alive, so that ids stay unique
        # Ids of parameters and buffers. Their values are not saved: tracing uses other tensors for them.
        self._states: set[int] = set()
        pending: list[tuple[Any, bool]] = [(root, True) for root in roots]
        while pending:
            value, in_module = pending.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                pending += self._visit(value, in_module)

    def _visit(self, value: Any, in_module: bool) -> Iterable[tuple[Any, bool]]:
        """Saves one object; returns what it refers to.

        in_module: whether the object was reached through modules and containers only. A tensor reached in
        another way, such as an attribute of a user's object, gets back only its requires_grad and gradient.
        """
        if isinstance(value, Tensor):
            self._save_tensor(value, in_module)
            return ()
        if isinstance(value, nn.Module):
            states = [*value.parameters(recurse=False), *value.buffers(recurse=False)]
            self._states.update(map(id, states))
        if isinstance(value, (dict, list, set, deque)):
            return [(item, in_module) for item in self._save_container(value)]
        if isinstance(value, (tuple, frozenset)):
            return [(item, in_module) for item in value]
        if (restore_generator := _save_generator(value)) is not None:
            self.restores.append(restore_generator)
            return ()
        if isinstance(value, (type, ModuleType)) or _is_standard_library(value):
            return ()
        in_module = in_module and isinstance(value, nn.Module)
        self.restores.append(_save_class(value))
        return [(item, in_module) for item in self._save_container(vars(value))]

    def _save_container(self, container: Any) -> Sequence[Any]:
        content = _ContainerSnapshot(container)
        self.restores.append(content.restore)
        return content.values

    def _save_tensor(self, tensor: Tensor, in_module: bool) -> None:
        """Saves requires_grad and the gradient of a tensor; also its values, if it is kept in a module.

        The values of parameters and buffers are not saved.
        """
        requires_grad, gradient = tensor.requires_grad, tensor.grad if tensor.is_leaf else None
        saved_values = None
        if in_module and id(tensor) not in self._states and not tensor.is_meta:
            saved_values = tensor.detach().clone()

        def restore() -> None:
            if saved_values is not None and not torch.equal(tensor.detach(), saved_values):
                tensor.detach().copy_(saved_values)
            if tensor.is_leaf:
                if tensor.requires_grad != requires_grad:
                    tensor.requires_grad_(requires_grad)
                if tensor.grad is not gradient:
                    tensor.grad = gradient

        self.restores.append(restore)


class _ContainerSnapshot:
    """The content of a dictionary, list, set or deque."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._saved_items: list[Any] = self._items()

    @property
    def values(self) -> list[Any]:
        if isinstance(self._container, dict):
            return [value for _, value in self._saved_items]
        return self._saved_items

    def restore(self) -> None:
        """Restores the content of the same container object, if it changed."""
        now = self._items()
        if len(now) == len(self._saved_items) and all(map(_same_item, now, self._saved_items)):
            return
        container_types: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
        container_type = next(k for k in container_types if isinstance(self._container, k))
        container_type.clear(self._container)  # a subclass may override its methods
        fill = container_type.update if hasattr(container_type, "update") else container_type.extend
        fill(self._container, self._saved_items)

    def _items(self) -> list[Any]:
        if isinstance(self._container, dict):
            return list(dict.items(self._container))
        return list(self._container)


def _same_item(now: Any, before: Any) -> bool:
    """Returns whether two items are the same object, or pairs (key, value) of the same two objects."""
    if now is before:
        return True
    pairs = type(now) is tuple and type(before) is tuple and len(now) == len(before) == 2
    return pairs and now[0] is before[0] and now[1] is before[1]


def _save_generator(value: Any) -> Restore | None:
    """Returns a function that restores a random generator of torch, Python or numpy.

    Returns None for other objects.
    """
    if isinstance(value, torch.Generator):
        return _deferred(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return _deferred(value.setstate, value.getstate())
    if type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
        bits = value.bit_generator
        return _deferred(lambda state: setattr(bits, "state", state), bits.state)
    return None


def _is_standard_library(value: Any) -> bool:
    """Returns whether an object is not saved.

    Such objects are from the standard library (a logger) or have no attributes.
    """
    top_package = type(value).__module__.partition(".")[0]
    return top_package in sys.stdlib_module_names or not hasattr(value, "__dict__")


def _save_class(value: Any) -> Restore:
    """Saves the class: a lazy module of torch (nn.LazyLinear) changes its class at the first call."""
    before = type(value)

    def restore() -> None:
        if type(value) is not before:
            object.__setattr__(value, "__class__", before)

    return restore
