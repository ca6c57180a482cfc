"""A request makes a real child process write a report, which the server stores."""

import json
import os
import signal
import socket
import subprocess
import sys

from raddle.reports.server.page_file import read_page

FOR_EVER = 3600  # seconds: the longest that a search may be given, longer than any test


def test_a_report_is_made_kept_and_deleted(served):
    status, answer = served.start()
    assert (status, answer["job"]["state"]) == (200, "running")

    status, answer = served.start(model="gpt")
    assert status == 409
    assert answer["error"].startswith("lenet on local:2 is running: ")

    status, answer = served.post("/api/stop", {})
    assert (status, answer["error"][:21]) == (400, "this report has no se")

    job = served.wait(lambda job: job["of"] > 0)
    assert job["step"]
    job = served.wait_until_ended()
    assert (job["state"], job["error"]) == ("done", None)
    assert job["lower_bound_ms"] > 0

    name = job["report"]
    [report] = served.get("/api/reports")["reports"]
    assert (report["name"], report["model"], report["cluster"]) == (name, "lenet", "local:2")
    assert (report["best"], report["batch"]) == ("data", 64)

    status, headers, page = served.send_request("GET", f"/reports/{name}.html")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("sandbox")
    file = served.folder / f"{name}.html"
    assert page == file.read_bytes()
    assert read_page(file)["model"] == "lenet"
    files = sorted(str(path.relative_to(served.folder)) for path in served.folder.rglob("*.*"))
    assert {f"{name}.html", f"{name}.json", f"{name}/data.json", f"{name}/owt.json"} <= {*files}

    asked = {"report": name, "method": "owt", "op": "features.3"}
    status, explained = served.post("/api/explain", asked)
    assert (status, explained["op"]) == (200, "features.3")
    assert explained["alternatives"]

    status, answer = served.post("/api/delete", {"report": name})
    assert (status, answer) == (200, {"reports": []})
    assert list(served.folder.iterdir()) == []


def test_what_is_wrong_is_a_sentence(served):
    assert served.start(model="nope")[0] == 200
    job = served.wait_until_ended()
    assert job["state"] == "failed"
    assert job["error"].startswith("no model 'nope' in the zoo")
    assert list(served.folder.iterdir()) == []

    for changed, said in [
        ({"model": " "}, "name a model"),
        ({"model": 3}, "name a model"),
        ({"model": "a\nb"}, "cannot be printed"),
        ({"model": "a" * 2000}, "2000 characters"),
        ({"batch": 0}, "the batch is 0"),
        ({"batch": True}, "the batch is True"),
        ({"budget": "soon"}, "the time of a search is 'soon'"),
        ({"budget": float("nan")}, "the body is no JSON: it has NaN"),
        ({"methods": []}, "no method is chosen"),
        ({"methods": ["loom"]}, "no method 'loom'"),
        ({"methods": [["data"]]}, "no method ['data']"),
    ]:
        status, answer = served.start(**changed)
        assert status == 400
        assert said in answer["error"]


def test_a_search_that_is_stopped_keeps_its_best(served):
    served.start(methods=["data", "flexflow"], budget=FOR_EVER)
    assert (
        served.post("/api/stop", {})[0] == 200
    )  # the search has not begun: it is told when it has
    job = served.wait_until_ended()
    assert (job["state"], job["stopping"]) == ("done", True)
    [[_, best, method], *_] = job["history"]
    assert (best > 0, method) == (True, "flexflow")
    plan = json.loads((served.folder / job["report"] / "flexflow.json").read_text())
    assert plan["predicted"]["stopped"] == "interrupt"
    served.post("/api/delete", {"report": job["report"]})


def test_a_job_is_cancelled_and_a_child_ends_with_the_server(served):
    served.start()
    assert served.post("/api/cancel", {})[0] == 200
    assert served.wait_until_ended()["state"] == "cancelled"
    assert served.post("/api/cancel", {})[0] == 400
    assert list(served.folder.iterdir()) == []

    served.start(methods=["flexflow"], budget=FOR_EVER)
    [child] = child_pids(served.process.pid)
    assert served.end(signal.SIGTERM) == 0
    assert not os.path.exists(f"/proc/{child}")
    assert list(served.folder.iterdir()) == []


def test_a_child_ends_with_the_terminal(another):
    another.start(methods=["flexflow"], budget=FOR_EVER)
    [child] = child_pids(another.process.pid)
    assert another.end(signal.SIGHUP) == 0
    assert not os.path.exists(f"/proc/{child}")


def test_a_port_that_is_taken_is_a_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["-m", "raddle", "serve", "--port", str(port), "--folder", str(tmp_path / "r")]
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    said = f"raddle: port {port} is taken: choose another with --port {port + 1}.\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not (tmp_path / "r").exists()


def test_the_server_does_not_import_torch():
    script = "import sys, raddle.reports.server.run_server; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n"


def child_pids(parent: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    listing = subprocess.run(
        ["ps", "--ppid", str(parent), "-o", "pid="], capture_output=True, text=True
    )
    return [int(pid) for pid in listing.stdout.split()]
