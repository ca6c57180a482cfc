"""A whole plan in a few sentences, against data parallelism and against the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raddle.reports.explaining.words import (
    SMALL,
    compared,
    cut,
    listed,
    ms_text,
    percent,
    sent_changes,
)
from raddle.reports.units import (
    bytes_text,
)

BINDING = {
    "work": "all the work, spread evenly over the devices",
    "path": "operators that wait for each other, one after the other",
    "message": "a single message",
    "alone": "all the work on one device",
}


def sentences(result: Mapping[str, Any]) -> list[str]:
    """A plan in a few words; every number is one of the data's."""
    return [
        _against_data(result),
        _shares(result),
        _against_bound(result),
        _memory(result),
        _on_the_path(result),
        *_pipelined(result),
    ]


def _pipelined(result: Mapping[str, Any]) -> list[str]:
    """Of a pipeline: what its schedule alone makes idle, and what it keeps."""
    schedule = result.get("schedule")
    if not schedule or "alive" not in schedule:
        return []
    alive = ", ".join(map(str, schedule["alive"]))
    sentence = (
        f"With equal stages and backwards twice as long as forwards, {schedule['name']} would leave "
        f"{100 * schedule['bubble']:.0f} % idle; micro-batches alive at most, by worker: {alive}"
    )
    if "versions" in schedule:
        sentence += f"; versions of weights: {', '.join(map(str, schedule['versions']))}"
    return [f"{sentence}."]


def _against_data(result: Mapping[str, Any]) -> str:
    own, data, speedup = result["plan"], result["data"], result["speedup"]
    step = f"{ms_text(own['step_ms'])} a step"
    if data is None:
        return f"{step}. Data parallel cannot be applied: {result['data_error']}"
    if data["same"]:
        return f"{step}: this is data parallel."
    than = f"data parallel ({step} against {ms_text(data['step_ms'])})"
    if speedup > 1.005:
        head = f"{speedup:.2f} x faster than {than}"
    elif speedup < 0.995:
        head = f"{speedup:.2f} x as fast as {than}"
    else:
        head = f"As fast as {than}"
    changes = list(sent_changes(data["bytes"], own["bytes"]))
    return f"{head}: it {listed(changes)}." if changes else f"{head}."


def _shares(result: Mapping[str, Any]) -> str:
    own = _percents(result["plan"])
    text = (
        f"{own[0]} of a step is computing, {own[1]} waiting for data and {own[2]} idle, on average "
        "over the devices"
    )
    if not compared(result):
        return f"{text}."
    there = _percents(result["data"])
    return f"{text}; with data parallel it is {there[0]}, {there[1]} and {there[2]}."


def _percents(side: Mapping[str, Any]) -> list[str]:
    times = list(side["average"].values())
    return [percent(ms / sum(times)) for ms in times]


def _against_bound(result: Mapping[str, Any]) -> str:
    bound = result["bound"]
    if bound is None:
        return f"{result['bound_error'].capitalize()}."
    return (
        f"No plan on these devices takes less than {ms_text(bound['ms'])} ({BINDING[bound['binding']]}): "
        f"this one takes {result['plan']['step_ms'] / bound['ms']:.2f} x as long, "
        f"{ms_text(result['gap_ms'])} more."
    )


def _memory(result: Mapping[str, Any]) -> str:
    own, data = result["plan"]["fullest"], result["data"]
    needs = f"needs {bytes_text(own['peak_bytes'])} of {bytes_text(own['memory_bytes'])}"
    head = f"The fullest device, {own['device']}, {needs}"
    if not result["plan"]["fits"]:
        head = f"It does not fit: device {own['device']} {needs}"
    if not compared(result):
        return f"{head}."
    fits = "" if data["fits"] else ", which does not fit"
    return f"{head}; with data parallel {bytes_text(data['fullest']['peak_bytes'])}{fits}."


def _on_the_path(result: Mapping[str, Any]) -> str:
    total, first = result["path_ms"], result["path"][0]
    of = " of" if first["what"].startswith("sending") else ""
    doing = [
        f"{what} {percent(ms / total)}"
        for what, ms in result["path_doing"].items()
        if ms > SMALL * total
    ]
    return (
        f"The critical path is {listed(doing)}; the longest on it is {first['what']}"
        f"{of} {cut(first['name'])}, {ms_text(first['ms'])} of a step."
    )
