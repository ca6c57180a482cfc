"""Steps that overlap in whatever order they are ready: a thread for each that is under way.

Threads of a rank take turns: one computes, the others wait for messages, and whenever the device becomes
idle the next that is ready goes on: threaded, asynchronous model parallelism, as a thesis on hypergraph
partitioning of convolutional networks has it. What was used by whom is logged, so that a serial replay can
do the same.

Differs from the thesis: a backward uses its forward's weights, so that what it computes does not depend on
what a kernel happened to save.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from raddle.runtime.actions import Action

RunInOrder = Callable[[Sequence[Action]], None]


def run_greedily(
    steps: Sequence[Sequence[Action]],
    threads: int,
    run_in_order: RunInOrder,
    fail: Callable[[str], None],
) -> None:
    """Carries out the actions of all steps, so many steps at a time; `carry` takes turns by itself."""
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for step in range(first, len(steps), threads):
                if failures:
                    return
                run_in_order(steps[step])
        except BaseException as error:
            failures.append(error)
            fail(f"{type(error).__name__}: {error}")

    thread_list = [
        threading.Thread(target=work, args=(first,), name=f"steps {first}, {first + threads}, …")
        for first in range(threads)
    ]
    for thread in thread_list:
        thread.start()
    for thread in thread_list:
        thread.join()
    if failures:
        raise failures[0]
