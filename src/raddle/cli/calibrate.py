"""The verb `calibrate`: fits numbers of a cluster to measured throughputs."""

from typing import Annotated

import typer

from raddle.cli.options import Json
from raddle.cli.output import check_folder, show


def calibrate(
    cluster: Annotated[
        str,
        typer.Argument(metavar="CLUSTER", help="A preset such as p100:4x4, or a YAML file."),
    ],
    measured: Annotated[
        str,
        typer.Argument(
            metavar="MEASURED.csv",
            help="Measured steps: model, batch, devices, method or plan, sync, samples_per_s or step_ms, "
            "use (fit or held-out).",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the fitted cluster to this file."
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Numbers to fit: peak, conv, matmul, attention, memory, link, network, overhead, message, "
            "slice, sum, byte, collective (docs/calibrating.md); and after, to try synchronisation after "
            "the backward. Default: those that the measurements determine.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit numbers of a cluster to measured throughputs: efficiencies, bandwidths, overheads."""
    from raddle.api import calibrating
    from raddle.api import clusters as cluster_api
    from raddle.reports.progress import progress_bar
    from raddle.reports.tables.calibration import show_calibration

    names = None if fit is None else [name.strip() for name in fit.split(",") if name.strip()]
    target = cluster_api.cluster(cluster)
    measurements = calibrating.read_measurements(measured)
    if output is not None:
        check_folder(output)
    with progress_bar(f"calibrating {target.name}") as on_progress:
        calibration = calibrating.calibrate(target, measurements, names, on_progress=on_progress)
    if output is not None:
        calibrating.write_cluster(calibration, measured, output)
    show({**calibrating.describe(calibration), "file": output}, show_calibration, as_json=as_json)
