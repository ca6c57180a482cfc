"""Compares GEMS with other pipelines and spatial tiles on deep ResNets and U-Nets.

It measures throughput, memory, the largest image that fits, and the time to a loss.

Jain et al. 2020 (SC20), "GEMS: GPU-enabled memory-aware model-parallelism system for distributed DNN
training"; and a research proposal that builds on it and that raddle takes up: implement MASTER in PyTorch,
and train U-Nets on large images faster with it.

GEMS: two replicas of the stages run on the same devices in opposite order. MAST is GEMS with one pair of
micro-batches in a step, MASTER with several pairs. A *side* is the height and width of an image, in pixels.

Differs from the paper: see DIFFERS.
"""

from __future__ import annotations

from experiments.experiment import Part
from experiments.gems_unet import capacity, loss, real, scaling, simulated

TITLE = "GEMS, pipelines and spatial tiles for deep ResNets and U-Nets on large images"
CLAIMS = (
    "A second, mirrored replica trains in the memory and time that model parallelism leaves idle (MAST); "
    "several such pairs before one update (MASTER) leave less idle.",
    "With data parallelism, a ResNet of 1000 layers scales to 1,024 V100 with 97.32 % efficiency.",
    "ResNet-110-v2 on tiles of 1024 x 1024 of pathology slides: seven hours become 28 minutes.",
    "The research proposal: MASTER speeds up U-Nets with long skips on large images, in images per second.",
)
DIFFERS = (
    "All methods train on one batch of the same size; in the paper MAST and MASTER enlarge it.",
    "Micro-batches have one image, so that memory depends on how many micro-batches are alive.",
    "Real runs are on processes of this machine with one thread each, and networks of 1/8 (U-Net) and 1/4 "
    "(ResNets, not with --quick) of the widths; resnet1001 is run at one size, and not in tiles.",
    "The seven hours are not trained again: the scaling that they rest on is simulated.",
    "Spatial tiles exchange exact halos and batch statistics; the paper has no spatial method.",
    "The U-Net is the zoo's, whose convolutions are padded and normalised.",
)
PARTS = (
    Part("real", "Images per second and memory, for real", real.make),
    Part("simulated", "Images per second and memory to 8192², simulated", simulated.make),
    Part("capacity", "The largest image and batch under a capacity", capacity.make),
    Part("loss", "Time to a loss on a segmentation task", loss.make),
    Part("scaling", "GEMS with data parallelism, scaled", scaling.make),
)
