"""A wrapped optimizer trains as DistributedDataParallel does, on real processes, and has clear errors.

Ranks are forked once for each number of ranks and run all of its cases: `wrapped_optimizer_cases.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from timeouts import HANG, LONG_HANG
from wrapped_optimizer_cases import KINDS, cases

from raddle.errors import InputError
from raddle.plans.sync import read_sync
from raddle.sync.sync_settings import check_sync

HERE = Path(__file__).parent


@pytest.mark.parametrize("size", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_trains_as_ddp_does(size: int) -> None:
    """Runs in a new process, because it forks ranks: PyTorch forbids a fork after a backward."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "wrapped_optimizer_ranks.py"), str(size)],
        capture_output=True, text=True, timeout=LONG_HANG, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    errors = json.loads(done.stdout)
    wrong = [f"{name}\n{error}" for name, error in errors.items() if error]
    assert not wrong, "\n".join(wrong)
    assert set(errors) == set(cases(size))
    assert done.returncode == 0


def test_the_cases_cover_all_kinds() -> None:
    two = set(cases(2))
    assert {f"plain {name} {kind}" for name in ("SGD", "Adam") for kind in KINDS} <= two
    assert len(KINDS) == 16
    for size in (3, 4):
        kinds = {name.split()[2].partition(":")[0] for name in cases(size) if name[:5] == "plain"}
        assert kinds == {"allreduce", "sharded", "p3", "ps"}


def torchrun(how: str, kind: str) -> subprocess.CompletedProcess[str]:
    """Starts the ranks itself, because torchrun would end rank 0 when rank 1 dies."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": "2",
    }
    with socket_port() as port:
        environment["MASTER_PORT"] = str(port)
    line = [sys.executable, str(HERE / "wrapped_optimizer_script.py"), how, kind]
    other = subprocess.Popen(
        line, env={**environment, "RANK": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip
    try:
        done = subprocess.run(
            line, env={**environment, "RANK": "0"}, capture_output=True, text=True,
            timeout=2 * HANG, check=False,
        )  # fmt: skip
        said, _ = other.communicate(timeout=HANG)
    finally:
        other.kill()
    done.stdout += said
    return done


class socket_port:
    def __enter__(self) -> int:
        import socket

        self._socket = socket.create_server(("127.0.0.1", 0))
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.mark.parametrize("kind", ["p3", "allreduce", "p3:collective"])
def test_a_killed_rank_is_named(kind: str) -> None:
    done = torchrun("killed", kind)
    match = re.search(r"rank 0 hears: .*rank 1", done.stdout)
    assert match, done.stdout + done.stderr
    assert "ended without a word" in done.stdout
    assert done.returncode == 1


def test_an_exception_that_nobody_catches_is_told_to_the_others() -> None:
    done = torchrun("raises", "p3")
    match = re.search(r"rank 0 hears: .*KeyError: 'no such sample'", done.stdout)
    assert match, done.stdout + done.stderr


def test_the_end_of_the_process_closes() -> None:
    done = torchrun("well", "p3")
    assert done.returncode == 0, done.stderr
    ends = re.findall(r"rank \d ends with (-?[\d.]+)", done.stdout)
    assert len(ends) == 2, done.stdout + done.stderr
    assert ends[0] == ends[1]
    assert "Error" not in done.stdout + done.stderr


def test_the_example_learns() -> None:
    pytest.importorskip("sklearn")
    script = Path(__file__).parents[2] / "examples" / "horovod_style.py"
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*line, str(script), "--epochs", "3"], capture_output=True, text=True, timeout=HANG,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *epochs, last = done.stdout.splitlines()
    assert len(epochs) == 3
    assert float(epochs[2].split()[4].rstrip("%")) > 85
    assert last.startswith("p3: ")


def test_without_a_job_the_next_step_is_said() -> None:
    environment = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE")}
    script = "from raddle import sync; sync.init()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert "start with torchrun --nproc-per-node N" in done.stderr


def test_parameters_are_divided_by_plans_alone() -> None:
    with pytest.raises(
        InputError, match="a module needs its parameters whole: use sharded, or a plan"
    ):
        check_sync(read_sync("sharded:parameters"), 2)
    with pytest.raises(InputError, match=r"'group=2', and .* use sharded, or a plan"):
        check_sync(read_sync("sharded,group=2"), 4)


def test_the_package_is_imported_without_torch() -> None:
    script = "import sys, raddle.sync; print('torch' in sys.modules, sorted(raddle.sync.__all__))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    names = ["Optimizer", "broadcast", "close", "init", "rank", "report", "size"]
    assert done.stdout.strip() == f"False {names}"


def test_every_name_is_there_and_no_other() -> None:
    from raddle import sync

    for name in sync.__all__:
        assert getattr(sync, name) is getattr(sync, name)
    with pytest.raises(AttributeError, match="has no attribute 'loom'"):
        sync.loom  # noqa: B018
    with pytest.raises(RuntimeError, match=r"call raddle\.sync\.init\(\) first"):
        sync.rank()
