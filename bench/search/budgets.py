"""Measures how well searches keep their budget: seconds of each method, for large models and clusters."""

from __future__ import annotations

from time import perf_counter, process_time

from common import graph_of, keep, machine

from raddle.errors import InputError
from raddle.searches.comparison import plan_and_predict
from raddle.searches.registry import SEARCHES
from raddle.searches.settings import Settings

CELLS = (("inception_v3", 256, "h100:4x8"), ("gpt", 256, "h100:16x8"))  # model, batch, cluster


def run(budget: float) -> None:
    """Stores `search_s`, wall and CPU seconds of every search for every cell.

    Wall and CPU seconds also have what is no search time: compilation by numba, capturing of micro-batches,
    and the simulation of the final plan.
    """
    for model, batch, cluster in CELLS:
        graph, on = graph_of(model, batch), machine(cluster)
        for method in SEARCHES:
            wall, cpu = perf_counter(), process_time()
            try:
                row = plan_and_predict(graph, on, method, settings=Settings(budget=budget)).row
            except InputError as error:
                row = {"search_s": None, "error": str(error)}
            result = {key: row.get(key) for key in ("search_s", "step_ms", "stopped", "error")}
            result |= {"wall_s": perf_counter() - wall, "cpu_s": process_time() - cpu}
            keep("budgets", f"{model} {cluster} {method} {budget:g}", result)
