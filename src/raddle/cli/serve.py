"""The verb `serve`."""

from typing import Annotated

import typer


def serve(
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="On localhost; 0 takes a free one.")
    ] = 8008,
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="Where reports and plans are kept.")
    ] = "raddle-reports",
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve the page live on localhost: choose, search, watch, and keep reports."""
    from raddle.reports.server.run_server import run_server

    run_server(port, folder, show=show)
