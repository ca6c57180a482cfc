"""Counts the bytes that a plan sends in three ways: by its program, by the simulator, and by the ranks.

`raddle verify` compares the three. Bytes of messages are counted by pair (source, target); bytes of
collectives by their kind and the group of devices that take part. Instructions (program/program.py): a Move
sends messages, a Reduce sums gradients, a Gather gathers sharded parameters. The findings of a rank
(compare_rank.py) have the bytes that it counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raddle.clusters import Cluster, cluster
from raddle.costs.collectives import collective_bytes
from raddle.plans.plan import Plan
from raddle.program.collective_kind import Collective
from raddle.program.lower import lower
from raddle.program.program import Gather, Move, Program, Reduce, buffer_bytes, message_bytes
from raddle.runtime.job import Job
from raddle.simulation.timeline import Timeline, simulate
from raddle.verification.compare_rank import Findings

Pair = tuple[int, int]  # source, target (devices)
Group = tuple[Collective, tuple[int, ...]]  # a kind of collective, and the devices that take part


def simulate_job(job: Job, steps: int) -> Timeline:
    """Return a simulation of some steps; the bytes do not depend on the cluster (see `_cluster`)."""
    return simulate(lower(job.graph, replace(job.plan, steps=steps)), _cluster(job.plan))


def _cluster(plan: Plan) -> Cluster:
    """Return the cluster of a plan if it has at least as many kinds of devices as the plan has devices.

    Otherwise return `local`. plan.cluster is as in a cluster file: its "devices" are the kinds.
    """
    if plan.cluster is not None and len(plan.cluster["devices"]) >= plan.devices:
        return Cluster.from_dict(dict(plan.cluster), "the plan's cluster")
    return cluster(f"local:{plan.devices}")


def program_bytes(program: Program, steps: int) -> dict[Pair, int]:
    """Return for each pair the bytes of messages in `steps` steps, by the program."""
    total: dict[Pair, int] = {}
    # The program has one step or, if steps overlap, all steps. runs: how often it runs.
    runs = steps // program.plan.steps
    for move in (i for i in program.instructions if isinstance(i, Move)):
        for m in move.messages:
            pair = (m.source, m.target)
            total[pair] = total.get(pair, 0) + runs * message_bytes(program, move, m)
    return total


def collective_bytes_by_group(program: Program, steps: int) -> dict[Group, int]:
    """Return for each group the bytes of the full buffers of its collectives in `steps` steps."""
    total: dict[Group, int] = {}
    runs = steps // program.plan.steps  # as in `program_bytes`
    for i in program.instructions:
        if isinstance(i, Reduce | Gather):
            for devices, nbytes in buffer_bytes(program, i).items():
                group = i.collective, devices
                total[group] = total.get(group, 0) + runs * nbytes
    return total


def pair_rows(
    program: Program, timeline: Timeline, findings: Sequence[Findings]
) -> list[dict[str, Any]]:
    """Return a row for each pair that sends, with the three counts of bytes in all steps."""
    steps = timeline.program.plan.steps
    expected, simulated = program_bytes(program, steps), timeline.bytes_by_pair()
    counted = {(s, t): n for s, rank_findings in enumerate(findings) for t, n in rank_findings.sent}
    return [
        {
            "source": pair[0],
            "target": pair[1],
            "transport": counted.get(pair, 0),
            "program": expected.get(pair, 0),
            "simulator": simulated.get(pair, 0),
        }
        for pair in sorted({*expected, *simulated, *counted})
    ]


def group_rows(
    program: Program, timeline: Timeline, findings: Sequence[Findings]
) -> list[dict[str, Any]]:
    """Return a row for each group with a collective: bytes by the ranks' transport and by the program.

    All ranks of a group should count the same; the row has the count that differs most from the program.
    """
    expected = collective_bytes_by_group(program, timeline.program.plan.steps)
    counted: dict[Group, list[int]] = {group: [] for group in expected}
    for rank, rank_findings in enumerate(findings):
        nbytes_by_group = {
            (Collective(kind), tuple(devices)): n
            for kind, devices, n in rank_findings.collective_bytes
        }
        for group in {*nbytes_by_group, *(g for g in expected if rank in g[1])}:
            counted.setdefault(group, []).append(nbytes_by_group.get(group, 0))
    return [
        {
            "collective": str(group[0]),
            "devices": list(group[1]),
            "transport": max(counts, key=lambda n: abs(n - expected.get(group, 0))),
            "program": expected.get(group, 0),
        }
        for group, counts in sorted(counted.items())
    ]


def simulated_total(timeline: Timeline) -> int:
    """Return the number of all bytes that the simulated steps send."""
    return int(timeline.tasks.nbytes.sum())


def program_total(program: Program, steps: int) -> int:
    """Return the number of all bytes by the program: of messages, and of collectives run as rings."""
    rings = sum(
        collective_bytes(kind, len(devices), n)
        for (kind, devices), n in collective_bytes_by_group(program, steps).items()
    )
    return sum(program_bytes(program, steps).values()) + rings
