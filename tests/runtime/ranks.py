"""Runs the trainers of all ranks as threads of this process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from timeouts import HANG

from raddle.runtime.trainer import Trainer, parallelize
from raddle.transport.thread_transport import Hub


def on_threads(size: int, work: Callable[[Trainer], Any], *args: Any, **more: Any) -> list[Any]:
    """Calls `work(trainer)` on each rank; returns the results by rank. args, more: as for parallelize.

    If ranks fail, the first failure is raised.
    """
    hub = Hub(size, timeout=HANG)
    results: list[Any] = [None] * size
    trainers: list[Trainer] = []
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            trainer = parallelize(*args, transport=hub.transport(number), device="cpu", **more)
            trainers.append(trainer)
            results[number] = work(trainer)
        except BaseException as error:
            errors.append(error)
            hub.transport(number).fail(str(error))

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for trainer in trainers:
        trainer.close()
    if errors:
        raise errors[0]
    return results
