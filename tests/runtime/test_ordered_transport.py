"""Programs run on a transport that keeps NCCL's order, with the communicators that they asked for."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from equality import Task, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from ordered_transport import OrderedHub
from random_plans import SYNCS
from test_pipeline_fuzz import verify as verify_random_pipeline
from test_pipelines import HYBRIDS, hybrid, net
from test_random_graphs import verify as verify_random_plan

from raddle.clusters import cluster
from raddle.searches.planning import plan_for


@pytest.fixture(scope="module", autouse=True)
def ordered() -> Any:
    """Makes run_threads use the ordered transport."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raddle.runtime.threads.Hub", OrderedHub)
        yield


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("hybrid_of", HYBRIDS)
def test_pipelines(hybrid_of: str, schedule: str) -> None:
    net().verify(hybrid(*HYBRIDS[hybrid_of], 4, schedule, named=True, batch=9))


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("method", ["data", "owt", "model", "spatial"])
def test_syncs(method: str, sync: str) -> None:
    task: Task = tiny("lenet-tiny")
    plan = plan_for(task.graph, cluster("local:4"), method, bn="global", sync=sync)
    task.verify(replace(plan, bucket=0))


@settings(max_examples=30)
@given(st.integers(0, 2**40))
def test_random_plans(seed: int) -> None:
    verify_random_plan(seed)


@settings(max_examples=40)
@given(st.integers(0, 2**40))
def test_random_pipelines(seed: int) -> None:
    verify_random_pipeline(seed)


def test_an_order_that_differs_between_ranks_is_a_deadlock() -> None:
    hub = OrderedHub(2, timeout=0.2)
    errors: list[BaseException] = []

    def exchange(rank: int) -> None:
        transport = hub.transport(rank)
        transport.prepare([])
        like = torch.zeros(1)
        try:
            if rank == 0:  # up, then a sum
                sent = transport.post(1, 0, like)
                transport.flush()
                total = transport.all_reduce((0, 1), 1, torch.zeros(1))
            else:  # a sum, then up
                total = transport.all_reduce((0, 1), 1, torch.zeros(1))
                sent = transport.expect(0, 0, like, 1)
            sent.wait()
            total.wait()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=exchange, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(error) for error in errors} == {TimeoutError}
