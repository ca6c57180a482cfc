"""Compares predicted and measured peak memory of each rank, for pipelines planned for four H200.

python bench/memory/pipelines.py plans FOLDER       writes twelve plans and predicted.json
for plan in FOLDER/*_*.json; do
    torchrun --standalone --nproc-per-node 4 bench/memory/pipeline_rank.py $plan    # they share one GPU
done
python bench/memory/pipelines.py table FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

# By (model, batch, micro-batches): schedules; "recomputed": all stages are recomputed.
SCHEDULES = {
    ("vgg16", 64, 8): ("1f1b", "gpipe", "1f1b, recomputed", "gems", "sequential"),
    ("resnet50", 64, 8): ("1f1b", "gpipe", "1f1b, recomputed", "gems"),
    ("unet", 16, 4): ("1f1b", "gpipe", "gems"),
}


def plans(folder: Path) -> None:
    """Write the plans, and predicted.json with the predicted peak bytes of each rank."""
    from raddle import clusters, zoo
    from raddle.graph.capture import capture
    from raddle.plans import plan_file
    from raddle.searches.planning import build_plan, run_method
    from raddle.searches.predict import simulate_steps
    from raddle.searches.settings import Settings
    from raddle.simulation.memory.peaks import peak_bytes

    folder.mkdir(parents=True, exist_ok=True)
    cluster, predicted = clusters.cluster("h200:4"), {}
    for (model, batch, count), schedules in SCHEDULES.items():
        work = zoo.load(model, batch=batch, device="meta")
        graph = capture(work.model, work.batch, work.loss, name=model)
        for words in schedules:
            schedule, _, recomputed = words.partition(", ")
            settings = Settings(
                schedule=schedule, stages=4, microbatches=count, bn="local", optimizer="momentum"
            )
            result = run_method(graph, cluster, "pipeline", settings)
            assert result.pipeline is not None
            plan = build_plan(
                graph, cluster, "pipeline", result, settings, model=model, batch=batch
            )
            if recomputed:
                plan = replace(plan, recompute=plan.stages)
            name = f"{model}_{words.replace(', ', '-')}"
            plan_file.save(plan, result.pipeline.graph, folder / f"{name}.json")
            timeline = simulate_steps(result.pipeline.graph, plan, cluster)
            peaks = peak_bytes(timeline, through_host=True)
            predicted[name] = [int(peak) for peak in peaks]
    (folder / "predicted.json").write_text(json.dumps(predicted))


def table(folder: Path) -> None:
    """Print measured and predicted peaks in MiB, by plan and rank."""
    predicted = json.loads((folder / "predicted.json").read_text())
    within = total = 0  # numbers of ranks: predicted within 10 %, and all
    for name, peaks in predicted.items():
        cells = []
        for rank, peak in enumerate(peaks):
            measured = int((folder / f"{name}.rank{rank}").read_text())
            within, total = within + (abs(peak / measured - 1) <= 0.1), total + 1
            cells.append(f"{measured / 2**20:.0f} / {peak / 2**20:.0f}")
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"{within} of {total} are within 10 %")


if __name__ == "__main__":
    {"plans": plans, "table": table}[sys.argv[1]](Path(sys.argv[2]))
