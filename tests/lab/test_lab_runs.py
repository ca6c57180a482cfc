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
from raddle.lab import Lab
from raddle.plans.plan_file import save
from raddle.program.lower import lower
from raddle.program.program import Move, Reduce, message_bytes
from raddle.searches.planning import plan_for

pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.mark.parametrize("method", [pytest.param("data", marks=pytest.mark.slow), "owt"])
def test_counters_agree_with_the_program(method: str, tmp_path: Path) -> None:
    """Within 5 % on every host, with all-reduces: the difference are headers and the start of the run."""
    hosts, steps = 3, 15
    work = zoo.load("lenet", batch=480)
    graph = capture(work.model, work.inputs, targets=work.targets, loss=work.loss, name="lenet")
    plan = plan_for(graph, cluster(f"local:{hosts}"), method, model="lenet")
    save(plan, graph, tmp_path / "plan.json")
    with Lab.up(hosts=hosts, rate="1gbit", name=f"bytes{os.getpid()}") as lab:
        before = lab.counters()
        lab.run(str(tmp_path / "plan.json"), timeout=HANG, steps=steps)
        counted = [a.sent - b.sent for a, b in zip(lab.counters(), before, strict=True)]
    sent = bytes_of_a_step(graph, plan)
    for host in range(hosts):
        assert counted[host] / steps == pytest.approx(sent[host], rel=0.05), (host, counted, sent)


def bytes_of_a_step(graph, plan) -> list[float]:
    """For each device, return the bytes of its messages, and 2(P-1)/P of every parameter it all-reduces."""
    program = lower(graph, plan)
    sent = [0.0] * plan.devices
    for i in program.instructions:
        if isinstance(i, Move):
            for m in i.messages:
                sent[m.source] += message_bytes(program, i, m)
        elif isinstance(i, Reduce):
            for name, shares in zip(i.parameters, i.regions, strict=True):
                for share in shares:
                    p = len(share.devices)
                    for d in share.devices:
                        sent[d] += 2 * (p - 1) / p * share.box.volume * program.element_bytes(name)
    return sent
