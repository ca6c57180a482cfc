"""Transports: the same scenes on threads and on processes (gloo, loopback), with failures.

A scene is a function of one rank's transport; a world runs it on all ranks and returns what each
returned, or the error it raised.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from timeouts import HANG, wait_until

from raddle.errors import InputError
from raddle.transport import failure_channel, failures
from raddle.transport.base import Transport, WaitLabel
from raddle.transport.message_batch import MessageBatch
from raddle.transport.process_transport import ProcessTransport
from raddle.transport.thread_transport import Hub, ThreadTransport

SIZE = 3
EVERYONE = (0, 1, 2)
MI = 2**20

Scene = Callable[[Transport], Any]


def play(scene: Scene, transport: Transport) -> Any:
    """Runs a scene on one rank as an executor would: an exception is reported to all ranks."""
    try:
        return scene(transport)
    except Exception as error:
        transport.fail(str(error))
        return error
    finally:
        transport.close()


class ThreadWorld:
    def run(self, scene: Scene) -> list[Any]:
        hub = Hub(SIZE, HANG)
        results: list[Any] = [None] * SIZE

        def rank(r: int) -> None:
            results[r] = play(scene, hub.transport(r))

        threads = [threading.Thread(target=rank, args=(r,)) for r in range(SIZE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * HANG)
            assert not thread.is_alive()
        return results

    def close(self) -> None:
        pass


class ProcessWorld:
    """Processes that run many scenes, with a process group as a user would have made it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed"])  # imports torch once
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        for r in range(SIZE):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(r, port, there), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)

    def run(self, scene: Scene) -> list[Any]:
        for pipe in self.pipes:
            pipe.send(scene)
        results = []
        for pipe in self.pipes:
            assert pipe.poll(2 * HANG), f"a rank hangs in {scene.__name__}"
            try:
                results.append(pipe.recv())
            except EOFError:
                results.append("killed")
        return results

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(HANG)
        left = [process for process in self.processes if process.is_alive()]
        for process in left:
            process.kill()
        assert not left


def serve(rank: int, port: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    failures.GRACE = HANG  # however long the news take
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=SIZE)
    while True:
        try:
            scene = pipe.recv()
        except EOFError:
            break
        pipe.send(play(scene, ProcessTransport(torch.device("cpu"), timeout=HANG)))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def process_world() -> Iterator[ProcessWorld]:
    world = ProcessWorld()
    yield world
    world.close()


@pytest.fixture(params=["threads", "gloo"])
def world(request: pytest.FixtureRequest) -> ThreadWorld | ProcessWorld:
    if request.param == "threads":
        return ThreadWorld()
    return request.getfixturevalue("process_world")


def others(transport: Transport) -> list[int]:
    return [r for r in EVERYONE if r != transport.rank]


# --- messages


def all_pairs(transport: Transport) -> list[tuple[int, int, list[float]]]:
    """Every rank sends 20 messages to both others, the last tag first, after all receives are posted."""
    tags = range(20)
    inbox = {(r, tag): torch.zeros(tag + 1) for r in others(transport) for tag in tags}
    receives = {key: transport.receive(*key, buffer) for key, buffer in inbox.items()}
    transport.barrier()
    sends = [
        transport.send(r, tag, torch.full((tag + 1,), 100.0 * transport.rank + tag))
        for tag in reversed(tags)
        for r in others(transport)
    ]
    for pending in [*receives.values(), *sends]:
        pending.wait()
        pending.wait()  # a second time returns at once
    return [(r, tag, buffer.tolist()) for (r, tag), buffer in inbox.items()]


def test_messages_are_matched_by_tag(world: ThreadWorld | ProcessWorld) -> None:
    for rank, seen in enumerate(world.run(all_pairs)):
        assert seen == [
            (r, tag, [100.0 * r + tag] * (tag + 1))
            for r in EVERYONE
            if r != rank
            for tag in range(20)
        ]


def same_tag(transport: Transport) -> list[float]:
    if transport.rank == 0:
        sends = [transport.send(1, 7, torch.tensor([float(i)])) for i in range(5)]
        for pending in sends:
            pending.wait()
    if transport.rank == 1:
        inbox = [torch.zeros(1) for _ in range(5)]
        receives = [transport.receive(0, 7, buffer) for buffer in inbox]
        for pending in reversed(receives):
            pending.wait()
        return [float(buffer) for buffer in inbox]
    return []


