"""Prints the names of raddle's models (the zoo), and the layers of one model, for `raddle models`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE, Box
from rich.table import Table

from raddle.reports.terminal import stdout
from raddle.reports.units import (
    bytes_text,
    count_text,
    flops_text,
)


def show_models(models: Sequence[Mapping[str, Any]]) -> None:
    """Print one name per line, so that a shell can loop over them."""
    for model in models:
        print(model["name"])


def show_model(model: Mapping[str, Any]) -> None:
    """Print a model as `raddle.reports.model_summary.describe_model` describes it."""
    console = stdout()
    console.print(f"{model['name']}, batch {model['batch']}", style="bold")
    console.print(
        f"{count_text(model['params'])} parameters, "
        f"{flops_text(model['flops_forward'])} forward, "
        f"{flops_text(model['flops_backward'])} backward, "
        f"{bytes_text(model['activation_bytes'])} of activations"
    )
    console.print(_layer_table(model["layers"], box=SIMPLE if console.is_terminal else None))
    if model["opaque"]:
        ops = ", ".join(f"{entry['op']} ({entry['kind']})" for entry in model["opaque"])
        console.print(f"opaque, never split: {ops}", style="yellow")
    else:
        console.print("no opaque operators")


def _layer_table(layers: Sequence[Mapping[str, Any]], *, box: Box | None) -> Table:
    """Return a table with a row for each layer; "forward" is FLOPs, "split" as `split_text` returns it."""
    table = Table(box=box, pad_edge=False)
    for title in ("layer", "kind", "output"):
        table.add_column(title, overflow="fold")
    for title in ("bytes", "params", "forward"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("split")
    for layer in layers:
        table.add_row(
            layer["name"],
            layer["kind"],
            "x".join(map(str, layer["output"])),
            bytes_text(layer["bytes"]),
            count_text(layer["params"]) if layer["params"] else "",
            flops_text(layer["flops"]) if layer["flops"] else "",
            "opaque" if layer["opaque"] else layer["split"],
            style="yellow" if layer["opaque"] else None,
        )
    return table
