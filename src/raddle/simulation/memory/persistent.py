"""Sums the memory that stays allocated for the whole run: parameters, gradients, optimizer state, buffers.

Where operators use a parameter in another dtype than the optimizer, the latter has master weights: a copy
of the region, or of a shard of it (plans/precision.py). Under autocast the parameter is its own master.

A region is a box of a parameter and the devices that hold it (ParameterRegion); its updaters are the
devices that apply the optimizer to it. A shard is the part of a region that one device updates with ZeRO.
"""

from __future__ import annotations

import numpy as np

from raddle.clusters import Cluster
from raddle.costs.compute import family
from raddle.plans.optimizers import optimizer_info
from raddle.program.program import Program, Update, held_element_bytes, updated_dtype
from raddle.simulation.memory.value_sizes import read_bytes

Array = np.ndarray


def persistent_bytes(program: Program, cluster: Cluster) -> Array:
    """Returns by device the bytes of `state_bytes` plus the workspace that a matmul library keeps."""
    total = state_bytes(program)
    matmul_devices = {
        d
        for variant in program.variants
        for op in variant.graph.ops
        if family(op) == "matmul"
        for d in variant.tiles[op.name].devices
    }
    for d in matmul_devices:
        total[d] += int(cluster.devices[d].workspace["matmul"])  # bytes of scratch memory
    return total


def state_bytes(program: Program) -> Array:
    """Returns by device the bytes of parameters, gradients, optimizer state, buffers and constants.

    With ZeRO, a device has optimizer state only for its shard, and with ZeRO-3 parameters only of its
    shard. shards.py counts the parameters and gradients that it has for a while.
    """
    total, seen = np.zeros(program.plan.devices, np.int64), set()
    # elements of optimizer state for each element of a parameter
    state_elements = optimizer_info(program.plan.optimizer).state_elements
    for i in program.instructions:
        if not isinstance(i, Update):
            continue
        for name in dict.fromkeys(name for name in i.parameters if name not in seen):
            seen.add(name)
            held = held_element_bytes(program, name)
            updated = updated_dtype(program.graph, name).itemsize
            masters = int(held != updated)  # whether the optimizer updates a copy
            for region in program.slices.get(name, i.regions):
                nbytes, copies = region.box.volume * held, state_elements + masters
                if program.sharded:  # gathered parameters and gradients are not persistent
                    shard_bytes = np.array(region.shard_volumes, np.int64) * updated
                    if program.gathers_before_use:
                        nbytes, copies = 0, state_elements + 1
                    total[list(region.devices)] += nbytes + copies * shard_bytes
                    continue
                # The parameter and its gradient, on its holders and where it is updated.
                total[list({*region.devices, *region.updaters})] += 2 * nbytes
                total[list(region.updaters)] += copies * region.box.volume * updated
    variant = program.variants[0]
    # All other values that stay; with role "parameter", those that are never updated.
    roles = ("buffer", "constant", "frozen", "parameter")
    names = [v.name for v in variant.graph.values.values() if v.role in roles]
    total += read_bytes(program, variant, [name for name in names if name not in seen])
    return total
