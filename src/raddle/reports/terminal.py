"""Tables and progress for people at a terminal; plain, uncoloured and unwrapped text when piped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.box import SIMPLE, Box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ENDS = {  # why a search ended
    "budget": "with its time",
    "proposals": "with its proposals",
    "interrupt": "when it was interrupted",
    "no improvement": "because nothing had improved for long",
}
PROGRESS_SECONDS = 0.1  # between lines of progress
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


def rate_text(rate: float) -> str:
    """12.5e9 -> "12.5 GB/s"; decimal, as data sheets have it."""
    return _scaled(rate, 1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"))


def speed_text(speed: float) -> str:
    """10.6e12 -> "10.6 TFLOP/s"."""
    return f"{flops_text(speed)}/s"


def seconds_text(seconds: float) -> str:
    """5e-6 -> "5.00 us"."""
    return _scaled(seconds * 1e9, 1000, ("ns", "us", "ms", "s"))


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


@contextmanager
def progress_bar(message: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a bar on stderr, if somebody is looking at it, that {"step", "done", "of"} moves.

    Who does not know how far it is leaves out the last two.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(message, total=None)

        def move(step: Mapping[str, Any]) -> None:
            text = f"{message}: {step['step']}"
            bar.update(task, description=text, completed=step.get("done"), total=step.get("of"))

        yield move


@contextmanager
def progress_lines(message: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """The same as lines of JSON on stderr, for another program; of quick ones, some."""
    last = 0.0

    def tell(step: Mapping[str, Any]) -> None:
        nonlocal last
        if monotonic() - last >= PROGRESS_SECONDS:
            last = monotonic()
            print(json.dumps({"progress": message, **step}), file=sys.stderr, flush=True)

    yield tell


def show_models(models: Sequence[Mapping[str, Any]]) -> None:
    """Print one name a line, so that a shell can loop over them."""
    for model in models:
        print(model["name"])


def show_model(model: Mapping[str, Any]) -> None:
    """Print what `raddle.reports.models.describe` says of a captured model."""
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


def show_clusters(presets: Sequence[Mapping[str, Any]]) -> None:
    """Print what `raddle.clusters.presets` lists, and below it where the figures come from."""
    console = stdout()
    table = new_table(console)
    table.add_column("preset", no_wrap=True)
    for title in ("size", "TFLOP/s 32, 16 bit", "memory", "inside", "between"):
        table.add_column(title, justify="right")
    for preset in presets:
        flops = preset["flops"]
        table.add_row(
            preset["name"],
            f"{preset['nodes']}x{preset['devices_per_node']}",
            f"{flops['float32'] / 1e12:.3g}, {flops.get('float16', flops['float32']) / 1e12:.3g}",
            bytes_text(preset["memory"]),
            _wire(preset["link"], "shared", "shared"),
            _wire(preset["network"], "per_device", "each"),
        )
    console.print(table)
    for preset in presets:
        console.print(f"{preset['name']}: {preset['source']}")
    console.print(
        "size: nodes x devices; NAME:4x4 or NAME:16 for others, raddle clusters NAME for more"
    )


def show_cluster(cluster: Mapping[str, Any]) -> None:
    """Print what `raddle.clusters.summary.summarise` says of a cluster."""
    console = stdout()
    console.print(cluster["name"], style="bold")
    console.print(
        f"{_plural(cluster['devices'], 'device')} in {_plural(cluster['nodes'], 'node')}, "
        f"{_plural(cluster['links'], 'link')}, fingerprint {cluster['fingerprint']}"
    )
    console.print(_kind_table(console, cluster["kinds"]))
    if cluster["routes"]:
        console.print(_route_table(console, cluster["routes"]))


def _kind_table(console: Console, kinds: Sequence[Mapping[str, Any]]) -> Table:
    """A column a kind: there are few of them, and many figures."""
    table = new_table(console)
    table.add_column("device", no_wrap=True)
    for kind in kinds:
        table.add_column(kind["kind"], justify="right")
    table.add_row("count", *(str(kind["count"]) for kind in kinds))
    for dtype in dict.fromkeys(dtype for kind in kinds for dtype in kind["flops"]):
        speeds = (kind["flops"].get(dtype) for kind in kinds)
        table.add_row(f"peak {dtype}", *("" if x is None else speed_text(x) for x in speeds))
    table.add_row("memory", *(bytes_text(kind["memory"]) for kind in kinds))
    table.add_row("memory bandwidth", *(rate_text(kind["bandwidth"]) for kind in kinds))
    table.add_row("overhead of an operator", *(seconds_text(kind["overhead"]) for kind in kinds))
    for family in kinds[0]["efficiency"]:
        shares = (kind["efficiency"][family] for kind in kinds)
        table.add_row(f"efficiency {family}", *(f"{share:.2g}" for share in shares))
    return table


def _route_table(console: Console, routes: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table(console)
    table.add_column("route", no_wrap=True)
    table.add_column("nodes", no_wrap=True)
    for title in ("bandwidth", "latency"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("a transfer holds", overflow="fold")
    for route in routes:
        table.add_row(
            f"{route['source']} -> {route['target']}",
            route["where"],
            rate_text(route["bandwidth"]),
            seconds_text(route["latency"]),
            ", ".join(route["holds"]),
        )
    return table


HANDLED = {
    "message": "an end of a message", "slice": "an end of a slice", "byte": "a byte", "sum": "a sum",
}  # fmt: skip


def show_probe(measured: Mapping[str, Any]) -> None:
    """Print what `raddle.probe.probe` measured, and where it was written."""
    console = stdout()
    ranks, gpu = measured["ranks"], measured["gpu"]
    console.print(
        f"one of {_plural(ranks, 'rank')} while all compute, "
        f"{_plural(measured['threads'], 'thread')} each, torch {measured['torch']}",
        style="bold",
    )
    console.print(_figure_table(console, measured))
    if gpu is not None:
        console.print(f"{gpu['name']}, one of {gpu['count']}", style="bold")
        console.print(_figure_table(console, gpu))
    if (measured["busy_cores"] or 0) > 0.25:
        console.print(
            f"other work kept {measured['busy_cores']:.1f} of {measured['cores']} cores busy: "
            "--fresh measures again when the machine is quiet",
            style="yellow",
        )
    if measured["cached"]:
        console.print(f"measured {measured['measured']}: --fresh measures again")
    if measured["file"] is None:
        console.print("-o FILE writes this as a cluster for --cluster FILE")
    else:
        console.print(f"written for --cluster {measured['file']}")


def _figure_table(console: Console, figures: Mapping[str, Any]) -> Table:
    table = new_table(console)
    table.add_column("what", no_wrap=True)
    table.add_column("measured", no_wrap=True)
    for name, speed in figures["flops"].items():
        table.add_row(name, speed_text(speed))
    table.add_row("memory bandwidth", rate_text(figures["memory_bandwidth"]))
    table.add_row("overhead of an operator", seconds_text(figures["overhead"]))
    for name, link in (("idle", figures.get("idle")), ("under load", figures.get("loaded"))):
        if link is not None:
            text = f"{seconds_text(link['latency'])} + bytes / {rate_text(link['bandwidth'])}"
            table.add_row(f"message, {name}", text)
    for what, seconds in figures.get("handling", {}).items():
        table.add_row(f"taken from a rank: {HANDLED[what]}", seconds_text(seconds))
    if figures.get("idle") is not None:
        ways = "at the same time" if figures["duplex"] else "in turns"
        pairs = ", all pairs in turns" if figures["shared"] else ""
        table.add_row("messages out and in", f"{ways}{pairs}")
    return table


def show_plan(row: Mapping[str, Any]) -> None:
    """Print the predicted figures of one plan, how it was found, and where it was written."""
    show_comparison([row])
    if row.get("proposals"):
        ended = ENDS.get(row["stopped"], row["stopped"])
        print(
            f"found as '{row['start']}' after {row['proposals']} proposals; the search ended {ended}"
        )
    for failure in row.get("failed", ()):
        if not failure["refused"]:
            print(f"left out, by a mistake in raddle: {failure['name']}, {failure['error']}")
    if row["file"] is not None:
        print(f"written to {row['file']}: raddle simulate {row['file']} shows more")


FIGURE_TITLES = {
    "step_ms": "step", "samples_per_s": "samples/s", "speedup": "speedup", "comm_bytes": "communication",
    "peak_bytes": "peak memory", "imbalance": "imbalance", "search_s": "search",
}  # fmt: skip


def show_comparison(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what `raddle.searches.figures.compare` says of methods; reasons stand below the table."""
    console = stdout()
    table = new_table(console)
    table.add_column("method", no_wrap=True)
    shown = {  # what no row has is left out: without data parallelism there is no speedup
        key: title
        for key, title in FIGURE_TITLES.items()
        if any(row[key] is not None for row in rows) or key == "step_ms"
    }
    for title in shown.values():
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        texts = [_figure_text(key, row[key]) for key in shown]
        table.add_row(row["method"], *texts, style=_row_style(row))
    console.print(table)
    for row in rows:
        if row.get("error"):
            console.print(f"{row['method']}: {row['error']}", style="yellow")
        elif row["fits"] is False:
            console.print(f"{row['method']}: does not fit into the devices' memory", style="yellow")
    bounded = [row for row in rows if row.get("lower_bound_ms") is not None]
    if bounded:
        least = bounded[0]["lower_bound_ms"]
        above = 100 * (min(row["step_ms"] for row in bounded) / least - 1)
        bound = seconds_text(least / 1e3)
        console.print(
            f"no plan takes less than {bound}: the fastest here is {above:.1f} % above that"
        )
    settings = {(row["bn"], row["sync"]) for row in rows}
    for bn, sync in sorted(settings):
        console.print(f"simulated, with {bn} batch statistics, synchronised by {sync}")


