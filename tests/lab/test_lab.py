"""Real labs: links, rates, launching of commands, and that nothing remains afterwards (needs root)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from timeouts import HANG, wait_until

from raddle.errors import InputError
from raddle.lab import Lab, LaunchError, launch, namespaces, status, torchrun
from raddle.lab.commands import call, call_json
from raddle.lab.processes import processes_in


def _reason() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    if not all(shutil.which(tool) for tool in ("ip", "tc")):
        return "needs ip and tc, of iproute2"
    if subprocess.run(
        ["ip", "netns", "add", TRIAL_NAMESPACE], capture_output=True, check=False
    ).returncode:
        return "needs the right to make network namespaces"
    subprocess.run(["ip", "netns", "del", TRIAL_NAMESPACE], check=True)
    return None


PREFIX = f"test{os.getpid()}"  # other processes may test at the same time
TRIAL_NAMESPACE = f"probe-{PREFIX}"
REASON = _reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

MIB = 2**20
FAILED = 37  # an exit code that nothing else has

SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 7777))
print("ready", flush=True)
connection = server.accept()[0]
left = int(sys.argv[2])
while left:
    left -= len(connection.recv(65536))
connection.sendall(b"k")
"""
CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7777))
connection.sendall(bytes(int(sys.argv[2])))
assert connection.recv(1) == b"k"
print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(10_000)
"""
ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1 << 20,), 1.0 + dist.get_rank())  # 4 MiB
dist.all_reduce(x)
print("sum", int(x[0]), int(x[-1]), dist.get_world_size(), os.environ["OMP_NUM_THREADS"])
dist.destroy_process_group()
"""


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """After all tests, no namespace of them may exist."""
    yield
    if REASON is None:
        left = [row["name"] for row in call_json("ip", "netns", "list") if PREFIX in row["name"]]
        for lab in {lab for lab in status.labs() if lab.startswith(PREFIX)}:
            namespaces.remove(lab)
        assert left == []


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab.up(hosts=4, rate="200mbit", rates={2: "100mbit"}, name=PREFIX) as lab:
        yield lab


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *map(str, args)]


