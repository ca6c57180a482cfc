"""The verb `models`: lists the zoo, or shows the layers of one model."""

from typing import Annotated

import typer

from raddle.cli.options import Batch, Json
from raddle.cli.output import show
from raddle.cli.preparation import capture_with_spinner


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A model of the zoo, or file.py:function that builds one."
        ),
    ] = None,
    batch: Batch = None,
    as_json: Json = False,
) -> None:
    """List the models of the zoo, or show one model layer by layer."""
    from raddle.reports.model_summary import describe_model
    from raddle.reports.tables import models as tables

    if name is None:
        from raddle.api.models import zoo_names

        show([{"name": zoo_name} for zoo_name in zoo_names()], tables.show_models, as_json=as_json)
    else:
        show(describe_model(capture_with_spinner(name, batch)), tables.show_model, as_json=as_json)
