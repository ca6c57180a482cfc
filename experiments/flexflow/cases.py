"""Defines FlexFlow's six networks, the clusters they are planned for, and how long a search may take.

The paper is FlexFlow (Jia et al., arXiv 1807.05358); `raddle reproduce flexflow` repeats its experiments.
"""

from __future__ import annotations

from typing import NamedTuple

from experiments.experiment import RunOptions
from experiments.simulate_methods import WeakScalingCase

RECURRENT = ("rnntc", "rnnlm", "nmt")
MODELS = ("alexnet", "inception_v3", "resnet101", *RECURRENT)
SAMPLES = {"alexnet": 256}  # per GPU; all other models have 64


class ExperimentSize(NamedTuple):
    """The extent of the experiment, in full or with --quick."""

    models: tuple[str, ...]
    gpu_counts: tuple[int, ...]
    server_counts: tuple[int, ...]  # GPU counts that are also simulated with parameter servers
    budget: float  # seconds of the search's Markov chains


QUICK = ExperimentSize(("alexnet", "inception_v3", "rnntc", "nmt"), (4,), (4,), 2.0)
FULL = ExperimentSize(MODELS, (4, 16, 64), (4, 16), 10.0)


def experiment_size(options: RunOptions) -> ExperimentSize:
    """Returns the extent that the options ask for."""
    return QUICK if options.quick else FULL


def case(model: str, count: int) -> WeakScalingCase:
    """Returns the model on `count` K80, with the same number of samples for each GPU."""
    return WeakScalingCase(model, "k80", count, SAMPLES.get(model, 64))


def expert(model: str) -> str:
    """Returns the method by which an expert would split the model.

    CNNs: "one weird trick" (OWT), with data parallel convolutions and split linear layers. RNNs: inside a
    node, each GPU has a consecutive range of layers; nodes are data parallel.
    """
    return "expert" if model in RECURRENT else "owt"
