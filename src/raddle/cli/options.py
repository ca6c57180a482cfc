"""Options that several verbs take."""

from typing import Annotated

import typer

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model of the zoo or file.py:function.")
]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file.")]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster", metavar="C", help="A preset, as p100:4x4 or local:2, or a YAML file."
    ),
]
Methods = Annotated[
    str | None, typer.Option(metavar="A,B,…", help="Methods; all if none are named.")
]
Batch = Annotated[int | None, typer.Option(metavar="B", min=1, help="Global batch.")]
Statistics = Annotated[
    str, typer.Option(metavar="local|global", help="Samples that batch statistics are taken over.")
]
Sync = Annotated[
    str,
    typer.Option(
        metavar="auto|allreduce|sharded|ps|p3",
        help="How copies of a parameter agree; with words as in ps:sliced,greedy or p3:collective "
        "(docs/syncing.md).",
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Measured operators, from `raddle probe --model`."),
]
Budget = Annotated[
    float, typer.Option(metavar="S", min=0.0, help="Seconds that a search may take, about.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of a search's random moves.")]
Reduction = Annotated[
    bool | None,
    typer.Option(
        "--reduction/--no-reduction",
        help="Whether sums (k) may be split. flexflow and auto do, optcnn does not.",
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="PATTERN=SPLIT",
        help="What is decided already: 'features.*=n/4'. Repeatable.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        metavar="flops|time|both|FILE", help="The work that is balanced; a file has it by layer."
    ),
]
Connected = Annotated[
    bool, typer.Option("--connected-as-one", help="Fully connected layers are never split.")
]
DeviceOf = Annotated[
    str, typer.Option("--cluster", metavar="C", help="Whose first device --weights time means.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(metavar="FILE.PY:FUNCTION", help="The model, if the plan names none."),
]
RunSeed = Annotated[int, typer.Option(metavar="S", help="Of weights, batch and dropout.")]
OtherCluster = Annotated[
    str | None, typer.Option(metavar="C", help="Another cluster than the plan's own.")
]
OtherModel = Annotated[
    str | None,
    typer.Option(metavar="FILE.PY:FUNCTION", help="The model, if its name has changed."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")]
