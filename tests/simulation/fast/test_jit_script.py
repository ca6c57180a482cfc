"""A change of a rule in program/step_script.py changes lowering, simulation and fast path alike.

Without compilation the fast path is plain Python, so a function of program/step_script.py can be replaced
before its compiled form is made: in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

CODE = """
import importlib, json, sys
from collections import Counter

import torch
from torch import nn

from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.plans.plan import Plan
from raddle.program import step_script
from raddle.program.lower import lower
from raddle.searches.planning import plan_for
from raddle.simulation.fast import evaluator, jit_script, kernel, timer
from raddle.simulation.timeline import simulate

model = nn.Sequential(*(m for n in (64, 8, 32, 16) for m in (nn.LazyLinear(n), nn.Tanh())))
model(torch.zeros(2, 16))
graph, on = capture(model, torch.zeros(8, 16), lambda m, x: m(x).sum()), cluster("p100:1x4")


def step_results(sync, bucket):
    plan = Plan(plan_for(graph, on, "data").tiles, 4, sync=sync, bucket=bucket, optimizer="adam")
    program = lower(graph, plan)
    kinds = [type(i).__name__ + str(getattr(i, "kind", "")) for i in program.instructions]
    return {
        "program": [[kind, list(i.deps)] for kind, i in zip(kinds, program.instructions)],
        "updates": [i.parameter for i in program.instructions if type(i).__name__ == "Update"],
        "simulated": int(simulate(program, on).end.max()),
        "fast": evaluator.Evaluator(graph, on, plan).time(),
        "unfolded": evaluator.Evaluator(graph, on, plan).time(fold=False),
    }


original, result = dict(vars(step_script)), {}
for name, code in json.loads(sys.argv[1]).items():
    vars(step_script).update(original)
    exec(code, vars(step_script))
    for module in (jit_script, kernel, timer, evaluator):
        importlib.reload(module)
    result[name] = {"buckets": step_results("allreduce", 2**12), "slices": step_results("ps:sliced", 0)}
print(json.dumps(result))
"""

CHANGES = {
    "nothing": "",
    "bucket flush": "def is_full(nbytes, limit): return True",
    "order of updates": """
def updates_before(ready_at, order, other_ready_at, other_order):
    return ready_at > other_ready_at or (ready_at == other_ready_at and order > other_order)
""",
    "slices": """
def _sync_through_servers(p, facts, state):
    for s in facts.bundles[facts.first_bundle[p] : facts.first_bundle[p + 1]]:
        state.missing[s] -= 1
        if state.missing[s] == 0:
            n = _write_row(PUSH, s, p, -1, state.counters, state.rows)
            _write_row(UPDATE, s, p, n, state.counters, state.rows)
""",
}


@cache
def results_by_change() -> dict[str, Any]:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-c", CODE, json.dumps(CHANGES)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("sync_kind", ["buckets", "slices"])
@pytest.mark.parametrize("rule", CHANGES)
def test_lowering_simulation_and_fast_path_follow_one_rule(rule: str, sync_kind: str) -> None:
    after, before = results_by_change()[rule][sync_kind], results_by_change()["nothing"][sync_kind]
    assert after["fast"] == after["unfolded"] == after["simulated"]
    touched = rule != "nothing" and (rule == "slices") == (sync_kind == "slices")
    assert (after["program"] != before["program"]) == touched
    assert (after["simulated"] != before["simulated"]) == touched


def test_what_the_changes_do() -> None:
    def count(rule: str, sync_kind: str, kind: str) -> int:
        return sum(k == kind for k, _ in results_by_change()[rule][sync_kind]["program"])

    parameters = len(results_by_change()["nothing"]["buckets"]["updates"])
    assert count("nothing", "buckets", "Reduce") < count("bucket flush", "buckets", "Reduce")
    assert count("bucket flush", "buckets", "Reduce") == parameters
    assert (
        results_by_change()["order of updates"]["buckets"]["updates"]
        == results_by_change()["nothing"]["buckets"]["updates"][::-1]
    )
    assert count("nothing", "slices", "Movepull") > 0 == count("slices", "slices", "Movepull")