def _figure_text(key: str, figure: float | None) -> str:
    texts: dict[str, Callable[[float], str]] = {
        "step_ms": lambda ms: seconds_text(ms / 1e3),
        "samples_per_s": count_text,
        "speedup": "{:.2f}x".format,
        "comm_bytes": bytes_text,
        "peak_bytes": bytes_text,
        "imbalance": "{:.2f}".format,
        "search_s": seconds_text,
    }
    return "" if figure is None else texts[key](figure)


def _row_style(row: Mapping[str, Any]) -> str | None:
    return "yellow" if row.get("error") or row["fits"] is False else None


def show_simulation(result: Mapping[str, Any]) -> None:
    """Print what `raddle.searches.figures.details` says of a simulated plan."""
    console = stdout()
    console.print(
        f"{result['model']}, batch {result['batch']}, {result['method'] or 'a plan'} "
        f"on {result['cluster']}",
        style="bold",
    )
    console.print(
        f"{seconds_text(result['step_ms'] / 1e3)} a step, "
        f"{count_text(result['samples_per_s'])} samples/s, "
        f"{bytes_text(result['comm_bytes'])} sent, imbalance {result['imbalance']:.2f}, "
        f"{bytes_text(result['peak_bytes'])} of memory at most"
    )
    if result["fits"] is False:
        console.print("it does not fit into the devices' memory", style="yellow")
    console.print(_device_table(console, result["devices"]))
    if result["transfers"]:
        console.print(_transfer_table(console, result["transfers"]))
    if result["trace"] is not None:
        console.print(f"trace written to {result['trace']}: open it at ui.perfetto.dev")


