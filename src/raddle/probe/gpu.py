"""Measures the compute rates of the first GPU, in a process of its own.

launch.py starts this process with settings as JSON in the first argument: `seconds` is the time limit of
the process, `window` the seconds for each kernel. The process prints its result as rank.py does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from raddle.probe.kernels import kernels, rate
from raddle.probe.launch import end_in_time


def main() -> None:
    """Measure and print one line of JSON, {"result": rates}."""
    settings = json.loads(sys.argv[1])
    end_in_time(settings["seconds"])
    print(json.dumps({"result": measure(settings["window"])}), flush=True)


def measure(window: float) -> dict[str, Any]:
    """Return the rates of the kernels on the first GPU; TF32 is off, so float32 is real float32.

    window: seconds for each kernel.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "memory": properties.total_memory,
        **{kernel.name: rate(kernel, window, "cuda") for kernel in kernels("cuda")},
    }


if __name__ == "__main__":
    main()
