"""Changes one cost rule at a time in its source, and prints the resulting step times of a plan as JSON.

test_one_place_rules.py runs it without JIT compilation (NUMBA_DISABLE_JIT), so that all callers see the
change.
"""

import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from random_plans import cluster_named
from small_models import make_plan, mlp

from raddle.costs.collectives import fastest_seconds
from raddle.costs.compute import memory_pass_seconds, roofline
from raddle.costs.host_overhead import collective_member_seconds, host_seconds
from raddle.costs.links import occupied_seconds
from raddle.plans.optimizers import optimizer_info
from raddle.program.lower import lower
from raddle.program.merges import merged_bytes
from raddle.program.program import reduced_element_bytes
from raddle.program.value_holders import chosen_copy
from raddle.searches.optcnn.tables import build_tables
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.message_tasks import flight_nanoseconds
from raddle.simulation.timeline import simulate

# The plan uses all rules: boxes are sent (fc1, relu), one of two copies is chosen (relu), partial results
# are merged (fc2), and parameters are synchronised (fc1).
TILES = {"fc1": "n/2 @0,1", "relu": "x2 @0,1", "fc2": "k/2 @2,3", "sum": "@2"}

Rule = tuple[Callable[..., Any], str, str]
RULES: dict[str, Rule] = {  # function, text in its source, replacement
    "roofline": (roofline, "+ speed.overhead", "+ 3 * speed.overhead"),
    "memory": (memory_pass_seconds, "+ overhead", "+ 3 * overhead"),
    "link": (occupied_seconds, "nbytes /", "3 * nbytes /"),
    "latency": (flight_nanoseconds, "route.latency", "3 * route.latency"),
    "all-reduce": (fastest_seconds, "return best", "return 3 * best"),
    "host": (host_seconds, "fixed +", "3 * fixed +"),
    "sum on a host": (collective_member_seconds, "2 * sent_and_received)", "9e9 * nbytes)"),
    "merge": (merged_bytes, "+ 1", "+ 1_000_000"),
    "compressed sum": (reduced_element_bytes, "return 2", "return 2_000_000"),
    "optimizer": (
        optimizer_info,
        'OPTIMIZERS["adam"])',
        'OPTIMIZERS["adam"])._replace(passes=10**6)',
    ),
    "copy": (chosen_copy, "device % copies", "0"),
}


def results() -> dict[str, float]:
    graph, machine = mlp(), cluster_named("host_overhead:4")
    plan = make_plan(graph, TILES, 4, sync="allreduce:bf16")
    tables = build_tables(graph, machine)
    return {
        "simulation": int(simulate(lower(graph, plan), machine).end.max()),
        "fast": int(Evaluator(graph, machine, plan).time() or 0),
        "optcnn compute": float(sum(table.sum() for table in tables.compute)),
        "optcnn sync": float(sum(seconds.sum() for seconds in tables.sync)),
    }


def results_with(rule: Rule) -> dict[str, float]:
    function, old, new = rule
    source, code = textwrap.dedent(inspect.getsource(function)), function.__code__
    assert source.count(old) == 1, (function, old)
    lines = source.replace(old, new).splitlines()
    made: dict[str, Any] = {}
    body = "\n".join(line for line in lines if not line.startswith("@"))
    exec("from __future__ import annotations\n" + body, dict(function.__globals__), made)
    function.__code__ = made[function.__name__].__code__
    try:
        return results()
    finally:
        function.__code__ = code


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps({"": results(), **{name: results_with(rule) for name, rule in RULES.items()}})
    )
