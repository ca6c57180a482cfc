"""A lab: emulated hosts on one Linux machine, to run plans over a network of limited bandwidth.

Each host is a network namespace. Its link to a bridge is limited to a rate by `tc` (a token bucket, tbf).

    with Lab.up(hosts=4, rate="1gbit", rates={2: "100mbit"}) as lab:
        lab.run("plan.json", steps=3, timeout=600)
        print(lab.counters())

      raddle-lab-0        raddle-lab-1        raddle-lab-2      a namespace per host,
     lab0 10.77.0.1      lab0 10.77.0.2      lab0 10.77.0.3     with one interface
           |                   |                   |            veth pairs, tbf on both ends
         host0               host1               host2
           `------------------bridge------------------'         raddle-lab-net

TCP controls congestion by cubic on every host, so that figures do not depend on the machine's default.
Several ranks of a host share its interface; what they send each other does not cross it.

No file stores the state of a lab: it is read from `ip` and `tc`. So a lab that remains after a crash can be
listed and removed like any other.
"""

from raddle.lab.lab import Lab, Traffic
from raddle.lab.launch import LaunchError, launch

__all__ = ["Lab", "LaunchError", "Traffic", "launch"]
