"""Serves `raddle serve` by HTTP on 127.0.0.1: checks who sends a request, and calls the routes.

Other pages in the same browser can send requests to this server (CSRF), and a name on the web can be made
to point to it (DNS rebinding). So the Host header must be this server's, requests from other sites are
refused, and every change is a POST of JSON with a key. The key is part of the address that `raddle serve`
prints, so other users of the machine do not have it: a model file is code, and would run as the server's
user.
"""

from __future__ import annotations

import json
import sys
from errno import EADDRINUSE
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import compare_digest
from typing import Any

from raddle.errors import InputError, shorten
from raddle.files import parse_json
from raddle.reports.server.report_job import ServerBusy
from raddle.reports.server.routes import HTML, ServerRoutes

LOOPBACK = "127.0.0.1"
MAX_BODY = 16 * 1024  # bytes of a request's body
# Bytes that are read of a refused body: a client that still sends would not receive the response.
MAX_DRAINED = 1024 * 1024


class Server(ThreadingHTTPServer):
    """The server; it listens on 127.0.0.1 only."""

    daemon_threads = True

    def __init__(self, port: int, folder: str) -> None:
        try:
            super().__init__((LOOPBACK, port), Handler)
        except (OSError, OverflowError) as error:
            # A port to recommend in the message.
            after = port + 1 if 0 < port < 65535 else 8008
            reason = (
                "is taken"
                if isinstance(error, OSError) and error.errno == EADDRINUSE
                else "cannot be used"
            )
            raise InputError(f"port {port} {reason}: choose another with --port {after}.") from None
        try:
            self.routes = ServerRoutes(folder)
        except InputError:
            self.server_close()
            raise
        names = (LOOPBACK, "localhost")
        # Values of the Host header that are this server's; browsers leave out port 80.
        self.hosts = {f"{name}:{self.server_port}" for name in names}
        if self.server_port == 80:
            self.hosts.update(names)

    @property
    def url(self) -> str:
        """The address of the server, without the key."""
        return f"http://{LOOPBACK}:{self.server_port}"

    @property
    def address(self) -> str:
        """The address of the page with the key; a browser never sends the part after #."""
        return f"{self.url}/#key={self.routes.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class RequestRefused(Exception):
    """Raised for a request that is refused, with the HTTP status and the reason."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: Server
    timeout = 30.0  # seconds to wait for the client's data
    server_version = "raddle"
    sys_version = ""

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def _respond(self, handle: Any) -> None:
        """Check the sender and call `handle`, which sends the answer; errors are sent as JSON."""
        try:
            self._check_sender()
            handle()
        except RequestRefused as refused:
            self._send_json(refused.status, {"error": str(refused)})
        except ServerBusy as busy:
            self._send_json(HTTPStatus.CONFLICT, {"error": str(busy)})
        except InputError as error:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": str(error)})

    def _get(self) -> None:
        """Answer a GET request: data as JSON, or a page."""
        if self.path in self.server.routes.get:
            self._send_json(HTTPStatus.OK, self.server.routes.get[self.path]())
            return
        page = self.server.routes.page(self.path)
        if page is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "there is nothing of this name.")
        self._send(HTTPStatus.OK, HTML, page.body, {"Content-Security-Policy": page.policy})

    def _post(self) -> None:
        """Check the key and the body of a POST request, and answer it."""
        body = self._read_body()
        if self.path not in self.server.routes.post:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "there is nothing of this name.")
        if self.headers.get_content_type() != "application/json":
            raise RequestRefused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json."
            )
        key = self.headers.get("X-Raddle-Key", "")
        if not compare_digest(key.encode(), self.server.routes.key.encode()):
            raise RequestRefused(
                HTTPStatus.FORBIDDEN,
                "this page has not the server's key: open the address that `raddle serve` printed.",
            )
        try:
            value = parse_json(body)
        except ValueError as error:
            reason = f"the body is no JSON: {shorten(str(error))}."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, reason) from None
        if not isinstance(value, dict):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "the body is not an object of JSON.")
        self._send_json(HTTPStatus.OK, self.server.routes.post[self.path](value))

    def _check_sender(self) -> None:
        """Raise RequestRefused for a wrong Host header, or a request that another site's page sent."""
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, f"this server is {self.server.url} and no other."
            )
        # A link on another site may open the page; all other requests must come from the page itself.
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        if self.path != "/" and site not in ("same-origin", "none"):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "other sites cannot ask here.")
        origin = self.headers.get("Origin")
        if origin is not None and origin.lower().removeprefix("http://") not in self.server.hosts:
            raise RequestRefused(HTTPStatus.FORBIDDEN, "other sites cannot ask here.")

    def _read_body(self) -> bytes:
        """Return the body of a request; raises RequestRefused if it has no length or is too long."""
        text = self.headers.get("Content-Length", "")
        if not (text.isascii() and text.isdigit()) or "Transfer-Encoding" in self.headers:
            raise RequestRefused(HTTPStatus.LENGTH_REQUIRED, "the body must say its length.")
        length = int(text[:12])  # int() refuses thousands of digits; 12 are more than enough
        if length > MAX_BODY:
            self.rfile.read(min(length, MAX_DRAINED))
            raise RequestRefused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has {length} bytes of {MAX_BODY} at most.",
            )
        return self.rfile.read(length)

    def _send_json(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        """Send a value as JSON."""
        self._send(status, "application/json", json.dumps(value).encode(), {})

    def _send(
        self, status: int, content_type: str, body: bytes, extra_headers: dict[str, str]
    ) -> None:
        """Send a response, which browsers neither store nor show inside other sites."""
        self.send_response(status)
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            **extra_headers,
        }
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors that http.server itself finds as JSON too."""
        self._send(
            code, "application/json", json.dumps({"error": message or str(code)}).encode(), {}
        )

    def log_message(self, format: str, *args: Any) -> None:
        """Print no line for each request."""
