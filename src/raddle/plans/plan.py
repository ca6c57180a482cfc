"""The plan: on which devices each operator is computed, and how a training step is organised.

Searches find plans, plan_file.py reads and writes them, and `lower` (program/lower.py) turns a plan and its
graph into a program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from raddle.graph.graph import Graph
from raddle.plans.precision import DEFAULT as DEFAULT_PRECISION
from raddle.plans.precision import Precision, read_precision
from raddle.plans.sync import Sync, read_sync
from raddle.plans.tiling import Tiling

DEFAULT_BUCKET = 16 * 2**20  # bytes
DROPOUT_KINDS = ("native", "exact")  # how attention draws the masks of its dropout
# Attributes of the result that raddle.plan returns (api/plan_result.py), for a sentence to who asks a plan.
RESULT_NAMES = (
    "graph", "timeline", "step_ms", "samples_per_s", "fits", "peak_bytes", "row", "explain", "save",
    "_repr_html_",
)  # fmt: skip
BN_SCOPES = ("global", "local", "microbatch")  # over which samples batch norm takes its statistics


@dataclass(frozen=True, repr=False)
class Plan:
    """A plan: tiles on devices, and all that is needed to simulate, run or verify them.

    bn: the samples over which batch norm takes its statistics: the whole batch (`global`, exact), a
    micro-batch (`microbatch`), or a tile (`local`, as DistributedDataParallel does).

    dropout: attention with dropout is computed by PyTorch's fused kernel, whose masks depend on the plan
    (`native`), or step by step with masks that do not (`exact`). All other dropout is exact.

    order: with sync `p3:collective`, which all-reduces bundles of slices (ranges of rows) of parameters:
    the numbers of all bundles (program/parameter_slices.py numbers them), in the order in which their
    all-reduces start on every device. If it is empty, each starts when its gradients are ready.

    sums: by operator with partial results, the devices that add them, written as a tiling of the operator.
    If an operator is not there, program/merges.py chooses the devices.

    A pipeline has `stages` and a `schedule`: a name from plans/schedules/, or rows of actions as text; ""
    runs one micro-batch after the other. Each row is a worker. A stage that several rows run has a replica
    on each (plans/pipelining.py). Without stages, the schedule "threaded:4" runs four steps at once.
    """

    tiles: Mapping[str, Tiling]  # by operator
    devices: int  # how many; they are numbered from 0
    bn: str = "global"
    dropout: str = "native"
    sync: str = "allreduce"  # how copies of a parameter are synchronised (plans/sync/)
    bucket: int = DEFAULT_BUCKET  # bytes: the least size of a bucket of gradients
    order: tuple[int, ...] = ()
    microbatches: int = 1  # in a step
    # Blocks of operators whose values are not saved for backward: each block is recomputed as a whole.
    recompute: tuple[tuple[str, ...], ...] = ()
    split_backward: bool = False  # compute gradients of parameters after those of activations
    sums: Mapping[str, Tiling] = field(default_factory=dict)
    stages: tuple[tuple[str, ...], ...] = ()  # by stage, its operators
    schedule: str = ""
    workers: tuple[tuple[int, ...], ...] = ()  # by row of the schedule, its devices
    steps: int = 1  # training steps in the lowered program; a simulation needs several
    model: str = ""  # its name, or the file and function that make it
    fingerprint: str = ""  # hash of the graph that the plan was made for
    batch: int = 0  # samples of a step, on all devices together
    dtype: str = "float32"  # of the captured model
    precision: str = DEFAULT_PRECISION  # in which it is trained (plans/precision.py)
    optimizer: str = "sgd"  # plans/optimizers.py
    cluster: Mapping[str, Any] | None = None  # description of the cluster, as in a cluster file
    method: str = ""  # the search that found the plan
    inputs: tuple[Mapping[str, Any], ...] = ()  # of a micro-batch; see `describe_inputs`
    parameters: Mapping[str, Sequence[int]] = field(default_factory=dict)  # shapes, by name
    predicted: Mapping[str, Any] = field(default_factory=dict)  # predicted metrics, by name

    def __repr__(self) -> str:
        return (
            f"<Plan {self.method or 'by hand'} of {self.model or 'a model'}: {len(self.tiles)} operators "
            f"on {self.devices} devices, batch {self.batch}, sync {self.sync}>"
        )

    if not TYPE_CHECKING:  # a type checker shall still report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            """Raises AttributeError; for an attribute of the result of planning, it says where that is."""
            if name in RESULT_NAMES:
                raise AttributeError(
                    f"a Plan is plain data and has no {name!r}: the result of raddle.plan and of "
                    f"raddle.load_plan has it, as result.{name}."
                )
            raise AttributeError(f"'Plan' object has no attribute {name!r}")

    @property
    def parsed_sync(self) -> Sync:
        """The sync kind and its options, parsed from `sync`."""
        return read_sync(self.sync)

    @property
    def parsed_precision(self) -> Precision:
        """The precision and its options, parsed from `precision`."""
        return read_precision(self.precision)

    @property
    def server(self) -> int | None:
        """The one device that updates all parameters, if `sync` names one."""
        return self.parsed_sync.server


def describe_inputs(graph: Graph) -> tuple[Mapping[str, Any], ...]:
    """Returns names, shapes and types of a graph's inputs: what the example batch of a plan has.

    letters: one for each dimension, such as n for samples.
    """
    names = [n for n in graph.inputs if graph.values[n].role == "input"]
    return tuple(
        {
            "name": name,
            "shape": list(graph.values[name].shape),
            "dtype": str(graph.values[name].dtype).removeprefix("torch."),
            "letters": graph.values[name].letters,
        }
        for name in names
    )


def parameter_shapes(graph: Graph) -> dict[str, list[int]]:
    """Returns the shapes of a graph's parameters, by name."""
    return {p.name: list(p.shape) for p in graph.parameters}
