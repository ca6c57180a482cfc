"""Shows OptCNN's plan of VGG-16 on 4 GPUs, layer by layer, next to the plan that the paper prints.

This is the part `plans` of `raddle reproduce optcnn`. The paper is OptCNN (Jia et al., arXiv 1802.04924).

A group has operators that are split together, about one layer. Tables (raddle/searches/optcnn) have the
cost of each configuration of each group; `paper=True`: with the paper's costs, where parameters are
synchronised by servers. The optimum is the plan of least cost.
"""

# on: the cluster that plans are made for

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.experiment import RunOptions
from experiments.optcnn.additive import additive_cost, baselines, configurations_with, split_letters
from experiments.simulate_methods import WeakScalingCase
from raddle.api.models import Op
from raddle.api.results import Cell, Column, Drawing, Section, Table
from raddle.api.searching import Configuration, Group, Tables, build_tables, choose_configurations

TITLE = "VGG-16 on 4 GPUs"
CASE = WeakScalingCase("vgg16", "p100", 4, 32)  # 4 GPUs, 32 images on each
LAST_CONVOLUTIONS = 24  # features.24 is the first of the fifth group of convolutions
FULLY_CONNECTED = {"classifier.0": 4, "classifier.3": 4, "classifier.6": 2}  # number of parts of c
LETTER_NAMES = {"n": "samples", "h": "rows", "w": "columns", "c": "channels"}


def printed_split(group: Group) -> dict[str, int]:
    """Returns the split of a group in the printed plan: the number of parts by letter.

    It is n=4 for four groups of convolutions, h=2 w=2 for the fifth, and c=4, 4, 2 at the end. A "group of
    convolutions" is the paper's; `group` is a set of operators that are split together, about one layer.
    """
    for name, count in FULLY_CONNECTED.items():
        if group.name.startswith(name):
            return {"c": count}
    kind, _, number = group.name.partition(".")
    # operators between the convolutions and the classifier count as the fifth
    last = kind != "features" or int(number.split(".")[0]) >= LAST_CONVOLUTIONS
    return {"h": 2, "w": 2} if last else {"n": 4}


def plans(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    graph, on = CASE.graph, CASE.cluster
    options.report("servers", 0.3)
    paper = build_tables(graph, on, paper=True)
    options.report("all-reduce", 0.6)
    allreduce = build_tables(graph, on)
    # [0]: the configuration of each group; [1] is the Solution, with its cost
    chosen = [choose_configurations(paper)[0], choose_configurations(allreduce)[0]]
    alike = sum(
        split_letters(group, configuration) == printed_split(group)
        for group, configuration in zip(paper.groups, chosen[0], strict=True)
    )
    text = (
        f"Counted as the paper does, {alike} of {len(paper.groups)} groups are split as printed. "
        + _cost_text(paper, chosen[0])
    )
    lines = draw(paper.groups, [*chosen, configurations_with(paper, printed_split)])
    drawing = Drawing(
        "Splits by layer",
        lines,
        "n=4: samples in four parts; 'one GPU': not split. The paper prints splits for groups of layers.",
    )
    return Section(TITLE, text, [drawing, _cost_table(paper, chosen[0])])


def _cost_text(tables: Tables, chosen: Sequence[Configuration]) -> str:
    """Returns a sentence: the cost of the optimum (`chosen`) and of the printed plan."""
    optimum, theirs = additive_cost(tables, chosen), configurations_with(tables, printed_split)
    if theirs is None:
        return "The printed plan is not in the tables."
    printed_cost = additive_cost(tables, theirs)
    return (
        f"By these costs the printed plan takes {1e3 * printed_cost:.1f} ms and the optimum "
        f"{1e3 * optimum:.1f} ms, "
        f"{100 * (1 - optimum / printed_cost):.1f} % less."
    )


def _cost_table(tables: Tables, chosen: Sequence[Configuration]) -> Table:
    """Returns a table of the additive costs of baselines, the printed plan and the optimum (`chosen`)."""
    configurations_by_plan = {
        **baselines(tables),
        "printed": configurations_with(tables, printed_split),
        "optimum": list(chosen),
    }
    rows: list[list[Cell]] = [
        [name, 1e3 * additive_cost(tables, configurations)]
        for name, configurations in configurations_by_plan.items()
        if configurations is not None
    ]
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = (Column("plan"), Column("a step by OptCNN's cost, ms", "counted"))
    note = "Batch 128; a server a layer, nothing overlaps, links at their nominal rates."
    return Table("What the plans cost", columns, rows, note)


# -- drawing ---------------------------------------------------------------------------------------


def draw(groups: Sequence[Group], columns: Sequence[Sequence[Configuration] | None]) -> list[str]:
    """Returns a line of text for each group: the layer, its output, and its split in each plan.

    columns: for each plan the configurations of all groups; None: the plan is not in the tables.
    """
    heads = ("as the paper counts", "all-reduce", "printed")
    rows: list[tuple[str, ...]] = [("layer", "output of a sample", *heads)]
    for g, group in enumerate(groups):
        splits = (
            "–" if configurations is None else split(split_letters(group, configurations[g]))
            for configurations in columns
        )
        rows.append((group.name, _shape(group.members[0].op), *splits))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [_padded(row, widths) for row in rows]


def split(given: Mapping[str, int]) -> str:
    """Returns a split in words: {"n": 2, "c": 2} -> "n=2 c=2  samples x channels"."""
    if not given:
        return "one GPU"
    letters = " ".join(f"{letter}={count}" for letter, count in given.items())
    return f"{letters}  {' x '.join(LETTER_NAMES.get(letter, letter) for letter in given)}"


def _shape(op: Op) -> str:
    """Returns the shape of the output for one sample: "64 x 224 x 224"."""
    # outputs[0]: the numbers of the iteration space's dimensions that the first output has
    dims = [op.space.dims[d] for d in op.space.outputs[0]]
    return " x ".join(str(dim.size) for dim in dims if dim.name != "n")


def _padded(row: Iterable[str], widths: Sequence[int]) -> str:
    """Returns the cells as one line, each padded to the width of its column."""
    return "   ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()
