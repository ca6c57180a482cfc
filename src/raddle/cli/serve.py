"""The verb `serve`: starts a local web server, whose page starts searches and shows their reports."""

from typing import Annotated

import typer


def serve(
    port: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=65535, help="Port on localhost; 0 takes a free one."),
    ] = 8008,
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="Folder where reports and plans are stored.")
    ] = "raddle-reports",
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a page on localhost to choose models and methods, watch searches and store reports."""
    from raddle.reports.server.run_server import run_server

    run_server(port, folder, show=show)
