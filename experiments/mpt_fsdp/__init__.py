"""Predicts published training runs of MPT models with PyTorch's FSDP on 8 to 64 H100.

The runs are MosaicML's training benchmarks (mosaicml/llm-foundry, scripts/train/benchmarking). Nothing is
measured here: the experiment says how well the preset h100 predicts what others have measured.

Differs from the runs: see DIFFERS.
"""

from __future__ import annotations

from experiments.experiment import Part
from experiments.mpt_fsdp import utilization

TITLE = "MPT with FSDP: the utilization of 8 to 64 H100, predicted"
CLAIMS = (
    "26 runs of models of 0.8 to 65 billion parameters reach 26 to 46 % of the peak of 8 to 64 H100.",
    "All of them fit the 80 GB of an H100.",
)
DIFFERS = (
    "The constants of the preset h100 are one set for all runs. They were fitted to these runs, so the "
    "error says how well the model of the costs describes them, not how well it predicts others.",
    "FSDP summed shards after every micro-batch; a plan of raddle sums them once a step. So one "
    "micro-batch is simulated, its time is multiplied, and a float32 shard of the gradients is added to "
    "its memory.",
    "The precision is bf16:pure (parameters in bfloat16, a float32 master in each shard), which is what "
    "FSDP's mixed precision and MPT's low-precision layer norm compute.",
    "The network between nodes is the preset's InfiniBand, with an adapter for each GPU; the runs had "
    "RoCE.",
)
PARTS = (Part("utilization", "Model FLOPs utilization and memory", utilization.make),)
