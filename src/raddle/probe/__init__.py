"""Measure this machine: what one of N ranks computes while all of them do, and how two of them talk.

machine.py   what people call: measure or remember, and turn figures into a cluster
launch.py    starts the processes and sees to it that all of them end
rank.py      what runs in each rank;  gpu.py in the one that looks at a GPU
kernels.py   what is timed;  fit.py latency and bandwidth from times
    cache.py     what was measured before;  load.py how busy the machine is;  output.py the file
"""

from raddle.probe.machine import describe, probe

__all__ = ["describe", "probe"]