def test_messages_of_one_tag_keep_their_order(world: ThreadWorld | ProcessWorld) -> None:
    assert world.run(same_tag)[1] == [0.0, 1.0, 2.0, 3.0, 4.0]


def packed(transport: Transport) -> bool:
    """One buffer holds a halo and a whole tensor; sender and receiver may view it differently."""
    parts = [torch.arange(6.0).view(2, 3), torch.arange(4.0) + 10]
    if transport.rank == 1:
        buffer = torch.cat([part.flatten() for part in parts])
        transport.send(2, 0, buffer).wait()
        buffer.zero_()  # sent is sent
    if transport.rank == 2:
        buffer = torch.empty(2, 5)
        transport.receive(1, 0, buffer).wait()
        first, second = buffer.view(-1).split([6, 4])
        return first.view(2, 3).equal(parts[0]) and second.equal(parts[1])
    return True


def test_packing(world: ThreadWorld | ProcessWorld) -> None:
    assert world.run(packed) == [True] * SIZE


def strided(transport: Transport) -> list[str]:
    column = torch.zeros(4, 4)[:, 0]
    refused = []
    for name, call in {
        "send": lambda: transport.send((transport.rank + 1) % SIZE, 0, column),
        "receive": lambda: transport.receive((transport.rank + 1) % SIZE, 0, column),
        "all_reduce": lambda: transport.all_reduce(EVERYONE, 0, column),
        "broadcast": lambda: transport.broadcast(0, column),
    }.items():
        try:
            call()
        except AssertionError:
            refused.append(name)
    return refused


def test_only_contiguous_buffers(world: ThreadWorld | ProcessWorld) -> None:
    assert world.run(strided) == [["send", "receive", "all_reduce", "broadcast"]] * SIZE


def batches(transport: Transport) -> list[list[float]]:
    """What NCCL's batches do, over gloo: messages to all others, two to each, start at the flush."""
    assert isinstance(transport, ProcessTransport)
    batch = MessageBatch(transport._groups, transport.failures)
    others = [r for r in EVERYONE if r != transport.rank]
    received = {(r, n): torch.zeros(2) for r in others for n in range(2)}
    pending = [
        batch.receive(r, buffer, WaitLabel("receive from", r))
        for (r, _), buffer in received.items()
    ]
    for r in others:
        for n in range(2):
            sent = torch.tensor([10.0 * transport.rank + n, r])
            pending.append(batch.send(r, sent, WaitLabel("send to", r)))
    if transport.rank:  # rank 0 starts its batch by waiting
        batch.flush()
    for p in pending:
        p.wait()
    return [buffer.tolist() for buffer in received.values()]


def test_messages_in_batches(process_world: ProcessWorld) -> None:
    assert process_world.run(batches) == [
        [[10.0 * r + n, rank] for r in EVERYONE if r != rank for n in range(2)] for rank in EVERYONE
    ]


def group_counts(transport: Transport) -> list[int]:
    """How many groups a rank is in, after one program and after another."""
    first = transport.prepare([EVERYONE, (0, 1)], [1])
    second = transport.prepare([(0, 1), (1, 2)], [1, -1])
    assert second.seconds >= first.seconds >= 0 <= first.nbytes
    return [first.count, second.count]


def test_groups_are_made_once_for_each_set_of_ranks(process_world: ProcessWorld) -> None:
    # With gloo, three of all ranks: broadcasts, sums, messages.
    assert process_world.run(group_counts) == [[4, 4], [4, 5], [3, 4]]


# --- collectives


def sums(transport: Transport) -> dict[tuple[int, ...], list[float]]:
    """Sums over overlapping groups, all in flight together."""
    groups = [(0, 1), (1, 2), (0, 2), EVERYONE]
    transport.prepare(groups, directions=[])
    mine = [(tag, g) for tag, g in enumerate(groups * 2) if transport.rank in g]
    buffers = [torch.full((4,), 10.0**transport.rank) for _ in mine]
    for pending in [transport.all_reduce(g, t, b) for (t, g), b in zip(mine, buffers, strict=True)]:
        pending.wait()
    return {g: b.unique().tolist() for (_, g), b in zip(mine, buffers, strict=True)}


