"""The six networks, the clusters they are planned for, and how long a search may take."""

from __future__ import annotations

from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.simulate_methods import WeakScalingCase

RECURRENT = ("rnntc", "rnnlm", "nmt")
MODELS = ("alexnet", "inception_v3", "resnet101", *RECURRENT)
SAMPLES = {"alexnet": 256}  # a GPU; 64 of all others


class ExperimentSize(NamedTuple):
    """Of an experiment."""

    models: tuple[str, ...]
    gpu_counts: tuple[int, ...]  # GPUs
    server_counts: tuple[int, ...]  # of these with servers, too
    budget: float  # seconds of the chains


QUICK = ExperimentSize(("alexnet", "inception_v3", "rnntc", "nmt"), (4,), (4,), 2.0)
FULL = ExperimentSize(MODELS, (4, 16, 64), (4, 16), 10.0)


def experiment_size(options: RunOptions) -> ExperimentSize:
    return QUICK if options.quick else FULL


def case(model: str, count: int) -> WeakScalingCase:
    return WeakScalingCase(model, "k80", count, SAMPLES.get(model, 64))


def expert(model: str) -> str:
    """OWT for convolutional networks; for recurrent ones a GPU a depth, and copies on every node."""
    return "expert" if model in RECURRENT else "owt"
