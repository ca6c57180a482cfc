"""Options and arguments that several verbs (sub-commands) share.

OtherPrecision, OtherOptimizer   of `simulate` and `run`, in place of those in the plan file
Statistics                       `--bn`: the samples over which batch norm takes its statistics
Reduction                        whether dimensions that are summed over may be split
Weights, Connected, DeviceOf     of `partition` and `export`: the work to balance, whether fully connected
                                 layers stay whole, and the cluster whose first device gives the times
ModelOption, RunSeed             of `run` and `verify`
OtherCluster, OtherModel         of `simulate` and `explain`, in place of those in the plan file
"""

from typing import Annotated

import typer

from raddle.api.defaults import ALIASES

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model of the zoo, or file.py:function that builds one."
    ),
]
PlanFile = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan file, from `raddle plan -o FILE`.")
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="C",
        help="A preset such as p100:4x4 (nodes x devices) or local:2, or a YAML file.",
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help=f"Methods to compare; without it, all methods. Other names are {ALIASES}.",
    ),
]
Batch = Annotated[
    int | None, typer.Option(metavar="B", min=1, help="Global batch: samples of one training step.")
]
Statistics = Annotated[
    str,
    typer.Option(
        metavar="local|global",
        help="Samples that batch norm uses: those of a device, or of the whole batch.",
    ),
]
Sync = Annotated[
    str,
    typer.Option(
        metavar="auto|allreduce|sharded|ps|p3",
        help="How copies of a parameter are synchronised; some take options, such as ps:sliced,greedy, "
        "sharded,group=8 (HSDP) or allreduce:after, which does not overlap with the backward "
        "(docs/syncing.md).",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="float32|tf32|bf16|fp16|bf16:pure",
        help="Precision of the training: bf16 and fp16 are autocast, bf16:pure has master weights; "
        "ZeRO takes gather= and reduce=, such as bf16,reduce=bf16.",
    ),
]
OptimizerOption = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="sgd|momentum|adam|adamw",
        help="The optimizer, whose states need memory.",
    ),
]
CompileOption = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Predict a run with torch.compile, as `raddle run` does on GPUs; without it, an eager one.",
    ),
]
OtherPrecision = Annotated[
    str | None,
    typer.Option("--precision", metavar="P", help="Precision, instead of the plan's."),
]
OtherOptimizer = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="O", help="Optimizer, instead of the plan's."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Measured times of operators, from `raddle probe --model`."),
]
Budget = Annotated[
    float,
    typer.Option(
        metavar="S",
        min=0.0,
        help="Seconds that each search may take; it ends within 1.2 times as long, and 2 s.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the random numbers of a search.")]
Reduction = Annotated[
    bool | None,
    typer.Option(
        "--reduction/--no-reduction",
        help="Whether dimensions that are summed over may be split. Default: flexflow and auto do, optcnn "
        "does not.",
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="PATTERN=SPLIT",
        help="A fixed split for operators, such as 'features.*=n/4'. Repeatable.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        metavar="flops|time|both|FILE",
        help="The work that is balanced over parts (by the method mixed always flops); both: the mean of a "
        "layer's shares of flops and of time; FILE is JSON with the work of each layer.",
    ),
]
Connected = Annotated[
    bool, typer.Option("--connected-as-one", help="Do not split fully connected layers.")
]
DeviceOf = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="C",
        help="Cluster whose first device gives the times of --weights time or both.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(metavar="FILE.PY:FUNCTION", help="The model, if the plan file names none."),
]
RunSeed = Annotated[int, typer.Option(metavar="S", help="Seed of weights, batch and dropout.")]
OtherCluster = Annotated[
    str | None,
    typer.Option(metavar="C", help="Simulate on this cluster instead of the plan's own."),
]
OtherModel = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.PY:FUNCTION",
        help="The model, if it is no longer at the name in the plan file.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]