def test_sums_over_sub_groups(world: ThreadWorld | ProcessWorld) -> None:
    assert world.run(sums) == [
        {(0, 1): [11.0], (0, 2): [101.0], EVERYONE: [111.0]},
        {(0, 1): [11.0], (1, 2): [110.0], EVERYONE: [111.0]},
        {(1, 2): [110.0], (0, 2): [101.0], EVERYONE: [111.0]},
    ]


def awkward_sum(transport: Transport) -> bytes:
    time.sleep(0.02 * ((transport.rank * 2) % SIZE))  # another rank is last than the last
    buffer = torch.rand(1000, generator=torch.Generator().manual_seed(transport.rank))
    transport.all_reduce(EVERYONE, 0, buffer).wait()
    return buffer.numpy().tobytes()


def test_all_get_the_same_bits(world: ThreadWorld | ProcessWorld) -> None:
    assert len(set(world.run(awkward_sum))) == 1


def busy(transport: Transport) -> tuple[float, float, bool]:
    """A broadcast and a message pass while three big sums wait for rank 2."""
    big = [torch.ones(MI) for _ in range(3)]
    pending = []
    if transport.rank != 2:
        pending = [transport.all_reduce(EVERYONE, t, b) for t, b in enumerate(big)]
    loss = torch.tensor([float(transport.rank)])
    transport.broadcast(1, loss).wait()
    message = torch.zeros(1)
    if transport.rank == 0:
        transport.receive(2, 0, message).wait()
    if transport.rank == 2:
        transport.send(0, 0, torch.ones(1)).wait()
        pending = [transport.all_reduce(EVERYONE, t, b) for t, b in enumerate(big)]
    for p in pending:
        p.wait()
    return float(loss), float(message), all(bool((b == SIZE).all()) for b in big)


def test_small_transfers_pass_big_sums(world: ThreadWorld | ProcessWorld) -> None:
    assert world.run(busy) == [(1.0, 1.0, True), (1.0, 0.0, True), (1.0, 0.0, True)]


def counted(transport: Transport) -> tuple[dict[int, int], dict[tuple[int, ...], int]]:
    transport.prepare([(0, 2)])
    if transport.rank == 0:
        for pending in [
            transport.send(1, 0, torch.zeros(10)),
            transport.send(1, 1, torch.zeros(3, dtype=torch.float64)),
            transport.send(2, 0, torch.zeros(5, dtype=torch.bfloat16)),
        ]:
            pending.wait()
    if transport.rank == 1:
        transport.receive(0, 0, torch.zeros(10)).wait()
        transport.receive(0, 1, torch.zeros(3, dtype=torch.float64)).wait()
    if transport.rank == 2:
        transport.receive(0, 0, torch.zeros(5, dtype=torch.bfloat16)).wait()
    if transport.rank != 1:
        transport.all_reduce((0, 2), 0, torch.zeros(7)).wait()
    transport.all_reduce(EVERYONE, 0, torch.zeros(2)).wait()
    transport.broadcast(0, torch.zeros(9)).wait()
    return dict(transport.sent), dict(transport.collective_bytes)


def test_bytes_are_counted(world: ThreadWorld | ProcessWorld) -> None:
    assert world.run(counted) == [
        ({1: 64, 2: 10}, {("all_reduce", (0, 2)): 28, ("all_reduce", EVERYONE): 8}),
        ({}, {("all_reduce", EVERYONE): 8}),
        ({}, {("all_reduce", (0, 2)): 28, ("all_reduce", EVERYONE): 8}),
    ]


def apart(transport: Transport) -> float:
    """The user's own collective, between ours, in another order on each rank."""
    ours, theirs = torch.ones(1), torch.ones(1) * 10
    if transport.rank == 1:
        dist.all_reduce(theirs, async_op=True)
    pending = transport.all_reduce(EVERYONE, 0, ours)
    if transport.rank != 1:
        dist.all_reduce(theirs)
    pending.wait()
    dist.barrier()
    return float(ours)


def test_the_users_collectives_do_not_mix_with_ours(process_world: ProcessWorld) -> None:
    assert process_world.run(apart) == [3.0, 3.0, 3.0]


def limits(transport: Transport) -> set[float | None]:
    assert isinstance(transport, ProcessTransport)
    assert transport.failures._channel is not None
    return {
        connection.gettimeout() for connection in transport.failures._channel._connections.values()
    }


