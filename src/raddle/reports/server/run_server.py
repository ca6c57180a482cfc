"""Runs the server of `raddle serve` until a signal ends it."""

from __future__ import annotations

import signal
import webbrowser

from raddle.reports.server.server import Server

# Signals that end the server: Ctrl-C, kill, and a terminal that is closed.
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_server(port: int, folder: str, *, show: bool = False) -> None:
    """Serve until one of END_SIGNALS arrives, then end the child processes.

    port: 0 takes a free port; folder: where reports are stored; show: open the page in a browser.
    """
    # A shell's background jobs ignore SIGINT, and children would inherit that: so handlers are set here.
    # Only an ignored SIGHUP stays ignored, as nohup wants it.
    handled = [
        end_signal
        for end_signal in END_SIGNALS
        if end_signal != signal.SIGHUP or signal.getsignal(end_signal) != signal.SIG_IGN
    ]
    old_handlers = {
        end_signal: signal.signal(end_signal, signal.default_int_handler) for end_signal in handled
    }
    server: Server | None = None
    try:
        server = Server(port, folder)
        folder_path = server.routes.report_folder.path
        print(
            f"raddle serves at {server.address}\nreports are kept in {folder_path} (Ctrl-C ends it)",
            flush=True,
        )
        if show:
            webbrowser.open(server.address)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        for end_signal in handled:  # a second Ctrl-C must not leave a child behind
            signal.signal(end_signal, signal.SIG_IGN)
        if server is not None:
            server.server_close()
            server.routes.shut_down()
        for end_signal, handler in old_handlers.items():
            signal.signal(end_signal, handler)
