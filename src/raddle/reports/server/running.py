"""From the start of the server to its end, which is a signal."""

from __future__ import annotations

import signal
import webbrowser

from raddle.reports.server.server import Server

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, and a terminal that is closed


def run(port: int, folder: str, *, show: bool = False) -> None:
    """Serve until a signal of ENDS; children end first."""
    # Set, and not taken as it is: a shell's background jobs ignore SIGINT, and children would inherit that.
    # Only a hangup that is ignored stays so: that is what nohup is for.
    ends = [e for e in ENDS if e != signal.SIGHUP or signal.getsignal(e) != signal.SIG_IGN]
    before = {end: signal.signal(end, signal.default_int_handler) for end in ends}
    server: Server | None = None
    try:
        server = Server(port, folder)
        kept = server.answers.shelf.folder
        print(
            f"raddle serves at {server.address}\nreports are kept in {kept} (Ctrl-C ends it)",
            flush=True,
        )
        if show:
            webbrowser.open(server.address)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        for end in ends:  # a second Ctrl-C must not leave a child behind
            signal.signal(end, signal.SIG_IGN)
        if server is not None:
            server.server_close()
            server.answers.end()
        for end, handler in before.items():
            signal.signal(end, handler)