def test_silence_is_no_failure(process_world: ProcessWorld) -> None:
    """The handshake of the failure channel has a time limit; its connections have none afterwards."""
    assert process_world.run(limits) == [{None}] * SIZE


# --- failures


def raises_at_1(transport: Transport) -> None:
    """Rank 0 waits for rank 1, which raises; rank 2 waits for rank 0, which has not failed itself."""
    if transport.rank == 1:
        time.sleep(0.2)
        raise ValueError("loss is nan")
    transport.receive(1 if transport.rank == 0 else 0, 0, torch.zeros(1)).wait()


def raises_at_0(transport: Transport) -> None:
    """As above, in sums and barriers."""
    if transport.rank == 0:
        time.sleep(0.2)
        raise ValueError("loss is nan")
    if transport.rank == 1:
        transport.all_reduce(EVERYONE, 0, torch.zeros(MI)).wait()
    transport.barrier()


@pytest.mark.parametrize(("scene", "failed"), [(raises_at_1, 1), (raises_at_0, 0)])
def test_all_hear_why_a_rank_failed(
    world: ThreadWorld | ProcessWorld, scene: Scene, failed: int
) -> None:
    for rank, error in enumerate(world.run(scene)):
        if rank == failed:
            assert isinstance(error, ValueError)
        else:
            assert isinstance(error, RuntimeError)
            assert str(error) == f"rank {rank} stops: rank {failed} failed: loss is nan"


def failed(transport: Transport) -> bool:
    """Returns whether this rank knows of a failure."""
    try:
        transport.check()
    except RuntimeError:
        return True
    return False


def busy_computing(transport: Transport) -> list[str]:
    """A failure arrives while no rank waits: the next check and the next wait raise."""
    if transport.rank == 0:
        transport.fail("no space left")
    wait_until(lambda: failed(transport))
    errors = []
    for call in (
        transport.check,
        lambda: transport.receive(1 - min(transport.rank, 1), 0, torch.zeros(1)).wait(),
    ):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))
    return errors


def test_a_failure_is_heard_later(world: ThreadWorld | ProcessWorld) -> None:
    for rank, errors in enumerate(world.run(busy_computing)):
        stops = "" if rank == 0 else f"rank {rank} stops: "
        assert errors == [f"{stops}rank 0 failed: no space left"] * 2


def early_failure(transport: Transport) -> list[str]:
    """A rank fails as soon as its transport exists, while others may still be making theirs."""
    raised: list[str] = []
    before = threading.excepthook
    threading.excepthook = lambda args: raised.append(f"{args.exc_type.__name__}: {args.exc_value}")
    for number in range(20):
        error: BaseException | None = None
        try:
            other = ProcessTransport(torch.device("cpu"), timeout=HANG)
        except RuntimeError as stopped:
            error = stopped
        else:
            if transport.rank == number % SIZE:
                other.fail("the plan needs 2 ranks")
            try:
                other.barrier()
            except RuntimeError as stopped:
                error = stopped
            other.close()
        if "the plan needs 2 ranks" not in str(error):
            raised.append(f"{type(error).__name__}: {error}")
        transport.barrier()  # the next round begins with nobody in this one
    threading.excepthook = before
    return raised


def test_a_failure_may_be_heard_at_any_time(process_world: ProcessWorld) -> None:
    assert process_world.run(early_failure) == [[], [], []]


