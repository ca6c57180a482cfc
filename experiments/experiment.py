"""An experiment is parts in an order, each of which makes a section."""

from __future__ import annotations

import importlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, NamedTuple

from raddle.api.results import Result, Section
from raddle.errors import InputError

Heard = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Asked:
    """`quick`: minutes on two cores, of the same things at fewer sizes."""

    quick: bool = False
    heard: Heard = field(default=lambda state: None)
    done: int = 0
    of: int = 1

    def say(self, step: str, fraction: float = 0.0) -> None:
        """Moves the bar: what is done now, and how much of this part is behind."""
        self.heard({"step": step, "done": self.done + fraction, "of": self.of})


class Part(NamedTuple):
    name: str  # one word, for --part
    title: str
    make: Callable[[Asked], Section]


class Experiment(NamedTuple):
    """A module of this package that has TITLE, CLAIMS, DIFFERS and PARTS."""

    name: str
    title: str
    claims: Sequence[str]
    differs: Sequence[str]
    parts: Sequence[Part]


# By name, one sentence; the module has the same name, with _ for -.
EXPERIMENTS = {
    "thesis": "filters and channels partitioned by hypergraph, servers, asynchronous training",
    "gems-unet": "GEMS, pipelines and spatial tiles for deep ResNets and U-Nets on large images",
    "optcnn": "a split of its own for every layer, found by elimination",
    "flexflow": "plans found by simulation and random moves, beyond convolutional networks",
    "p3": "slices of parameters, the most urgent first",
    "horovod": "gradients fused into rings, against servers",
    "cost-models": "which cost model ranks plans as they are measured",
}


def load(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment '{name}': choose from {', '.join(EXPERIMENTS)}.")
    module = importlib.import_module(f"experiments.{name.replace('-', '_')}")
    return Experiment(name, module.TITLE, module.CLAIMS, module.DIFFERS, module.PARTS)


def choose(experiment: Experiment, names: Sequence[str]) -> Experiment:
    """Only these parts; all where none are named."""
    known = [part.name for part in experiment.parts]
    for name in names:
        if name not in known:
            raise InputError(
                f"'{experiment.name}' has no part '{name}': choose from {', '.join(known)}."
            )
    chosen = [part for part in experiment.parts if not names or part.name in names]
    return experiment._replace(parts=chosen)


def reproduce(experiment: Experiment, *, quick: bool, heard: Heard) -> Result:
    """Does all parts in turn."""
    begin = time.monotonic()
    sections = []
    for done, part in enumerate(experiment.parts):
        asked = Asked(quick, heard, done, len(experiment.parts))
        asked.say(part.title)
        try:
            sections.append(replace(part.make(asked), title=part.title))
        except InputError as error:  # what the others have found, perhaps for long, is not lost
            sections.append(Section(part.title, skipped=str(error)))
    return Result(
        experiment.name, experiment.title, experiment.claims, experiment.differs, sections,
        machine(), quick, round(time.monotonic() - begin, 1), version("raddle"),
    )  # fmt: skip


def machine() -> str:
    import os

    import torch

    return f"{len(os.sched_getaffinity(0))} cores of {_processor()}, torch {torch.__version__}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
