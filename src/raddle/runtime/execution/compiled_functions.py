"""Runs the generated functions of calls as they are, or compiled by torch.compile.

A call is a generated function for some operators in one micro-batch, with its arguments (actions.py).
A function is compiled once for each way in which it is called (with and without gradients), before its
first call, always as one graph. What cannot be compiled runs as it is, and a warning names it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from raddle.errors import InputError
from raddle.runtime.actions import Call
from raddle.runtime.execution.split_backward import SplitCall
from raddle.runtime.function_writer import GeneratedCode

# What users may ask for; "max-autotune" is the mode of torch.compile with this name.
COMPILE_CHOICES = ("auto", True, False, "max-autotune")

Function = Callable[..., Any]


class NotCompiled(UserWarning):
    """A part of the model runs without torch.compile, though compiling was asked for."""


def compile_mode(choice: bool | str, place: torch.device) -> str | None:
    """Returns the mode of torch.compile, or None: functions are not compiled.

    choice: one of COMPILE_CHOICES; "auto" compiles on GPUs.
    """
    if choice not in COMPILE_CHOICES:
        raise InputError(f"compile is {choice!r}: take True, False, 'auto' or 'max-autotune'.")
    if choice == "auto":
        choice = place.type == "cuda"
    if not choice:
        return None
    missing = _missing_compiler(place)
    if missing:
        warnings.warn(
            f"there is no {missing} here, so the model runs without torch.compile: install one, or "
            "pass compile=False (--compile off).",
            NotCompiled,
            stacklevel=3,
        )
        return None
    # Without CUDA graphs: the caller keeps results between steps, which a CUDA graph would overwrite.
    return "max-autotune-no-cudagraphs" if choice == "max-autotune" else "default"


def _missing_compiler(place: torch.device) -> str:
    """Returns what the backend inductor needs on a device and does not find; "" if nothing is missing."""
    if place.type == "cuda":
        return "" if importlib.util.find_spec("triton") else "triton"
    default = "clang++" if sys.platform == "darwin" else "g++"
    names = (os.environ.get("CXX") or default).split()
    return "" if shutil.which(names[0]) else f"C++ compiler '{names[0]}'"


class CompiledFunctions:
    """The functions of one rank's calls, compiled if `mode` is a mode of torch.compile, not None.

    backend: the backend of torch.compile; tests use others than its default.
    seconds: the time that compiling took so far, with the first execution of what was compiled.
    """

    def __init__(
        self, mode: str | None = None, *, backend: str | Callable[..., Any] = "inductor"
    ) -> None:
        self.mode, self.backend, self.seconds = mode, backend, 0.0
        self._shared: dict[Hashable, Function] = {}  # GeneratedCode.key -> function
        # Generated function -> what runs instead; if it cannot be compiled, the function itself
        self._compiled: dict[Function, Function] = {}
        # The compiled phases of split backwards, "B" and "W"; None: they cannot be compiled
        self._phases: dict[SplitCall, dict[str, Function] | None] = {}
        # Functions that are ready, with whether gradients are on
        self._ready: set[tuple[Function, bool]] = set()

    @property
    def compiled(self) -> int:
        """The number of different functions compiled so far, without phases of split backwards."""
        return sum(run is not function for function, run in self._compiled.items())

    def share(self, code: GeneratedCode) -> GeneratedCode:
        """Returns the code with the function of the first equal code, so that it is compiled only once."""
        return code._replace(function=self._shared.setdefault(code.key, code.function))

    def function_of(self, call: Call) -> Function:
        """Returns the function that runs a call."""
        function = call.code.function
        # With gradients, a split backward runs twice on one forward, and a compiled backward cannot. So
        # this is a call whose phases cannot be compiled: `split_call` has named it.
        if self.mode is None or (call.split_backward and torch.is_grad_enabled()):
            return function
        if (function, torch.is_grad_enabled()) in self._ready:
            return self._compiled[function]
        return partial(self._compile_and_run, call)

    def split_call(
        self, call: Call, autocast: torch.dtype | None, arguments: Sequence[Tensor]
    ) -> SplitCall | None:
        """Returns how the phases of a split backward run as compiled functions; None: they run eagerly.

        arguments: those of the call's function. The first time, it compiles forward and phases.
        """
        if self.mode is None:
            return None
        split = SplitCall.of(call, call.code.function, autocast)
        if split not in self._phases:
            start = perf_counter()
            phases = {
                phase: self._wrap(split.phase(phase))
                for phase, count in (("B", split.activations), ("W", split.weights))
                if count
            }
            try:
                _rehearse_phases(split, phases, arguments)
                self._phases[split] = phases
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # compilers raise errors of many kinds
                self._warn(call, error, "runs its split backward")
                self._phases[split] = None
            self.seconds += perf_counter() - start
        return None if self._phases[split] is None else split

    def phase(self, split: SplitCall, phase: str) -> Function:
        """Returns the compiled function of a phase; `split_call` has returned `split`."""
        phases = self._phases[split]
        assert phases is not None
        return phases[phase]

    def _compile_and_run(self, call: Call, *arguments: Any) -> Any:
        """Compiles the function of a call, forward and backward; then runs it and returns its results.

        If it cannot be compiled, the function runs as it is from now on.
        """
        function, start = call.code.function, perf_counter()
        compiled = self._compiled.get(function) or self._wrap(function)
        try:
            _rehearse(compiled, arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise errors of many kinds
            self._warn(call, error, "runs")
            compiled = function
        self._compiled[function] = compiled
        self._ready.add((function, torch.is_grad_enabled()))
        self.seconds += perf_counter() - start
        return compiled(*arguments)

    def _warn(self, call: Call, error: Exception, what: str) -> None:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        message = f"'{call.label}' {what} without torch.compile: {reason}"
        warnings.warn(message, NotCompiled, stacklevel=3)

    def _wrap(self, function: Function) -> Function:
        """Returns the function that compiles itself when it is called for the first time."""
        # torch.compile takes a mode only for its own backend, and either a mode or options.
        mode = self.mode if self.backend == "inductor" and self.mode != "default" else None
        options: Any = None if mode else {"guard_filter_fn": _checks_without_globals}
        return torch.compile(
            function,
            fullgraph=True,
            dynamic=False,
            backend=self.backend,
            mode=mode,
            options=options,
        )


def _checks_without_globals(checks: Sequence[Any]) -> list[bool]:
    """Returns which checks torch.compile keeps and makes before each call: all but those of globals.

    The globals of a generated function are its kernels, which never change. To check all their attributes
    took 11 % of the host's time in a pipeline of gpt.
    """
    return [not check.is_global for check in checks]


def _rehearse_phases(
    split: SplitCall, phases: Mapping[str, Function], arguments: Sequence[Tensor]
) -> None:
    """Runs the phases of a split backward once, which compiles them, and forgets the gradients."""
    with torch.no_grad():
        enabled = split.autocast is not None
        with torch.autocast(arguments[0].device.type, dtype=split.autocast, enabled=enabled):
            results = split.function(*arguments)
        gradients = [
            torch.zeros_like(results[r], dtype=dtype)
            for r, dtype in zip(split.results, split.dtypes, strict=True)
        ]
        for phase in phases.values():
            phase(gradients, *arguments)


def _rehearse(function: Function, arguments: Sequence[Any]) -> None:
    """Runs a function and its backward once, which compiles both, and forgets the results.

    Otherwise an error of the backward would come when the forward, already compiled, can no longer be
    replaced. Generators of random numbers are restored.
    """
    gpus = {a.device for a in arguments if isinstance(a, Tensor) and a.device.type == "cuda"}
    with torch.random.fork_rng(gpus):
        results = [r for r in function(*arguments) if r.requires_grad]
        inputs = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]
        # A backward never runs under autocast.
        device_type = arguments[0].device.type if arguments else "cpu"
        with torch.autocast(device_type, enabled=False):
            if results:
                gradients = [torch.zeros_like(r) for r in results]
                torch.autograd.grad(results, inputs, gradients, allow_unused=True)