class Stops:
    """Records the messages of failures."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __call__(self, sentence: str) -> None:
        self.reasons.append(sentence)


def stopped(transport: Transport) -> list[list[str]]:
    """A callback that was registered before the failure is called, and so is a later one."""
    early, late = Stops(), Stops()
    transport.on_failure(early)
    transport.barrier()
    if transport.rank == 1:
        transport.fail("fire")
    wait_until(lambda: early.reasons)
    transport.on_failure(late)
    return [early.reasons, late.reasons]


def test_who_asks_late_hears_of_a_failure_too(world: ThreadWorld | ProcessWorld) -> None:
    for rank, reasons in enumerate(world.run(stopped)):
        sentence = "rank 1 failed: fire" if rank == 1 else f"rank {rank} stops: rank 1 failed: fire"
        assert reasons == [[sentence], [sentence]]


def impatient(transport: Transport) -> None:
    """Sets a time-out of a second from here on: the time to make the groups does not count."""
    if isinstance(transport, ProcessTransport):
        transport.failures.set_timeout(1.0)
    else:
        assert isinstance(transport, ThreadTransport)
        transport._hub.timeout = 1.0


def late_sender(transport: Transport) -> None:
    impatient(transport)
    if transport.rank == 0:
        transport.receive(2, 5, torch.zeros(1), "halo of conv1").wait()
    wait_until(lambda: failed(transport))


def late_summand(transport: Transport) -> None:
    impatient(transport)
    if transport.rank == 0:
        transport.all_reduce(EVERYONE, 6, torch.zeros(1), "gradients 0..3").wait()
    wait_until(lambda: failed(transport))


@pytest.mark.parametrize(
    ("scene", "doing"),
    [
        (late_sender, "receive halo of conv1 (tag 5) from rank 2"),
        (late_summand, "sum gradients 0..3 (tag 6) over ranks 0, 1, 2"),
    ],
)
def test_time_out(world: ThreadWorld | ProcessWorld, scene: Scene, doing: str) -> None:
    error = world.run(scene)[0]
    assert isinstance(error, TimeoutError)
    assert re.fullmatch(
        rf"rank 0 has waited \d+\.\d s to {re.escape(doing)}: "
        "see what the other side does, or set a longer time-out",
        str(error),
    )


def killed_at(victim: int, transport: Transport) -> None:
    """One rank is killed; one waits for it, one for a rank that waits for it.

    All have a wire too, which ends with the rank: whoever notices first, it is the dead that failed.
    """
    transport.wire().start(lambda *_: None, transport.fail)
    if transport.rank == victim:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    other = sum(EVERYONE) - victim - transport.rank
    transport.receive(victim if transport.rank < other else other, 0, torch.zeros(1)).wait()


def killed_0(transport: Transport) -> None:
    killed_at(0, transport)


def killed_2(transport: Transport) -> None:
    killed_at(2, transport)


@pytest.mark.parametrize(("scene", "victim"), [(killed_0, 0), (killed_2, 2)])
def test_a_killed_rank_ends_the_others(scene: Scene, victim: int) -> None:
    world = ProcessWorld()
    world.run(same_tag)  # all are up
    results = world.run(scene)
    for rank, error in enumerate(results):
        if rank == victim:
            assert error == "killed"
        else:
            assert isinstance(error, RuntimeError)
            assert str(error).startswith(
                f"rank {rank} stops: rank {victim} failed: its process has ended without a word"
            )
    world.close()
    assert world.processes[victim].exitcode == -signal.SIGKILL


# --- what only threads check


def wrong_size(transport: Transport) -> None:
    if transport.rank == 0:
        transport.send(1, 3, torch.zeros(4))
    if transport.rank == 1:
        transport.receive(0, 3, torch.zeros(5), "bias").wait()


def wrong_type(transport: Transport) -> None:
    if transport.rank == 0:
        transport.send(1, 3, torch.zeros(4, dtype=torch.float64))
    if transport.rank == 1:
        transport.receive(0, 3, torch.zeros(4)).wait()


def wrong_order(transport: Transport) -> None:
    tags = [1, 2] if transport.rank else [2, 1]
    for pending in [transport.all_reduce(EVERYONE, tag, torch.zeros(4)) for tag in tags]:
        pending.wait()


def wrong_source(transport: Transport) -> None:
    if transport.rank:
        transport.broadcast(transport.rank, torch.zeros(1)).wait()


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        (
            wrong_size,
            "rank 1 cannot receive bias (tag 3) from rank 0: "
            "4 elements of float32 were sent, 5 elements of float32 are expected",
        ),
        (wrong_type, "4 elements of float64 were sent, 4 elements of float32 are expected"),
        (wrong_order, "4 elements of float32 with tag 2"),
        (wrong_source, "1 elements of float32 with source 2"),
    ],
)
def test_threads_refuse_what_does_not_match(scene: Scene, said: str) -> None:
    assert any(said in str(result) for result in ThreadWorld().run(scene))


# --- the failure channel


class Gathered:
    """An all-gather between threads."""

    def __init__(self, size: int) -> None:
        self._every: list[Any] = [None] * size
        self._all_here = threading.Barrier(size)

    def share(self, rank: int) -> Callable[[Any], list[Any]]:
        def share(value: Any) -> list[Any]:
            self._every[rank] = value
            self._all_here.wait(HANG)
            return self._every

        return share


def test_the_failure_channel_tells_who_failed_and_why() -> None:
    ranks, rung = Gathered(3), [queue.SimpleQueue[tuple[int, str]]() for _ in range(3)]

    def make(rank: int) -> failure_channel.FailureChannel:
        def ring(failed: int, reason: str) -> None:
            rung[rank].put((failed, reason))

        return failure_channel.FailureChannel(rank, 3, ranks.share(rank), ring, HANG)

    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(make, range(3)))
    ends[1].report(1, "fire: «ß»\n")
    for rank, end in enumerate(ends):
        assert rung[rank].get(timeout=HANG) == (1, "fire: «ß»\n")
        assert end.wait_for_failure(0) == (1, "fire: «ß»\n")
    for end in ends:
        end.close()


def test_a_rank_that_never_connects() -> None:
    with pytest.raises(
        TimeoutError,
        match=r"rank 0 has waited 0\.1 s for ranks 1, 2 to meet it \(it listens for ranks 1, 2 at port \d+",
    ):
        failure_channel.FailureChannel(0, 3, lambda value: [value] * 3, lambda *_: None, 0.1)


# --- torchrun

SCRIPT = """
import threading, torch, torch.distributed as dist
from raddle.transport.process_transport import ProcessTransport

