"""The bytes of a plan three times: as its program says, as it is simulated, as ranks have counted them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raddle.clusters import Cluster, cluster
from raddle.costs.collectives import all_reduce_bytes
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.program import Move, Program, Reduce, message_bytes, reduced_bytes
from raddle.runtime.job import Job
from raddle.simulation.timeline import Timeline, simulate
from raddle.verification.compare_rank import Findings

Pair = tuple[int, int]  # source, target
Group = tuple[int, ...]


def simulate_job(job: Job, steps: int) -> Timeline:
    """On the plan's cluster, or one of as many devices: bytes do not depend on it."""
    return simulate(lower(job.graph, replace(job.plan, steps=steps)), _cluster(job.plan))


def _cluster(plan: Plan) -> Cluster:
    if plan.cluster is not None and len(plan.cluster["devices"]) >= plan.devices:
        return Cluster.from_dict(dict(plan.cluster), "the plan's cluster")
    return cluster(f"local:{plan.devices}")


def program_bytes(program: Program, steps: int) -> dict[Pair, int]:
    """By pair, as the program says: of one step, or of all where they overlap."""
    total: dict[Pair, int] = {}
    steps //= program.plan.steps
    for move in (i for i in program.instructions if isinstance(i, Move)):
        for m in move.messages:
            pair = (m.source, m.target)
            total[pair] = total.get(pair, 0) + steps * message_bytes(program, move, m)
    return total


def all_reduce_bytes_by_group(program: Program, steps: int) -> dict[Group, int]:
    """By group, what each of its devices hands to all-reduces."""
    total: dict[Group, int] = {}
    steps //= program.plan.steps
    for reduce in (i for i in program.instructions if isinstance(i, Reduce)):
        for group, nbytes in reduced_bytes(program, reduce).items():
            total[group] = total.get(group, 0) + steps * nbytes
    return total


def pair_rows(
    program: Program, timeline: Timeline, findings: Sequence[Findings]
) -> list[dict[str, Any]]:
    """A row for every pair that sends, by any account."""
    steps = timeline.program.plan.steps
    expected, simulated = program_bytes(program, steps), timeline.bytes_by_pair()
    counted = {(s, t): n for s, rank in enumerate(findings) for t, n in rank.sent}
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
    """A row for every group that sums; the ranks of a group have counted the same, or least and most."""
    expected = all_reduce_bytes_by_group(program, timeline.program.plan.steps)
    counted: dict[Group, list[int]] = {group: [] for group in expected}
    for rank, rank_findings in enumerate(findings):
        reduced = {tuple(group): n for group, n in rank_findings.reduced}
        for group in {*reduced, *(g for g in expected if rank in g)}:
            counted.setdefault(group, []).append(reduced.get(group, 0))
    return [
        {
            "devices": list(group),
            "transport": max(counts, key=lambda n: abs(n - expected.get(group, 0))),
            "program": expected.get(group, 0),
        }
        for group, counts in sorted(counted.items())
    ]


def simulated_total(timeline: Timeline) -> int:
    """All bytes that the simulator moves."""
    return int(timeline.tasks.nbytes.sum())


def program_total(program: Program, steps: int) -> int:
    """Messages, and all-reduces by their algorithm."""
    rings = sum(
        all_reduce_bytes(len(g), n) for g, n in all_reduce_bytes_by_group(program, steps).items()
    )
    return sum(program_bytes(program, steps).values()) + rings
