"""Defines, loads and runs experiments: each part of an experiment makes a Section of the result.

A Section has text, tables and charts.

An experiment is a module of this package with TITLE, CLAIMS (what the paper says), DIFFERS (how the
experiment differs from the paper's) and PARTS.
"""

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

ProgressCallback = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class RunOptions:
    """The options of a part that runs: whether to be quick, and where it reports progress."""

    quick: bool = False  # fewer sizes, so that it takes minutes on two cores
    on_progress: ProgressCallback = field(default=lambda state: None)
    parts_done: int = 0  # parts finished before this one
    part_count: int = 1

    def report(self, step: str, fraction: float = 0.0) -> None:
        """Reports progress: what is done now, and which fraction (0 to 1) of this part is finished."""
        self.on_progress({"step": step, "done": self.parts_done + fraction, "of": self.part_count})


class Part(NamedTuple):
    """A section of an experiment that can be run by itself."""

    name: str  # one word, for --part
    title: str
    make: Callable[[RunOptions], Section]  # runs the part; `reproduce` sets the section's title


class Experiment(NamedTuple):
    """A module of this package that has TITLE, CLAIMS, DIFFERS and PARTS."""

    name: str
    title: str
    claims: Sequence[str]
    differs: Sequence[str]
    parts: Sequence[Part]


# Name of an experiment -> one sentence. Its module has the same name, with _ instead of -.
EXPERIMENTS = {
    "thesis": "filters and channels partitioned by hypergraph, servers, asynchronous training",
    "gems-unet": "GEMS, pipelines and spatial tiles for deep ResNets and U-Nets on large images",
    "optcnn": "a split of its own for every layer, found by elimination",
    "flexflow": "plans found by simulation and random moves, beyond convolutional networks",
    "p3": "slices of parameters, the most urgent first",
    "horovod": "gradients fused into rings, against servers",
    "mpt-fsdp": "published runs of FSDP on 8 to 64 H100, predicted",
    "cost-models": "which cost model ranks plans as they are measured",
}


def load(name: str) -> Experiment:
    """Returns the experiment of this name; InputError if there is none."""
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment '{name}': choose from {', '.join(EXPERIMENTS)}.")
    module = importlib.import_module(f"experiments.{name.replace('-', '_')}")
    return Experiment(name, module.TITLE, module.CLAIMS, module.DIFFERS, module.PARTS)


def choose(experiment: Experiment, names: Sequence[str]) -> Experiment:
    """Returns the experiment with only the named parts; with all parts if `names` is empty."""
    part_names = [part.name for part in experiment.parts]
    for name in names:
        if name not in part_names:
            raise InputError(
                f"'{experiment.name}' has no part '{name}': choose from {', '.join(part_names)}."
            )
    chosen = [part for part in experiment.parts if not names or part.name in names]
    return experiment._replace(parts=chosen)


def reproduce(experiment: Experiment, *, quick: bool, on_progress: ProgressCallback) -> Result:
    """Runs all parts, one after the other. A part that raises InputError is shown as skipped."""
    begin = time.monotonic()
    sections = []
    for done, part in enumerate(experiment.parts):
        options = RunOptions(quick, on_progress, done, len(experiment.parts))
        options.report(part.title)
        try:
            sections.append(replace(part.make(options), title=part.title))
        except InputError as error:
            # The other parts' results are kept: they may have taken long.
            sections.append(Section(part.title, skipped=str(error)))
    return Result(
        experiment.name, experiment.title, experiment.claims, experiment.differs, sections,
        machine(), quick, round(time.monotonic() - begin, 1), version("raddle"),
    )  # fmt: skip


def machine() -> str:
    """This machine in words: cores, processor, version of torch."""
    import os

    import torch

    return f"{len(os.sched_getaffinity(0))} cores of {_processor()}, torch {torch.__version__}"


def _processor() -> str:
    """Returns the name of the processor, such as "Intel(R) Xeon(R) CPU @ 2.20GHz"."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