transport = ProcessTransport(torch.device("cpu"))
buffer = torch.ones(1)
transport.all_reduce((0, 1), 0, buffer).wait()
print(f"rank {transport.rank} of {transport.size}: {float(buffer)}", flush=True)
transport.close()
assert not dist.is_initialized()
assert {t.name for t in threading.enumerate()} == {"MainThread", "raddle watches its parent"}
"""


def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with subprocess.Popen(
        [*command, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        said, _ = process.communicate(timeout=HANG)
    assert process.returncode == 0, said
    assert "rank 0 of 2: 2.0" in said
    assert "rank 1 of 2: 2.0" in said
    with pytest.raises(ProcessLookupError):  # nobody is left of its session
        os.killpg(process.pid, 0)


def test_one_rank() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    transport = ProcessTransport(torch.device("cpu"))
    transport.prepare([(0,)])
    buffer = torch.ones(2)
    transport.all_reduce((0,), 0, buffer).wait()
    transport.broadcast(0, buffer).wait()
    transport.barrier()
    transport.check()
    assert buffer.tolist() == [1.0, 1.0]
    dist.destroy_process_group()
    transport.close()  # after the user has destroyed all groups


def test_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="start with torchrun"):
        ProcessTransport(torch.device("cpu"))


def sharded(transport: Transport) -> list[list[float]]:
    """All-gathers and reduce-scatters, on all ranks and on two of them, several at a time."""
    rank, results, pending = transport.rank, [], []
    for tag, (ranks, size) in enumerate([(EVERYONE, 2), ((0, 2), 3), (EVERYONE, 1)]):
        if rank in ranks:
            shard = torch.arange(size, dtype=torch.float64) + 10 * rank
            full, summed = torch.empty(size * len(ranks)).double(), torch.empty(size).double()
            summands = torch.arange(size * len(ranks), dtype=torch.float64) * (rank + 1)
            pending += [
                transport.shards.all_gather(ranks, 2 * tag, shard, full, "shards"),
                transport.shards.reduce_scatter(ranks, 2 * tag + 1, summands, summed, "sums"),
            ]
            results += [full, summed]
    for p in pending:
        p.wait()
        p.wait()  # a second call returns at once
    assert not transport.sent  # their bytes are counted as those of collectives
    assert transport.collective_bytes["all_gather", EVERYONE] == 8 * 9
    return [r.tolist() for r in results]


def test_shards_are_gathered_and_summed(world: ThreadWorld | ProcessWorld) -> None:
    results = world.run(sharded)
    gathered = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0], [0.0, 1.0, 2.0, 20.0, 21.0, 22.0]
    assert [r[0] for r in results] == [gathered[0]] * 3
    assert results[0][2] == results[2][2] == gathered[1]
    # Over all ranks element k sums to 6 k, over ranks 0 and 2 to 4 k.
    assert [r[1] for r in results] == [[0.0, 6.0], [12.0, 18.0], [24.0, 30.0]]
    assert (results[0][3], results[2][3]) == ([0.0, 4.0, 8.0], [12.0, 16.0, 20.0])
    assert [r[-1] for r in results] == [[0.0], [6.0], [12.0]]
