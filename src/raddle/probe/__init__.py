"""Measures this machine as a cluster of N ranks (`raddle probe`): compute rates, latency and bandwidth.

All ranks compute at the same time, so the rates are those of one rank while the others are busy.

machine.py   the functions to call: measure, or read from the cache, and convert to a cluster
launch.py    starts the processes and makes sure that all of them end
rank.py      runs in the process of each rank;  gpu.py in the process that measures a GPU
kernels.py   what is timed;  fit.py latency and bandwidth from times
    cache.py     what was measured before;  load.py how busy the machine is;  output.py the file
"""

from raddle.probe.machine import describe, probe

__all__ = ["describe", "probe"]
