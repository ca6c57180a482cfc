"""Measures this machine as a cluster of N ranks (`raddle probe`): compute rates, latency and bandwidth.

All ranks compute at the same time, so the rates are those of one rank while the others are busy.

machine.py   the functions to call: measure, or read from the cache, and convert to a cluster
launch.py    starts the processes and makes sure that all of them end
rank.py      runs in the process of each rank;  gpu.py in the process that measures a GPU
kernels.py   the kernels that are timed;  fit.py fits latency and bandwidth to times of messages
cache.py     stores measurements;  cpu_load.py measures other work;  output.py writes the cluster file
"""

from raddle.probe.machine import describe, probe

__all__ = ["describe", "probe"]
