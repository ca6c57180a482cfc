"""With torch.compile too, the all-reduce of a bucket starts before the whole backward has ended.

A compiled backward gives all its gradients at once. So segments are cut where a bucket is full, and each
part is compiled by itself.
"""

from __future__ import annotations

import copy
import threading
import warnings
from dataclasses import replace

import torch
from timeouts import HANG
from torch import nn

import raddle
from raddle.graph.supervised import supervised
from raddle.program.lower import lower
from raddle.program.segments import segments
from raddle.runtime.actions import Action, Backward, StartAllReduce
from raddle.runtime.execution.compiled_functions import CompiledFunctions, NotCompiled
from raddle.runtime.trainer import Trainer
from raddle.transport.thread_transport import Hub

WIDTH, LAYERS, RANKS = 16, 4, 2


def test_sums_start_during_a_compiled_backward() -> None:
    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model, loss = (
        nn.Sequential(*layers, nn.Linear(WIDTH, 3)),
        supervised(nn.functional.cross_entropy),
    )
    x, y = torch.randn(8, WIDTH), torch.randint(3, (8,))
    graph = raddle.capture(model, (x, y), loss)
    plan = raddle.plan(graph, cluster=f"local:{RANKS}", method="data", sync="allreduce").plan
    program = lower(graph, replace(plan, bucket=2 * WIDTH * WIDTH * 4))  # two layers fill a bucket
    hub, orders = Hub(RANKS, timeout=HANG), dict[int, list[Action]]()
    lock = threading.Lock()

    def rank(number: int) -> None:
        functions = CompiledFunctions("default", backend="aot_eager")
        place = torch.device("cpu")
        trainer = Trainer(
            copy.deepcopy(model), program, lambda p: torch.optim.SGD(p, lr=0.1),
            hub.transport(number), place, loss=loss, functions=functions,
        )  # fmt: skip
        order: list[Action] = []
        trainer.step((x, y))
        trainer.executor.record = lambda action, start, end: order.append(action)
        trainer.step((x, y))
        with lock:
            orders[number] = order
        trainer.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiled)
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(orders) == list(range(RANKS))
    for order in orders.values():
        sums = [k for k, action in enumerate(order) if isinstance(action, StartAllReduce)]
        backwards = [k for k, action in enumerate(order) if isinstance(action, Backward)]
        assert len(sums) >= 2
        assert sums[0] < backwards[-1]
    # The cuts are those of the program, forward and backward: the same with and without a compiler.
    assert segments(program, 0, compiled=True) == segments(program, 0)
    assert len(segments(program, 0)) > len(sums)
