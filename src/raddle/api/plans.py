"""Plans, the text notation of their tiles, and plan files.

`read_plan` returns the content of a plan file as a dictionary, of which `plan_from_dict` makes the plan.
`DEFAULT_BUCKET` is the size in bytes of a bucket of gradients. `describe_inputs` and `parameter_shapes` of
a graph are written to the plan file, so that a rank can capture and check the module. A plan is
asynchronous if its steps overlap: a run then repeats a program of `OVERLAPPED_STEPS` steps.
"""

from __future__ import annotations

from raddle.plans.notation import write_tiles, write_tiling
from raddle.plans.pipelining import OVERLAPPED_STEPS, is_asynchronous
from raddle.plans.plan import DEFAULT_BUCKET, Plan, describe_inputs, parameter_shapes
from raddle.plans.plan_file import from_dict as plan_from_dict
from raddle.plans.plan_file import read as read_plan
from raddle.plans.plan_file import save as save_plan
from raddle.plans.validation import validate

__all__ = [
    "DEFAULT_BUCKET", "OVERLAPPED_STEPS", "Plan", "describe_inputs", "is_asynchronous", "parameter_shapes",
    "plan_from_dict", "read_plan", "save_plan", "validate", "write_tiles", "write_tiling",
]  # fmt: skip
