"""From the start of the server to its end, which is a signal."""

from __future__ import annotations

import signal
import webbrowser

from raddle.serving.server import Server

ENDS = (signal.SIGINT, signal.SIGTERM)


def run(port: int, folder: str, *, show: bool = False) -> None:
    """Serve until Ctrl-C or SIGTERM; children end first."""
    # Set, and not taken as it is: a shell's background jobs ignore SIGINT, and children would inherit that.
    before = {end: signal.signal(end, signal.default_int_handler) for end in ENDS}
    server: Server | None = None
    try:
        server = Server(port, folder)
        kept = server.answers.shelf.folder
        print(
            f"raddle serves at {server.url}, reports are kept in {kept} (Ctrl-C ends it)",
            flush=True,
        )
        if show:
            webbrowser.open(server.url)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        for end in ENDS:  # a second Ctrl-C must not leave a child behind
            signal.signal(end, signal.SIG_IGN)
        if server is not None:
            server.server_close()
            server.answers.end()
        for end, handler in before.items():
            signal.signal(end, handler)
