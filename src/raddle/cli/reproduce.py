"""The verb `reproduce`: runs the experiments of a paper again (folder `experiments` of a checkout)."""

import os
import pathlib
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raddle.cli.end_signals import end_by_sigterm
from raddle.cli.options import Json
from raddle.cli.output import check_folder, show
from raddle.errors import InputError
from raddle.files import write_atomically

if TYPE_CHECKING:
    from raddle.reports.experiments.result import Result

OUTPUT_FORMATS = (".html", ".md", ".json")
# Files by which a checkout of raddle's repository is recognised.
CHECKOUT_FILES = ("experiments/experiment.py", "src/raddle/version.py")


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="An experiment; without it, the experiments are listed."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and smaller sizes: takes minutes on two cores.")
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="Run only this part of the experiment. Repeatable."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the result as a page (.html), tables (.md) or JSON (.json).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the experiments of a paper again: its numbers next to raddle's, measured or simulated."""
    from raddle.reports.experiments import result_tables as results
    from raddle.reports.experiments.result import result_to_dict
    from raddle.reports.progress import progress_bar

    registry = experiments()
    if name is None:
        show(dict(registry.EXPERIMENTS), results.show_experiments, as_json=as_json)
        return
    if output is not None:
        if pathlib.Path(output).suffix not in OUTPUT_FORMATS:
            raise InputError(
                f"'{output}' must end in {', '.join(OUTPUT_FORMATS)}: name another file."
            )
        check_folder(output)
    experiment = registry.choose(registry.load(name), part or [])
    end_by_sigterm()  # emulated hosts are removed
    with progress_bar(f"reproduce {name}") as on_progress:
        result = registry.reproduce(experiment, quick=quick, on_progress=on_progress)
    if output is not None:
        write_atomically(output, _format_result(result, output))
    if as_json:
        show(result_to_dict(result), _show_nothing, as_json=True)
    else:
        results.show_result(result)


def experiments() -> Any:
    """Return the module experiments/experiment.py, which lists, loads and runs the experiments.

    The checkout is added to PYTHONPATH too, for the ranks that an experiment starts.
    """
    root = str(_checkout())
    if root not in sys.path:
        sys.path.insert(0, root)
    paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])
    return import_module("experiments.experiment")


def _checkout() -> pathlib.Path:
    """Return the checkout of raddle: the one with this file, or else the working directory.

    Installed packages of raddle do not contain the experiments.
    """
    for root in (pathlib.Path(__file__).resolve().parents[3], pathlib.Path.cwd()):
        if all((root / part).is_file() for part in CHECKOUT_FILES):
            return root
    raise InputError(
        "the papers' experiments are not installed: clone raddle's repository and run "
        "`raddle reproduce` in its folder."
    )


def _format_result(result: "Result", output: str) -> str:
    """Return the content of the output file; its suffix says which of OUTPUT_FORMATS it has."""
    import json

    from raddle.reports.experiments.markdown import markdown
    from raddle.reports.experiments.result import result_to_dict
    from raddle.reports.page.paper import paper_page

    suffix = pathlib.Path(output).suffix
    if suffix == ".md":
        return markdown(result)
    return (
        json.dumps(result_to_dict(result), indent=1) + "\n"
        if suffix == ".json"
        else paper_page(result)
    )


def _show_nothing(value: Any) -> None:
    """Do nothing: `show` needs a function that prints a table, but does not call it for JSON."""
