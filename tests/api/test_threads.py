"""Plans are made and simulated from several threads; captures wait for each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from user_script import Net, example, loss

import raddle

TASKS: list[tuple[Any, ...]] = [
    ("mlp-tiny", 8), ("lenet-tiny", 8), (Net(), example(), loss), (Net(16), example(), loss)
]  # fmt: skip
METHODS = ("data", "owt", "optcnn")


def planned(task: tuple[Any, ...], method: str, barrier: threading.Barrier | None = None) -> Any:
    if barrier is not None:
        barrier.wait()
    result = raddle.plan(*task, cluster="p100:1x2", method=method, sync="allreduce")
    elsewhere = raddle.simulate(result, cluster="p100:2x1")
    return result.plan.tiles, result.step_ms, elsewhere.step_seconds


def test_threads_get_what_one_thread_gets() -> None:
    alone = [planned(task, method) for method in METHODS for task in TASKS]
    barrier = threading.Barrier(len(TASKS))
    with ThreadPoolExecutor(len(TASKS)) as pool:
        together = [
            future.result()
            for method in METHODS
            for future in [pool.submit(planned, task, method, barrier) for task in TASKS]
        ]
    assert together == alone


def test_threads_capture_the_same_module() -> None:
    model, batch = Net(), example()
    barrier = threading.Barrier(4)

    def capture(_: int) -> str:
        barrier.wait()
        return raddle.capture(model, batch, loss).fingerprint()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(capture, range(4)))) == 1
    assert model.training
