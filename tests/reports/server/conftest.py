"""Starts a real server in a process of its own, on a free port, with a client for it."""

import http.client
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from timeouts import HANG, wait_until


class RunningServer:
    """A running server, and functions that send requests to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        arguments = ["-m", "raddle", "serve", "--port", "0", "--folder", str(folder)]
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.printed = self.process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)", self.printed)
        assert match, self.printed
        self.url, self.port = match[0], int(match[1])
        self.address = self.printed.split()[-1]
        self.key = self.address.partition("#key=")[2]

    def send_request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, _, body = self.send_request("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, body_value: Any, **headers: str) -> tuple[int, Any]:
        sent = {"Content-Type": "application/json", "X-Raddle-Key": self.key}
        sent |= {key.replace("_", "-"): value for key, value in headers.items()}
        status, _, body = self.send_request("POST", path, json.dumps(body_value).encode(), sent)
        return status, json.loads(body)

    def start(self, **changed: Any) -> tuple[int, Any]:
        wanted = {"model": "lenet", "cluster": "local:2", "batch": None, "budget": 5}
        return self.post("/api/start", {**wanted, "methods": ["data", "owt"], **changed})

    def job(self) -> Any:
        return self.get("/api/state")["job"]

    def wait(self, condition: Any) -> Any:
        """Wait until the job's state meets a condition, and return that state."""
        seen: list[Any] = []

        def look() -> Any:
            seen.append(self.job())
            return condition(seen[-1])

        wait_until(look)
        return seen[-1]

    def wait_until_ended(self) -> Any:
        return self.wait(lambda job: job["state"] != "running")

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(HANG)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    yield from serving(tmp_path_factory.mktemp("reports"))


@pytest.fixture
def another(tmp_path):
    """A second server, for a test that ends it."""
    yield from serving(tmp_path)


def serving(folder):
    server = RunningServer(folder)
    yield server
    if server.process.poll() is None:
        server.end()
