"""The verb `models`."""

from typing import Annotated

import typer

from raddle.cli.options import Batch, Json
from raddle.cli.output import show
from raddle.cli.waiting import captured


def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A model of the zoo or file.py:function."),
    ] = None,
    batch: Batch = None,
    as_json: Json = False,
) -> None:
    """List the zoo, or show a model layer by layer."""
    from raddle.reports.models import describe
    from raddle.reports.tables import models as tables

    if name is None:
        from raddle.api.models import zoo_names

        show([{"name": known} for known in zoo_names()], tables.show_models, as_json=as_json)
    else:
        show(describe(captured(name, batch)), tables.show_model, as_json=as_json)
