"""Shows FlexFlow's plan of NMT (a translation network) on 4 GPUs: which layers are on which GPU.

This is the part `plans` of `raddle reproduce flexflow`. The paper is FlexFlow (Jia et al., arXiv
1807.05358).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from experiments.experiment import RunOptions
from experiments.flexflow.cases import case, experiment_size
from experiments.simulate_methods import simulate_method
from raddle.api.models import Graph, Op
from raddle.api.plans import Plan, write_tiling
from raddle.api.results import Cell, Column, Drawing, Section, Table

TITLE = "NMT on 4 GPUs"
GPUS = 4
# Operator kinds whose tiles show where a layer is computed
HEAVY = ("linear", "embedding", "matmul")
# names of the operators of the attention
ATTENTION = ("score", "matmul", "matmul_1", "combine")
WIDTH = 10  # characters of a bar
# layer and time step in the name of an operator, as in "encoder.l0.t3."; l0r: layer 0, backwards in time
_STEP = re.compile(r"(?P<layer>.+\.l\d+r?)\.t\d+\.")

WorkShares = Mapping[str, Sequence[float]]  # layer -> share of its work on each device


def plans(options: RunOptions) -> Section:
    """Runs the part; options.report shows progress: what is done now, and the fraction finished."""
    nmt = case("nmt", GPUS)
    options.report("searching", 0.2)
    simulated = simulate_method(nmt, "flexflow", "allreduce", experiment_size(options).budget)
    if simulated is None:
        return Section(TITLE, skipped="no plan that was found for NMT fits 4 K80.")
    placed = work_shares(nmt.graph, simulated.plan)
    drawing = Drawing(
        "Layers and GPUs", draw(placed),
        "The share of a layer's work that each GPU has, in %: all time steps of a layer together.",
    )  # fmt: skip
    return Section(TITLE, _text(placed), [drawing, _split_table(nmt.graph, simulated.plan)])


def layer_of(op: Op) -> str:
    """Returns the layer of an operator.

    All time steps of a recurrent layer are one layer; so is the attention.
    """
    match = _STEP.match(op.name)
    if match:
        return match["layer"]
    return "attention" if op.name in ATTENTION else op.name


def _heavy_ops(graph: Graph) -> Iterator[tuple[str, Op]]:
    """Returns (layer, operator) for each operator of the kinds HEAVY."""
    return ((layer_of(op), op) for op in graph.ops if op.kind in HEAVY)


def work_shares(graph: Graph, plan: Plan) -> WorkShares:
    """Returns, for each layer, the share of its multiplications on each device.

    For an embedding, which multiplies nothing, it is the share of its elements.
    """
    volumes: dict[str, list[float]] = defaultdict(lambda: [0.0] * plan.devices)
    for layer, op in _heavy_ops(graph):
        for tile in plan.tiles[op.name].tiles:
            volumes[layer][tile.device] += tile.box.volume
    # by_device: the volume of the layer's tiles on each device
    return {layer: [v / sum(by_device) for v in by_device] for layer, by_device in volumes.items()}


def draw(placed: WorkShares) -> list[str]:
    """Returns one line of text for each layer, with one bar for each device."""
    width = max(len(layer) for layer in placed)
    count = len(next(iter(placed.values())))
    lines = [(" " * width + "".join(f"  GPU {d:<{WIDTH}}" for d in range(count))).rstrip()]
    for layer, layer_shares in placed.items():
        bars = "".join(f"  {_bar(share)} {100 * share:3.0f}" for share in layer_shares)
        lines.append(f"{layer:<{width}}{bars}")
    return lines


def _bar(share: float) -> str:
    """Returns a bar as long as the share; a share above 0 has at least one mark."""
    filled = max(round(WIDTH * share), int(share > 0))
    return "#" * filled + "." * (WIDTH - filled)


def _text(placed: WorkShares) -> str:
    """Returns a sentence that says which layers are on one GPU, and which are on all."""
    alone = [layer for layer, layer_shares in placed.items() if max(layer_shares) > 0.999]
    everywhere = [layer for layer, layer_shares in placed.items() if min(layer_shares) > 0]
    return (
        f"Of {len(placed)} layers, {len(alone)} are on one GPU ({', '.join(alone) or 'none'}) and "
        f"{len(everywhere)} on all ({', '.join(everywhere) or 'none'})."
    )


def _split_table(graph: Graph, plan: Plan) -> Table:
    """Returns a table of the splits in each layer, with the number of operators that have them."""
    splits: dict[str, Counter[str]] = defaultdict(Counter)
    for layer, op in _heavy_ops(graph):
        # the tiling as text, such as n/2 @0-1
        splits[layer][write_tiling(op, plan.tiles[op.name])] += 1
    rows: list[list[Cell]] = [
        [layer, "; ".join(f"{split} ({times})" for split, times in counter.most_common(3))]
        for layer, counter in splits.items()
    ]
    # Column: name, source of its numbers ("counted": from a plan alone), digits after the point
    columns = (Column("layer"), Column("splits, and of how many operators", "counted"))
    note = "n: samples, c: output channels, k: summed channels; n/2 @0-1: in two parts on GPUs 0 and 1."
    return Table("How the layers are split", columns, rows, note)
