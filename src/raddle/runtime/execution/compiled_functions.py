"""Runs the generated functions of calls as they are, or compiled by torch.compile.

A function is compiled once for each way in which it is called (with and without gradients), at its first
call, always as one graph. A function that cannot be compiled runs as it is, and a warning names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from raddle.errors import InputError
from raddle.runtime.actions import Call

# What users may ask for; "max-autotune" is the mode of torch.compile with this name.
COMPILE_CHOICES = ("auto", True, False, "max-autotune")

Function = Callable[..., Any]


class NotCompiled(UserWarning):
    """A part of the model runs without torch.compile, though compiling was asked for."""


def compile_mode(choice: bool | str, place: torch.device) -> str | None:
    """The mode of torch.compile, or None: functions are not compiled.

    choice: one of COMPILE_CHOICES; "auto" compiles on GPUs.
    """
    if choice not in COMPILE_CHOICES:
        raise InputError(f"compile is {choice!r}: take True, False, 'auto' or 'max-autotune'.")
    if choice == "auto":
        choice = place.type == "cuda"
    if not choice:
        return None
    # Without CUDA graphs: the caller keeps results between steps, which a CUDA graph would overwrite.
    return "max-autotune-no-cudagraphs" if choice == "max-autotune" else "default"


class CompiledFunctions:
    """The functions of one rank's calls, compiled if `mode` is a mode of torch.compile.

    seconds: the time that compiling took so far, with the first execution of what was compiled.
    """

    def __init__(self, mode: str | None = None) -> None:
        self.mode, self.seconds = mode, 0.0
        self._compiled: dict[Function, Function] = {}
        self._called: set[tuple[Function, bool]] = (
            set()
        )  # functions, with whether gradients were on

    def function_of(self, call: Call) -> Function:
        """The function that runs a call."""
        function = call.code.function
        # A split backward runs twice on one forward, which a compiled backward does not allow.
        if self.mode is None or call.split_backward:
            return function
        if function not in self._compiled:
            self._compiled[function] = torch.compile(
                function, fullgraph=True, dynamic=False, mode=self.mode
            )
        state = function, torch.is_grad_enabled()
        return self._compiled[function] if state in self._called else self._first_call(call, state)

    def _first_call(self, call: Call, state: tuple[Function, bool]) -> Function:
        """A function that compiles, and runs the plain function if that is not possible."""
        function = call.code.function

        def run(*arguments: Any) -> Any:
            start = perf_counter()
            try:
                results = self._compiled[function](*arguments)
            except Exception as error:
                if not _is_compiler_error(error):
                    raise
                reason = str(error).strip().splitlines()[0][:200]
                warnings.warn(
                    f"'{call.label}' runs without torch.compile: {reason}",
                    NotCompiled,
                    stacklevel=2,
                )
                self._compiled[function] = function
                results = function(*arguments)
            self._called.add(state)
            self.seconds += perf_counter() - start
            return results

        return run


def _is_compiler_error(error: BaseException) -> bool:
    """Whether an error comes from the compiler, before anything of the function has run."""
    packages = ("torch._dynamo.", "torch._inductor.", "torch._functorch.")
    return type(error).__module__.startswith(packages)
