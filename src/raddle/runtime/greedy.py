"""Runs overlapping steps greedily: each step in flight has a thread, and any step that is ready may go on.

The threads of a rank share one lock. One thread computes, the others wait for messages. When the computing
thread has to wait, the next thread whose message is there goes on. This is the threaded asynchronous model
parallelism of a thesis on hypergraph partitioning of convolutional networks (docs/papers.md). The weight
versions that forwards used are logged (weight_stash.py). So the verification can repeat the same steps one
after the other and compare (verification/serial_replay.py).

One difference from the thesis: a backward uses the weights of its forward. So its result does not depend on
which tensors a kernel happened to save.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from raddle.runtime.actions import Action

RunInOrder = Callable[[Sequence[Action]], None]  # carries out the actions of one step


def run_greedily(
    steps: Sequence[Sequence[Action]],
    threads: int,
    run_in_order: RunInOrder,
    fail: Callable[[str], None],
) -> None:
    """Runs all steps, at most `threads` at a time.

    run_in_order: must itself take and release the lock that the threads share; fail: reports a failure to
    all ranks.
    """
    failures: list[BaseException] = []

    def work(first: int) -> None:
        """Runs the steps first, first + threads, ... on one thread."""
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
