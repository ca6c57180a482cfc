"""Keeps a module as it was while its forward is traced: a trace must leave nothing behind.

A forward may do anything to its module: install hooks at the first call, count calls, keep a list of
activations, switch to `eval()`. Tracing runs it on tensors without numbers, so whatever it leaves would be
wrong at best. Attributes are put back by what they are, not by their names: every dictionary, list and set
that can be reached from the module (hooks of all kinds, parameters, buffers and children are such) gets its
content back, and every object its attributes.
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

Restore = Callable[[], None]


@contextmanager
def unchanged(*roots: Any) -> Iterator[None]:
    """Puts back all attributes of the roots and of what they hold, and what the process has one of."""
    with ExitStack() as stack:
        for restore in (*_settings(), *_Held(roots).restores):
            stack.callback(restore)
        yield


def _settings() -> Iterator[Restore]:
    """What a forward may set for the whole process: generators, the default type, the mode of autograd."""
    for get, put in (
        (torch.get_rng_state, torch.set_rng_state),
        (random.getstate, random.setstate),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
    ):
        yield _later(put, get())
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield _later(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    if (numpy := sys.modules.get("numpy")) is not None:
        yield _later(numpy.random.set_state, numpy.random.get_state())
    for value in vars(nn.modules.module).values():  # hooks of all modules there are
        if isinstance(value, OrderedDict):
            yield _Content(value).restore


def _later(put: Callable[[Any], Any], value: Any) -> Restore:
    return lambda: put(value)


class _Held:
    """Everything that can be reached from some objects, as it is now."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.restores: list[Restore] = []
        self._seen: dict[int, Any] = {}  # which also keeps them alive, so that ids stay theirs
        self._states: set[int] = set()  # parameters and buffers, which tracing replaces by others
        ahead: list[tuple[Any, bool]] = [(root, True) for root in roots]
        while ahead:
            value, own = ahead.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                ahead += self._look(value, own)

    def _look(self, value: Any, own: bool) -> Iterable[tuple[Any, bool]]:
        """Notes one object; gives what it holds. `own`: not held by an object that is no module."""
        if isinstance(value, Tensor):
            self._tensor(value, own)
            return ()
        if isinstance(value, nn.Module):
            states = [*value.parameters(recurse=False), *value.buffers(recurse=False)]
            self._states.update(map(id, states))
        if isinstance(value, (dict, list, set, deque)):
            return [(held, own) for held in self._content(value)]
        if isinstance(value, (tuple, frozenset)):
            return [(held, own) for held in value]
        if (drawing := _generator(value)) is not None:
            self.restores.append(drawing)
            return ()
        if isinstance(value, (type, ModuleType)) or _is_of_python(value):
            return ()
        own = own and isinstance(value, nn.Module)
        self.restores.append(_class_of(value))
        return [(held, own) for held in self._content(vars(value))]

    def _content(self, container: Any) -> Sequence[Any]:
        content = _Content(container)
        self.restores.append(content.restore)
        return content.held

    def _tensor(self, tensor: Tensor, own: bool) -> None:
        needs, gradient = tensor.requires_grad, tensor.grad if tensor.is_leaf else None
        numbers = None
        if own and id(tensor) not in self._states and not tensor.is_meta:
            numbers = tensor.detach().clone()

        def restore() -> None:
            if numbers is not None and not torch.equal(tensor.detach(), numbers):
                tensor.detach().copy_(numbers)
            if tensor.is_leaf:
                if tensor.requires_grad != needs:
                    tensor.requires_grad_(needs)
                if tensor.grad is not gradient:
                    tensor.grad = gradient

        self.restores.append(restore)


class _Content:
    """What a dictionary, list or set holds."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._before: list[Any] = self._now()

    @property
    def held(self) -> list[Any]:
        if isinstance(self._container, dict):
            return [value for _, value in self._before]
        return self._before

    def restore(self) -> None:
        """Only where something else is there now: the same objects stay where they are."""
        now = self._now()
        if len(now) == len(self._before) and all(map(_same, now, self._before)):
            return
        known: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
        kind = next(k for k in known if isinstance(self._container, k))
        kind.clear(self._container)  # not by methods of the container's own class
        fill = kind.update if hasattr(kind, "update") else kind.extend
        fill(self._container, self._before)

    def _now(self) -> list[Any]:
        if isinstance(self._container, dict):
            return list(dict.items(self._container))
        return list(self._container)


def _same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    pairs = type(now) is tuple and type(before) is tuple and len(now) == len(before) == 2
    return pairs and now[0] is before[0] and now[1] is before[1]


def _generator(value: Any) -> Restore | None:
    """A random generator of torch, of Python or of numpy draws again what it would have drawn."""
    if isinstance(value, torch.Generator):
        return _later(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return _later(value.setstate, value.getstate())
    if type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
        bits = value.bit_generator
        return _later(lambda state: setattr(bits, "state", state), bits.state)
    return None


def _is_of_python(value: Any) -> bool:
    """Functions, loggers, threads, locks: what has no attributes, or attributes that are not a module's."""
    home = type(value).__module__.partition(".")[0]
    return home in sys.stdlib_module_names or not hasattr(value, "__dict__")


def _class_of(value: Any) -> Restore:
    """A module that is not made up yet becomes one of another class at its first call."""
    before = type(value)

    def restore() -> None:
        if type(value) is not before:
            object.__setattr__(value, "__class__", before)

    return restore
