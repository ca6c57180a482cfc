"""Plans run on several hosts of a lab, and their interfaces count the bytes that the program says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_lab import REASON
from timeouts import HANG

from raddle import zoo
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.lab import Lab
from raddle.plans.plan import Plan
from raddle.plans.plan_file import save
from raddle.program.lower import lower
from raddle.program.program import Move, Reduce, buffer_bytes, message_bytes
from raddle.searches.planning import plan_for

pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.mark.parametrize(
    ("method", "hosts", "per_host"),
    [pytest.param("data", 3, 1, marks=pytest.mark.slow), ("owt", 3, 1), ("owt", 2, 2)],
)
def test_counters_agree_with_the_program(
    method: str, hosts: int, per_host: int, tmp_path: Path
) -> None:
    """Within 5 % on every host, with all-reduces: the difference are headers and the start of the run.

    Ranks of one host share its interface, and what they send each other does not cross it.
    """
    steps = 15
    work = zoo.load("lenet", batch=480)
    graph = capture(work.model, work.batch, work.loss, name="lenet")
    plan = plan_for(graph, cluster(f"local:{hosts * per_host}"), method, model="lenet")
    save(plan, graph, tmp_path / "plan.json")
    with Lab.up(hosts=hosts, rate="1gbit", name=f"bytes{os.getpid()}") as lab:
        before = lab.counters()
        lab.run(str(tmp_path / "plan.json"), timeout=HANG, steps=steps, per_host=per_host)
        counted = [a.sent - b.sent for a, b in zip(lab.counters(), before, strict=True)]
    sent = bytes_of_a_step(graph, plan, per_host)
    for host in range(hosts):
        assert counted[host] / steps == pytest.approx(sent[host], rel=0.05), (host, counted, sent)


def bytes_of_a_step(graph: Graph, plan: Plan, per_host: int) -> list[float]:
    """For each host, return the bytes that its ranks send to other hosts.

    An all-reduce of gloo is one ring of all P ranks in order: each sends 2(P-1)/P of the bytes to the next.
    """
    program = lower(graph, plan)
    sent = [0.0] * (plan.devices // per_host)

    def send(source: int, target: int, nbytes: float) -> None:
        if source // per_host != target // per_host:
            sent[source // per_host] += nbytes

    for i in program.instructions:
        if isinstance(i, Move):
            for m in i.messages:
                send(m.source, m.target, message_bytes(program, i, m))
        elif isinstance(i, Reduce):
            for ring, nbytes in buffer_bytes(program, i).items():
                for member, successor in zip(ring, ring[1:] + ring[:1], strict=True):
                    send(member, successor, 2 * (len(ring) - 1) / len(ring) * nbytes)
    return sent