def _device_table(console: Console, devices: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table(console)
    for title in ("device", "kind"):
        table.add_column(title, no_wrap=True)
    for title in ("computes", "waits for data", "idle", "peak memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in devices:
        times = (row[f"{name}_ms"] for name in ("compute", "exposed", "idle"))
        table.add_row(
            str(row["device"]),
            row["kind"],
            *(seconds_text(ms / 1e3) for ms in times),
            bytes_text(row["peak_bytes"]),
        )
    return table


def _transfer_table(console: Console, transfers: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table(console)
    table.add_column("largest transfers", overflow="fold")
    for title in ("what", "pattern"):
        table.add_column(title, no_wrap=True)
    for title in ("devices", "bytes", "from first to last"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in transfers:
        table.add_row(
            row["value"],
            row["what"],
            row["pattern"].replace("_", "-"),
            str(len(row["devices"])),
            bytes_text(row["bytes"]),
            seconds_text(row["ms"] / 1e3),
        )
    return table


def show_report(result: Mapping[str, Any]) -> None:
    """Print the comparison that a page shows, and where the page is."""
    show_comparison([{**row, "method": row["label"]} for row in result["methods"]])
    for row in result["methods"]:
        if row["measured_ms"] is not None:
            predicted, measured = (seconds_text(row[k] / 1e3) for k in ("step_ms", "measured_ms"))
            print(f"{row['label']}: predicted {predicted}, measured {measured}")
    print(f"{result['file']} shows it: open it in a browser ({bytes_text(result['bytes'])})")


def _wire(link: Mapping[str, Any] | None, flag: str, note: str) -> str:
    """A bandwidth, and whom it serves where that is not the usual."""
    if link is None:
        return ""
    return f"{rate_text(link['bandwidth'])} {note}" if link[flag] else rate_text(link["bandwidth"])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def new_table(console: Console) -> Table:
    return Table(box=SIMPLE if console.is_terminal else None, pad_edge=False)


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


def stdout() -> Console:
    # Names such as "blocks[0]" or ":conv:" are data, not markup or emoji.
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def show_profile(result: Mapping[str, Any]) -> None:
    """Print what `raddle probe --model` measured."""
    print(
        f"{result['measured']} operators of {result['model']} measured; "
        f"'{result['profile']}' holds {result['entries']}: use it with --profile."
    )
