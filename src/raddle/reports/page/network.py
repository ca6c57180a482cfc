"""Describes the model for the HTML page: operators, values between them, and how operators are split.

The result is JSON data; docs/page.md lists its keys.
"""

# v: a value, by its name or its number

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raddle.graph.graph import Graph
from raddle.plans.notation import write_tiling
from raddle.plans.tiling import Grid, Tiling
from raddle.reports.model_summary import split_text


def describe_network(graph: Graph) -> dict[str, Any]:
    """Return operators in execution order, values, and edges: numbers [producer, consumer, value]."""
    number = {op.name: i for i, op in enumerate(graph.ops)}
    producer = {value: number[op.name] for op in graph.ops for value in op.outputs}
    values = {name: v for v, name in enumerate(producer)}
    parameters = {p.name for p in graph.parameters}
    return {
        "ops": [
            {
                "name": op.name,
                "kind": op.label,
                "line": op.notation,  # its line of index notation
                "module": op.module,  # the dotted name of the nn.Module that it comes from
                "layer": op.layer,  # the name of its composite, else its own name
                "composite": op.composite_kind,  # "batch_norm", "lstm", ... or ""
                "dims": [[dim.name, dim.size] for dim in op.space.dims],
                # A letter for each dimension, as in `split_text`; "-": it cannot be split.
                "kinds": graph.dim_kinds(op),
                "can": split_text(graph, op),  # the dimensions that can be split
                "shape": list(graph.values[op.outputs[0]].shape),
                "params": sum(_elements(graph, v) for v in op.inputs if v in parameters),
            }
            for op in graph.ops
        ],
        "values": [
            {
                "name": name,
                "shape": list(graph.values[name].shape),
                "bytes": graph.values[name].nbytes,
            }
            for name in values
        ],
        "edges": [
            [producer[v], number[op.name], values[v]]
            for op in graph.ops
            for v in dict.fromkeys(op.inputs)
            if v in producer
        ],
        "params": sum(_elements(graph, p.name) for p in graph.parameters),
    }


def _elements(graph: Graph, value: str) -> int:
    """Return the number of elements of a value."""
    return graph.values[value].nbytes // graph.values[value].dtype.itemsize


def describe_tiles(graph: Graph, tiles: Mapping[str, Tiling]) -> dict[str, Any]:
    """Return each distinct tiling and text (such as "n/4") once, and for each operator the numbers of both.

    A grid, whose boxes lie between cut points of each dimension, is described by its cuts and devices, any
    other tiling by its boxes. "devices": of the boxes in row-major order. "copies": how many devices have
    the same box; they follow each other in "devices".
    """
    tilings: dict[Tiling, int] = {}
    texts: dict[str, int] = {}
    tiling_of, text_of = [], []
    for op in graph.ops:
        tiling = tiles[op.name]
        tiling_of.append(tilings.setdefault(tiling, len(tilings)))
        text_of.append(texts.setdefault(write_tiling(op, tiling), len(texts)))
    return {
        "tilings": [_tiling(op_tiling) for op_tiling in tilings],
        "tiling_of": tiling_of,
        "texts": list(texts),
        "text_of": text_of,
    }


def _tiling(tiling: Tiling) -> dict[str, Any]:
    """Describe a tiling; a box is [lower corner, upper corner, device]."""
    if isinstance(tiling, Grid):
        return {
            "cuts": [list(cuts) for cuts in tiling.cuts],
            "devices": list(tiling.devices),
            "copies": tiling.copies,
        }
    return {"boxes": [[list(t.box.lo), list(t.box.hi), t.device] for t in tiling.tiles]}
