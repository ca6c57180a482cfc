"""The command line options of `python -m raddle.runtime`; `raddle run` passes them to each rank."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NoReturn

from raddle.errors import InputError
from raddle.plans.plan import DROPOUT_KINDS

# --compile: the value of `compile` in raddle.parallelize
COMPILE: dict[str, bool | str] = {
    "auto": "auto", "on": True, "off": False, "max-autotune": "max-autotune"
}  # fmt: skip
DEFAULT_WARMUP = 3  # steps that are not measured


@dataclass(frozen=True)
class Options:
    """The command line options of `python -m raddle.runtime`; None or False: the option is not given.

    The help texts in `_parser` below explain them.
    """

    plan: str
    steps: int = 20
    warmup: int | None = None
    seed: int = 0
    lr: float | None = None
    clip_norm: float | None = None
    check_finite: bool = False
    model: str | None = None
    device: str | None = None
    backend: str | None = None
    dtype: str | None = None
    compile: str = "auto"
    precision: str | None = None
    optimizer: str | None = None
    dropout: str | None = None
    threads: int | None = None
    timeout: float = 300.0
    trace: str | None = None
    json: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"--steps is {self.steps}: take at least one.")
        if not 0 <= (self.warmup or 0) < self.steps:
            raise InputError(
                f"--warmup {self.warmup} leaves none of {self.steps} steps to measure: ask for more steps."
            )
        for name in ("lr", "clip_norm", "timeout", "threads"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"--{name.replace('_', '-')} is {value}: give a positive number.")

    @property
    def warmup_steps(self) -> int:
        """The number of first steps that are not measured."""
        return min(DEFAULT_WARMUP, self.steps - 1) if self.warmup is None else self.warmup

    def command_line(self) -> list[str]:
        """Returns the arguments of a command line with these options; `parse` is the inverse."""
        arguments = [self.plan]
        for option in fields(self)[1:]:
            value, flag = getattr(self, option.name), f"--{option.name.replace('_', '-')}"
            if value is True:
                arguments.append(flag)
            elif value is not False and value != option.default:
                arguments += [flag, str(value)]
        return arguments


def parse(argv: Sequence[str]) -> Options:
    """Returns the options of a command line; raises InputError if it is not valid."""
    return Options(**vars(_parser().parse_args(argv)))


class _Parser(argparse.ArgumentParser):
    """Raises InputError where argparse would print a usage text and exit."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}: see python -m raddle.runtime --help.")


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m raddle.runtime",
        description="Runs one rank of a plan. Start as many ranks as the plan has devices, with torchrun.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("plan", metavar="PLAN", help="a plan file")
    add("--steps", type=int, metavar="K", help="steps to take (20)")
    add("--warmup", type=int, metavar="W", help="first steps that are not measured (3)")
    add("--seed", type=int, metavar="S", help="seed of weights, batch and dropout (0)")
    add("--lr", type=float, metavar="X", help="learning rate of the plan's optimizer")
    add("--clip-norm", type=float, metavar="X", help="limit of the gradients' global norm")
    add("--check-finite", action="store_true", help="stop if the loss is not finite")
    add("--model", metavar="FILE.PY:FUNCTION", help="the model, if the plan names none")
    add("--device", choices=("cpu", "cuda"), help="device that ranks compute on")
    add("--backend", choices=("gloo", "nccl"), help="backend of torch.distributed")
    add("--dtype", choices=("float32", "float64"), help="dtype of the model, instead of the plan's")
    add("--precision", metavar="P", help="precision, such as bf16, instead of the plan's")
    add("--optimizer", metavar="O", help="optimizer, such as adamw, instead of the plan's")
    add("--compile", choices=tuple(COMPILE), help="torch.compile of segments (auto: on GPUs)")
    add("--dropout", choices=DROPOUT_KINDS, help="dropout of attention, instead of the plan's")
    add("--threads", type=int, metavar="N", help="threads of each rank (its share of the cores)")
    add("--timeout", type=float, metavar="S", help="seconds that a rank waits for another (300)")
    add("--trace", metavar="FILE", help="write a trace for Perfetto, for example t.json.gz")
    add("--json", action="store_true", help="print only JSON on stdout")
    return parser
