"""The verb `reproduce`."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raddle.commands.options import Json
from raddle.commands.output import check_folder, show
from raddle.errors import InputError
from raddle.files import write_atomically

if TYPE_CHECKING:
    from raddle.reproduce.result import Result

FACES = (".html", ".md", ".json")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An experiment; without one, the list.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes on two cores: fewer sizes.")
    ] = False,
    part: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Only this part. Repeatable.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="A page (.html), tables (.md) or JSON (.json)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Do the experiments of a paper again: its figures beside raddle's, measured or simulated."""
    from raddle.reports import experiments, terminal
    from raddle.reproduce.experiment import EXPERIMENTS, choose, load
    from raddle.reproduce.experiment import reproduce as do
    from raddle.reproduce.result import plain

    if name is None:
        show(dict(EXPERIMENTS), experiments.show_experiments, as_json=as_json)
        return
    if output is not None:
        if pathlib.Path(output).suffix not in FACES:
            raise InputError(f"'{output}' is to end in {', '.join(FACES)}: name another file.")
        check_folder(output)
    experiment = choose(load(name), part or [])
    with terminal.progress_bar(f"reproduce {name}") as heard:
        result = do(experiment, quick=quick, heard=heard)
    if output is not None:
        write_atomically(output, _face(result, output))
    if as_json:
        show(plain(result), _nothing, as_json=True)
    else:
        experiments.show_result(result)


def _face(result: "Result", output: str) -> str:
    import json

    from raddle.page.paper import paper_page
    from raddle.reproduce.markdown import markdown
    from raddle.reproduce.result import plain

    suffix = pathlib.Path(output).suffix
    if suffix == ".md":
        return markdown(result)
    return json.dumps(plain(result), indent=1) + "\n" if suffix == ".json" else paper_page(result)


def _nothing(value: Any) -> None:
    pass
