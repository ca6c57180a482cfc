"""Tables and progress for people at a terminal; plain, uncoloured and unwrapped text when piped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE, Box
from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 10_000  # columns: a table is as wide as its content, and a pipe never cuts it


def count_text(count: float) -> str:
    """138357544 -> "138 M"."""
    return _scaled(count, 1000, ("", "k", "M", "G", "T", "P"))


def flops_text(flops: float) -> str:
    """30_960_000_000 -> "31.0 GFLOP"."""
    return _scaled(flops, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def bytes_text(nbytes: float) -> str:
    """1_572_864 -> "1.50 MiB"."""
    return _scaled(nbytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    """Three digits and the largest unit that leaves something before the point."""
    scaled, step = float(value), 0
    while round(scaled) >= base and step < len(units) - 1:
        scaled, step = scaled / base, step + 1
    digits = 0 if step == 0 or scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:.{digits}f} {units[step]}".rstrip()


@contextmanager
def progress(message: str) -> Iterator[None]:
    """Show a spinner on stderr while the body runs, if somebody is looking at it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(message):
        yield


def show_models(models: Sequence[Mapping[str, Any]]) -> None:
    """Print one name a line, so that a shell can loop over them."""
    for model in models:
        print(model["name"])


def show_model(model: Mapping[str, Any]) -> None:
    """Print what `raddle.report.models.describe` says of a captured model."""
    console = _stdout()
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


def _stdout() -> Console:
    # Names such as "blocks[0]" or ":conv:" are data, not markup or emoji.
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console
