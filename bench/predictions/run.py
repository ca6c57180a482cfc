"""Predicts steps of one GPU before they are measured, then measures them: time and peak of memory.

    python bench/predictions/run.py --predict bench/predictions/predicted.json      # anywhere, on the CPU
    python bench/predictions/run.py -o results.json                                 # on the GPU: eager
    python bench/predictions/run.py -o compiled.json --mode compiled
    python bench/predictions/run.py --tiny -o /tmp/trial.json                       # a trial on the CPU
    python bench/predictions/run.py --table results.json compiled.json --predicted predicted.json

The first command predicts with the preset alone. The others profile each model at its batch
(`probe/blocks.py`), predict another batch and a half of the batch from this profile, and measure them. Each
case (model, precision, mode) has a process: all prepare at the same time, and measure one after the other
(bench/runtime/gpu.py). Each process also writes its row to a folder beside the results, so that a run that
is ended early keeps what it has measured.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from models import MODELS, TINY, Entry

import raddle
from raddle.clusters import cluster, compiled
from raddle.costs.profile import Profile
from raddle.graph.graph import Graph
from raddle.graph.supervised import Loss
from raddle.plans.plan import Plan
from raddle.probe.blocks import make_trainer, measure_blocks, single_device_plan, small_batch
from raddle.program.lower import lower
from raddle.program.program import Program
from raddle.runtime.trainer import Trainer
from raddle.searches.predict import predicted_metrics
from raddle.simulation.timeline import simulate

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from gpu import run_cases  # bench/runtime

PRECISIONS = {"float32": "float32", "bfloat16": "bf16"}  # name -> precision of a plan
MODES = ("eager", "compiled")
CLUSTER, STEPS = "h200:1x1", 3
SECONDS = 200  # after which no further case begins to measure
WARMUP, LEAST, MOST, TIMED_SECONDS = (
    2,
    1,
    12,
    0.6,
)  # steps, and the seconds that the timed ones take
OTHERS_LEAVE = 25  # tries to get the memory of a step, while others compile as well


@dataclass
class Loaded:
    """A model with its loss, and its graph at the batch of the profile."""

    entry: Entry
    model: torch.nn.Module
    make_batch: Callable[[int], tuple[torch.Tensor, ...]]
    loss: Loss
    graph: Graph


@dataclass
class Case:
    """A model in a precision, eager or compiled, with its simulated programs by batch."""

    loaded: Loaded
    precision: str
    compiled: bool
    programs: dict[int, Program]

    @property
    def sizes(self) -> list[int]:
        """The batch of the profile, the other batch, and a half of the batch.

        A compiled case has no half: to compile a model for one batch takes about a minute.
        """
        entry = self.loaded.entry
        return [entry.batch, entry.other, *([] if self.compiled else [entry.batch // 2])]

    def plan(self, size: int) -> Plan:
        """Return the plan of a batch."""
        graph = self.loaded.graph.for_batch(size)
        return single_device_plan(graph, self.precision, self.loaded.entry.optimizer)


def load_model(name: str, device: str) -> Loaded:
    """Return a model on "meta" or on the CPU. If there is a GPU, the model is initialised there."""
    entry = {**MODELS, **TINY}[name]
    torch.manual_seed(0)
    with torch.device("cuda" if device != "meta" and torch.cuda.is_available() else device):
        model, make_batch, criterion = entry.build()
    model = model.train().to(device)
    batch = tuple(t.to(device) for t in make_batch(entry.batch))
    loss = raddle.supervised(criterion)
    graph = raddle.capture(model, batch, loss, name=name)
    return Loaded(entry, model, make_batch, loss, graph)


def make_case(loaded: Loaded, precision: str, mode: str) -> Case:
    """Return a case with its programs, which have a few steps, to be simulated."""
    case = Case(loaded, PRECISIONS[precision], mode == "compiled", {})
    for size in case.sizes:
        graph = loaded.graph.for_batch(size)
        case.programs[size] = lower(graph, replace(case.plan(size), steps=STEPS))
    return case


def predict(case: Case, where: str, profile: Profile | None = None) -> dict[str, dict[str, float]]:
    """Return by batch the predicted milliseconds of a step and the peak of memory in bytes."""
    result, on = {}, compiled(cluster(where)) if case.compiled else cluster(where)
    for size, program in case.programs.items():
        metrics = predicted_metrics(simulate(program, on, profile))
        result[str(size)] = {"step_ms": metrics["step_ms"], "peak_bytes": metrics["peak_bytes"]}
    return result


def write_predictions(names: list[str], where: str, path: str) -> None:
    """Predict all cases with the preset alone, on the meta device, and write the file."""
    content: dict[str, Any] = {"cluster": where, "raddle": raddle.__version__, "cases": {}}
    loaded: dict[str, Loaded] = {}
    for name in names:
        model, precision, mode = name.split("/")
        try:
            if model not in loaded:
                loaded = {model: load_model(model, "meta")}
            content["cases"][name] = predict(make_case(loaded[model], precision, mode), where)
        except Exception as error:
            content["cases"][name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        print(name, json.dumps(content["cases"][name]), flush=True)
        Path(path).write_text(json.dumps(content, indent=1) + "\n")


# -- measuring ---------------------------------------------------------------------------------------------


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_step(trainer: Trainer, batch: Any) -> dict[str, float]:
    """Return the milliseconds of a step, when one follows the other, and the peak of memory in bytes."""
    for _ in range(WARMUP):
        start = time.perf_counter()
        trainer.step(batch)
        synchronize()
    once = time.perf_counter() - start
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    count = max(LEAST, min(MOST, int(TIMED_SECONDS / 3 / once)))
    parts = []
    for _ in range(3):
        synchronize()
        start = time.perf_counter()
        for _ in range(count):
            trainer.step(batch)
        synchronize()
        parts.append((time.perf_counter() - start) / count)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {"step_ms": 1e3 * statistics.median(parts), "peak_bytes": peak}


def compile_step(trainer: Trainer, batch: Any) -> None:
    """Run a step, which compiles, again and again while other processes leave too little memory."""
    for _ in range(OTHERS_LEAVE):
        try:
            trainer.step(batch)
            synchronize()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            time.sleep(random.uniform(1, 4))
            continue
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return
    raise MemoryError("other processes left too little memory to compile")


def run_worker(name: str, where: str, folder: str) -> None:
    """Prepare a case, wait for a line on stdin, measure it, and print its row as a line of JSON."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(2 if torch.cuda.is_available() else 1)
    start = time.perf_counter()
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    row: dict[str, Any] = {"case": name}
    try:
        model_name, precision, mode = name.split("/")
        loaded = load_model(model_name, "cpu")
        case = make_case(loaded, precision, mode)
        row |= {"counted": loaded.entry.counted, "preset": predict(case, where)}
        trainer = make_trainer(
            loaded.graph, loaded.model, loaded.loss, case.plan(loaded.graph.batch),
            compile=case.compiled, place=place,
        )  # fmt: skip
        for size in [*case.sizes, *([] if case.compiled else [small_batch(loaded.graph)])]:
            trainer.step_runner.executor_for(size)
            if case.compiled:
                compile_step(trainer, loaded.make_batch(size))
        synchronize()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {str(error)[:500]}"
        row["where"] = traceback.format_exc()[-1500:]
    row["prepared_s"] = round(time.perf_counter() - start, 1)
    print("READY", file=sys.stderr, flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    if "failed" not in row:
        try:
            measure_case(case, trainer, where, place, row)
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {str(error)[:500]}"
            row["where"] = traceback.format_exc()[-1500:]
    row["measured_s"] = round(time.perf_counter() - start, 1)
    if folder:
        Path(folder, f"{name.replace('/', '_')}.json").write_text(json.dumps(row, indent=1))
    print(json.dumps(row), flush=True)


def measure_case(
    case: Case, trainer: Trainer, where: str, place: torch.device, row: dict[str, Any]
) -> None:
    """Add to a row: what was measured at each batch, the profile, and what the profile predicts."""
    row["measured"] = {}
    for size in case.sizes:
        batch = tuple(t.to(place) for t in case.loaded.make_batch(size))
        row["measured"][str(size)] = measure_step(trainer, batch)
        if size == case.loaded.entry.batch:
            device = cluster(where).devices[0]
            blocks = measure_blocks(trainer, batch, device, small=not case.compiled)
            row["profile"] = [
                {k: v for k, v in block.items() if k != "shares"}
                | {"operators": len(block["shares"])}
                for block in blocks.to_dict()["blocks"]
            ]
    row["predicted"] = predict(case, where, Profile({}, blocks))


# -- the table -----------------------------------------------------------------------------------


def error(predicted: float, measured: float) -> float:
    """Return the relative error of a prediction."""
    return predicted / measured - 1


def table(paths: list[str], predicted: str) -> None:
    """Print the rows as Markdown, then the median and the worst error of those that count.

    predicted: the file of the preset's predictions, made before measuring.
    """
    before = json.loads(Path(predicted).read_text())["cases"] if predicted else {}
    rows = [row for path in paths for row in json.loads(Path(path).read_text())["results"]]
    errors: dict[str, list[float]] = {"profile": [], "preset": [], "memory": []}
    print("| case | batch | measured | profile | preset | peak | predicted |\n" + "|---" * 7 + "|")
    for row in rows:
        if "failed" in row:
            print(f"| {row['case']} | failed: {row['failed']} |")
            continue
        for number, (size, measured) in enumerate(row["measured"].items()):
            profile = row["predicted"][size]
            preset = before[row["case"]][size] if before else row["preset"][size]
            by = error(profile["step_ms"], measured["step_ms"])
            alone = error(preset["step_ms"], measured["step_ms"])
            peak = measured["peak_bytes"]
            memory = error(preset["peak_bytes"], peak) if peak else 0.0
            if row["counted"]:
                errors["profile"] += [by] * (number > 0)  # the profile was taken at the first batch
                errors["preset"].append(alone)
                errors["memory"].append(memory)
            print(
                f"| {row['case']} | {size} | {measured['step_ms']:.2f} ms | {by:+.1%} | {alone:+.1%} "
                f"| {peak / 2**30:.2f} GiB | {memory:+.1%} |"
            )
    for name, values in errors.items():
        if values:
            sizes = [abs(value) for value in values]
            print(
                f"{name}: median {statistics.median(sizes):.1%}, worst {max(sizes):.1%}, {len(sizes)} steps"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", default="")
    parser.add_argument("--predict", default="", help="write the preset's predictions to this file")
    parser.add_argument("--table", nargs="+", default=[])
    parser.add_argument("--predicted", default="", help="with --table: what --predict wrote")
    parser.add_argument("--worker", default="")
    parser.add_argument("--folder", default="")
    parser.add_argument("--cluster", default=CLUSTER)
    parser.add_argument("--mode", default="", help="eager or compiled; with --predict both")
    parser.add_argument("--models", default="")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    if options.table:
        table(options.table, options.predicted)
        return
    if options.worker:
        run_worker(options.worker, options.cluster, options.folder)
        return
    models = options.models.split(",") if options.models else list(TINY if options.tiny else MODELS)
    modes = [options.mode] if options.mode else MODES if options.predict else ["eager"]
    names = [
        f"{model}/{precision}/{mode}"
        for mode in modes for model in models for precision in options.precisions.split(",")
        if mode == "eager" or {**MODELS, **TINY}[model].counted
    ]  # fmt: skip
    if options.predict:
        write_predictions(names, options.cluster, options.predict)
        return
    folder = f"{options.output}.rows" if options.output else ""
    if folder:
        Path(folder).mkdir(exist_ok=True)
    arguments = ["--cluster", options.cluster, "--folder", folder]
    # Numba compiles the simulation once, before all processes would do it at the same time.
    predict(make_case(load_model("mlp-tiny", "meta"), "float32", "eager"), options.cluster)
    run_cases(__file__, names, arguments, options.output, options.seconds)


if __name__ == "__main__":
    main()