def send(lab: Lab, source: int, target: int, nbytes: int) -> str:
    """Send `nbytes` from one host to another over TCP; return how TCP controls congestion."""
    address = lab.addresses[target]
    server = lab.exec(target, python(SERVER, address, nbytes), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        client = lab.command(source, python(CLIENT, address, nbytes))
        done = subprocess.run(client, timeout=HANG, check=True, capture_output=True, text=True)
        assert server.wait(timeout=HANG) == 0
        return done.stdout.strip()
    finally:
        server.kill()
        server.wait(timeout=HANG)
        server.stdout.close()


def test_every_host_reaches_every_host(lab: Lab) -> None:
    subnet = lab.addresses[0].rpartition(".")[0]
    assert lab.addresses == tuple(f"{subnet}.{i}" for i in (1, 2, 3, 4))
    for source in range(4):
        assert (
            send(lab, source, (source + 1) % 4, 1) == "cubic"
        )  # whatever the machine's default is
    send(lab, 3, 3, 1)  # loopback is up


def test_a_host_reaches_nothing_else(lab: Lab) -> None:
    routes = call_json("ip", "-n", lab.namespaces[1], "route", "show")
    assert [route["dst"] for route in routes] == [lab.addresses[0].rpartition(".")[0] + ".0/24"]


@pytest.mark.parametrize(
    ("source", "target", "rate"),
    [(0, 1, "200mbit"), (1, 2, "100mbit"), (2, 3, "100mbit")],
    ids=["even", "into the slow host", "out of the slow host"],
)
def test_a_link_has_its_rate_and_counts_its_bytes(
    lab: Lab, source: int, target: int, rate: str
) -> None:
    """The kernel has the right rates at both ends; `bench/network` measures the real throughput."""
    rates = [row["rate"] for row in status.host_rows(lab.name)]
    assert "100mbit" not in (rates[source], rates[target]) or rate == "100mbit"
    assert rate in (rates[source], rates[target])
    nbytes = 16 * MIB
    before = lab.counters()
    send(lab, source, target, nbytes)
    after = lab.counters()
    sent = after[source].sent - before[source].sent
    received = after[target].received - before[target].received
    assert nbytes < sent < 1.1 * nbytes  # with headers and retransmissions
    assert nbytes < received < 1.1 * nbytes


def test_two_labs_do_not_meet(lab: Lab) -> None:
    with Lab.up(hosts=2, rate="1gbit", name=f"{PREFIX}-0") as other:
        assert not set(lab.addresses) & set(other.addresses)
        assert other.addresses[0].rpartition(".")[0] != lab.addresses[0].rpartition(".")[0]
        send(other, 0, 1, MIB)
        send(lab, 0, 1, 1)
        assert Lab.find(lab.name) == lab
        assert Lab.find(other.name) == other
    assert Lab.find(lab.name) == lab
    with pytest.raises(InputError, match="there is no lab"):
        Lab.find(other.name)


def test_up_twice(lab: Lab) -> None:
    with pytest.raises(
        InputError, match=f"already: remove it with `raddle lab down --name {lab.name}`"
    ):
        Lab.up(hosts=1, name=lab.name)
    assert Lab.find(lab.name) == lab  # untouched


def test_removed_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raddle.lab.processes.GRACE_SECONDS", 1.0)
    name, sleepers = f"{PREFIX}-x", []

    def fail_inside() -> None:
        with Lab.up(hosts=2, name=name) as lab:
            sleepers.append(lab.exec(1, python(STUBBORN), stdout=subprocess.PIPE))
            sleepers[0].stdout.readline()  # from here on it ignores SIGTERM
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    sleepers[0].stdout.close()
    assert sleepers[0].wait(timeout=HANG) == -signal.SIGKILL
    assert status.namespaces(name) == []


def test_what_fails_half_way_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def fail_later(tool: str, *words: str) -> str:
        if tool == "tc" and "raddle-" in words[1] and words[1].endswith("-2"):
            seen.append(status.namespaces(f"{PREFIX}-h"))
            raise InputError("no")
        return call(tool, *words)

    monkeypatch.setattr(namespaces, "call", fail_later)
    with pytest.raises(InputError, match="no"):
        Lab.up(hosts=4, name=f"{PREFIX}-h")
    assert [name.rpartition("-")[2] for name in seen[0]] == ["net", "0", "1", "2"]
    assert status.namespaces(f"{PREFIX}-h") == []


def test_a_lab_that_a_crash_left_is_seen_and_removed() -> None:
    name = f"{PREFIX}-c"
    call("ip", "netns", "add", f"raddle-{name}-0")  # without its network
    assert status.host_rows(name)[0]["address"] is None
    with pytest.raises(InputError, match="is not whole at host 0: remove it with"):
        Lab.find(name)
    assert name in raddle("lab", "status").stdout
    assert raddle("lab", "up", "--name", name).returncode == 2
    assert raddle("lab", "down", "--name", name).returncode == 0
    assert status.namespaces(name) == []


def test_all_reduce_on_four_hosts(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    port = torchrun.free_port(lab, host=0)

    def argv(host: int) -> list[str]:
        meet = [f"MASTER_ADDR={lab.addresses[0]}", f"MASTER_PORT={port}"]
        return ["env", *meet, f"RANK={host}", "WORLD_SIZE=4", sys.executable, str(script)]

    before = lab.counters()
    outputs = launch(lab, argv, timeout=HANG)
    sent = [b.sent - a.sent for a, b in zip(before, lab.counters(), strict=True)]
    assert ["sum 10 10 4 1" in output for output in outputs] == [True] * 4
    print("sent", sent)
    # A ring sends 2 (n-1)/n of the 4 MiB from every host, so its bytes went over the links.
    assert all(1.5 * 4 * MIB < nbytes < 1.7 * 4 * MIB for nbytes in sent)


def test_torchrun_on_two_hosts(tmp_path: Path) -> None:
    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    with Lab.up(hosts=2, name=f"{PREFIX}-t") as lab:
        lines = torchrun.torchrun_commands(lab, [str(script)], per_host=2)
        outputs = launch(lab, lines.__getitem__, timeout=HANG)
        assert [output.count("sum 10 10 4 1") for output in outputs] == [2, 2]
        assert processes_in(lab.namespaces) == set()


def test_a_failing_host_ends_the_others(lab: Lab) -> None:
    # The child leaves the process group, as the ranks of torchrun do.
    leaves = (
        "import subprocess, time; subprocess.Popen(['sleep', '10000'], start_new_session=True); "
    )
    waits = python(leaves + "print('waiting', flush=True); time.sleep(10_000)")
    fails = python(
        f"import time; print('oh no', flush=True); time.sleep(0.5); raise SystemExit({FAILED})"
    )
    with pytest.raises(LaunchError, match=f"host 2 failed with code {FAILED}") as caught:
        launch(lab, lambda host: fails if host == 2 else waits, timeout=HANG)
    assert caught.value.codes == {2: FAILED}
    assert "oh no" in str(caught.value)
    assert "waiting" not in str(caught.value)
    assert processes_in(lab.namespaces) == set()


def test_a_launch_ends_and_leaves_others_alone(lab: Lab) -> None:
    other = lab.exec(1, ["sleep", "10000"])
    try:
        wait_until(lambda: processes_in(lab.namespaces) == {other.pid})
        with pytest.raises(
            LaunchError, match=r"not done after 0\.3 s, and ended: host 0"
        ) as caught:
            launch(lab, lambda host: ["sleep", "10000"], timeout=0.3)
        assert caught.value.timed_out
        assert processes_in(lab.namespaces) == {other.pid}
    finally:
        other.kill()
        other.wait(timeout=HANG)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_hosts(lab: Lab, number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import signal, sys; from raddle.lab import Lab, launch\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"  # as `raddle lab run` has it
        f"launch(Lab.find({lab.name!r}), lambda host: ['sleep', '10000'], 10_000)"
    )
    with (tmp_path / "errors").open("w") as errors:
        launcher = subprocess.Popen([sys.executable, "-c", code], stderr=errors)
    try:
        wait_until(lambda: len(processes_in(lab.namespaces)) == 4)
        launcher.send_signal(number)
        assert launcher.wait(timeout=HANG) != 0
    finally:
        launcher.kill()
        launcher.wait(timeout=HANG)
    assert processes_in(lab.namespaces) == set()


def test_the_command_line(tmp_path: Path) -> None:
    name = ("--name", f"{PREFIX}-l")
    made = raddle("lab", "up", "--hosts", "2", "--rate-of", "1=10mbit", *name, "--json")
    rows = json.loads(made.stdout)
    assert [(row["host"], row["rate"], row["bits_per_s"]) for row in rows] == [
        (0, "1gbit", 10**9),
        (1, "10mbit", 10**7),
    ]
    again = raddle("lab", "up", *name)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("raddle: there is a lab")
    assert again.stderr.count("\n") == 1
    inner = "ip -j addr show dev lab0; exit 7"
    there = raddle("lab", "exec", "1", *name, "--", "sh", "-c", inner)
    assert there.returncode == 7
    assert rows[1]["address"] in there.stdout
    assert raddle("lab", "exec", "2", *name, "--", "true").returncode == 2
    table = raddle("lab", "status", *name).stdout
    assert rows[0]["address"] in table
    assert "10mbit" in table
    down = json.loads(raddle("lab", "down", *name, "--json").stdout)
    assert len(down["removed"]) == 3
    # To remove a lab that does not exist is no error.
    assert raddle("lab", "down", *name).returncode == 0


def test_running_a_plan(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = raddle("lab", "run", str(tmp_path / "none.json"), "--name", lab.name)
    assert missing.returncode == 2
    assert "there is no plan" in missing.stderr
    seen: list[Any] = []

    def record(where: Lab, argv: Any, timeout: float, *, show: bool) -> list[str]:
        seen.extend([where, [argv(host) for host in range(4)], timeout, show])
        return []

    monkeypatch.setattr("raddle.lab.lab.launch", record)
    lab.run("p.json", "--json", "--lr", "0.1", steps=3, per_host=2, timeout=9)
    port = seen[1][0][seen[1][0].index("--master-port") + 1]
    assert (seen[0], seen[2], seen[3]) == (lab, 9, False)
    for host, line in enumerate(seen[1]):
        assert " ".join(line[1:]) == (
            f"-m raddle.transport.torchrun --nnodes 4 --nproc-per-node 2 --node-rank {host} "
            f"--local-addr {lab.addresses[host]} --master-addr {lab.addresses[0]} "
            f"--master-port {port} -m raddle.runtime p.json --steps 3 --json --lr 0.1"
        )


def test_a_run_that_fails_gives_its_code(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with Lab.up(hosts=1, name=f"{PREFIX}-r") as lab:
        done = raddle("lab", "run", str(plan), "--name", lab.name, "--steps", "2", "--no-such", "3")
    assert done.returncode == 1  # the code of torchrun, not that of its ranks
    assert "raddle: host 0 failed with code 1." in done.stderr
    assert done.stdout == ""


def raddle(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *args],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )


MAIN = """
from raddle.cli import main as cli
from raddle.cli.lab import app
if all(group.name != "lab" for group in cli.app.registered_groups):
    cli.app.add_typer(app, name="lab")
cli.main()
"""
