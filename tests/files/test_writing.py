"""A file is replaced only when the new one is complete, so a full disk or an interrupt loses nothing."""

from __future__ import annotations

import gzip
import os
import pathlib
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from file_kinds import CLUSTER, GRAPH, PARTITIONER, PLAN, events

from raddle.api.plan_result import PlanResult, SimulatedPlan
from raddle.api.reporting import report
from raddle.clusters.file import save_cluster as save_cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.files import replace_atomically, write_atomically, write_json
from raddle.plans import plan_file
from raddle.probe import cache
from raddle.program.chrome_trace import write_events
from raddle.searches.hypergraph import explicit, formats
from raddle.searches.predict import simulate_steps
from raddle.simulation.trace import write_trace

Save = Callable[[pathlib.Path], object]
RESULT = PlanResult(SimulatedPlan(PLAN, GRAPH, CLUSTER))

# All functions that write a file for a user: plan -o, probe -o, probe --profile, report -o,
# simulate and run --trace, export -o, and partitions.
WRITERS: dict[str, Save] = {
    "plan.json": lambda path: plan_file.save(PLAN, GRAPH, path),
    "cluster.yaml": lambda path: save_cluster(CLUSTER.to_dict(), path, comments=["a test"]),
    "profile.json": lambda path: Profile(dict.fromkeys(map(str, range(99)), 0.5)).save(path),
    "report.html": lambda path: report(RESULT, path, methods=[], alternatives=0.0),
    "trace.json": lambda path: write_trace(simulate_steps(GRAPH, PLAN, CLUSTER), path),
    "trace.json.gz": lambda path: write_trace(simulate_steps(GRAPH, PLAN, CLUSTER), path),
    "run.json.gz": lambda path: write_events(events() * 50, path),
    "coarse.hgr": lambda path: formats.write_hypergraph(
        explicit.fine(PARTITIONER.network, PARTITIONER.model), path, "hmetis"
    ),
    "parts": lambda path: formats.write_partition(np.arange(2000) % 7, path),
    "any.json": lambda path: write_json(path, list(range(1000))),
}


@contextmanager
def full_disk(left: int) -> Iterator[None]:
    """Limits the size of files: a longer write raises an error, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file(name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    good = path.read_bytes()
    assert len(good) > 100
    with (
        full_disk(left=100),
        pytest.raises(InputError, match=r"cannot be written \(File too large\)"),
    ):
        WRITERS[name](path)
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_cache_that_cannot_be_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.remember("one", {"ranks": 2})
    with full_disk(left=100):
        cache.remember("two", {"ranks": 2, "long": "x" * 1000})
    assert cache.recall("one") == {"ranks": 2}
    assert cache.recall("two") is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, MemoryError])
def test_what_fails_half_way_leaves_nothing(
    error: type[BaseException], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(error), replace_atomically(path) as out:  # noqa: PT012, the error comes after a write
        out.write(b"new")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_one_or_the_other(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    contents = [letter * 100_000 for letter in "ab"]
    write_atomically(path, contents[0])
    done = threading.Event()
    seen: set[str] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(40):
        write_atomically(path, contents[number % 2], durable=False)
    done.set()
    thread.join()
    assert seen <= set(contents)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_permissions_stay(mode: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    path.touch()
    path.chmod(mode)
    write_atomically(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_text() == "new"


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: pathlib.Path) -> None:
    (tmp_path / "other").touch()
    write_atomically(tmp_path / "x", b"new")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_links_are_followed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "x").write_text("old")
    for link, target in (("link", "far/x"), ("dangling", "far/y")):
        (tmp_path / link).symlink_to(target)
        write_atomically(tmp_path / link, "new")
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / target).read_text() == "new"


def test_a_file_that_may_not_be_written() -> None:
    folder = pathlib.Path(tempfile.mkdtemp())
    path = folder / "x"
    path.write_text("old")
    path.chmod(0o444)
    folder.chmod(0o777)
    child = os.fork()
    if child == 0:  # the child is not root
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            write_atomically(path, "new")
        except InputError as error:
            os._exit(7 if "Permission denied" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert path.read_text() == "old"
    shutil.rmtree(folder)


def test_a_folder_and_no_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        InputError, match=r"cannot be written \(Is a directory\): name another file"
    ):
        write_atomically(tmp_path, "new")
    with pytest.raises(InputError, match=r"cannot be written \(No such file or directory\)"):
        write_atomically(tmp_path / "no" / "x", "new")


def test_a_pipe_and_stdout(tmp_path: pathlib.Path) -> None:
    """A pipe or a device is written directly, not replaced."""
    script = "import sys; from raddle.files import write_atomically; write_atomically(sys.argv[1], 'é\\n')"
    (tmp_path / "file").write_text("before\n")
    with (tmp_path / "file").open("ab") as out:  # as `raddle plan -o /dev/stdout >> file` does
        subprocess.run([sys.executable, "-c", script, "/dev/stdout"], stdout=out, check=True)
        out.write(b"after\n")
    assert (tmp_path / "file").read_text() == "é\nafter\n"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script, "/dev/stdout"], capture_output=True, check=True
        ).stdout
    ]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: outputs.append(pipe.read_bytes()))
    thread.start()
    write_atomically(pipe, "é\n")
    thread.join()
    assert outputs == ["é\n".encode()] * 2
    assert pipe.is_fifo()


def test_the_same_trace_is_the_same_file(tmp_path: pathlib.Path) -> None:
    paths = [tmp_path / name for name in ("a.json.gz", "b.json.gz", "c.json")]
    for path in paths:
        write_events(events(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert gzip.decompress(paths[0].read_bytes()) == paths[2].read_bytes()


PLAN_COMMAND = ["plan", "lenet-tiny", "--cluster", "local:2", "--batch", "8", "--method", "data"]
VERBS = {
    "plan -o": [*PLAN_COMMAND, "-o", "{}"],
    "report -o": ["report", "lenet-tiny", "--cluster", "local:2", "--methods", "data", "-o", "{}"],
    "export -o": ["export", "lenet-tiny", "--to", "patoh", "-o", "{}"],
    "simulate --trace": ["simulate", "plan.json", "--trace", "{}"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_verbs_on_a_full_disk(verb: str, tmp_path: pathlib.Path) -> None:
    raddle = [sys.executable, "-m", "raddle"]
    if verb.startswith("simulate"):
        subprocess.run(
            [*raddle, *PLAN_COMMAND, "-o", "plan.json"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    words = [word.format("out") for word in VERBS[verb]]
    subprocess.run([*raddle, *words], cwd=tmp_path, check=True, capture_output=True)
    good = (tmp_path / "out").read_bytes()
    limited = ["bash", "-c", 'ulimit -f 1 && exec "$@"', "-", *raddle, *words]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "'out' cannot be written (File too large)" in done.stderr
    assert (tmp_path / "out").read_bytes() == good
