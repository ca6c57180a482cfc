"""Measures the speed and the quality of the searches; see README.md.

`run.py PART ...` runs some parts, `run.py --table` prints the tables of the stored results.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))  # the experiments

import budgets
import delta
import quality
import speed
import tables

PARTS = {  # name -> a function of the options that runs the part
    "compilation": lambda a: speed.compilation(),
    "simulation": lambda a: speed.simulation(),
    "proposals": lambda a: speed.proposals(),
    "optcnn": lambda a: speed.optcnn(),
    "delta": lambda a: delta.run(),
    "budgets": lambda a: budgets.run(a.budget),
    "optcnn-claims": lambda a: quality.optcnn_claims(),
    "vgg-plan": lambda a: quality.vgg_plan(),
    "flexflow-claims": lambda a: quality.flexflow_claims(a.budget, a.models or quality.FLEXFLOW),
    "reduction": lambda a: quality.reduction(a.budget),
    "heterogeneous": lambda a: quality.heterogeneous(a.budget),
    "memory": lambda a: quality.memory(a.budget),
    "scale": lambda a: quality.scale(a.budget),
    "auto": lambda a: quality.auto(a.budget, a.models or quality.TWELVE, a.clusters),
}
# These take minutes together; the others take an hour.
QUICK = ("simulation", "proposals", "optcnn", "delta", "vgg-plan")


def main() -> None:
    """Runs the chosen parts, or prints the tables."""

    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, "all", []], help="the quick ones if none"
    )
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of a search")
    parser.add_argument("--models", type=names)
    parser.add_argument("--clusters", type=names, default=quality.CLUSTERS)
    parser.add_argument("--table", action="store_true", help="print what results.json holds")
    given = parser.parse_args()
    if given.table:
        print(tables.all_tables())
        sys.exit()
    chosen = list(PARTS) if "all" in given.parts else given.parts or list(QUICK)
    for part in chosen:
        PARTS[part](given)


if __name__ == "__main__":
    main()
