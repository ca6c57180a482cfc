"""Explains a whole plan in a few sentences: compared with data parallelism and with the lower bound.

The lower bound is a time that no plan on these devices can be faster than.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raddle.reports.explanation.phrases import (
    NEGLIGIBLE,
    has_comparison,
    join_words,
    ms_text,
    percent,
    sent_changes,
    shorten_names,
)
from raddle.reports.units import (
    bytes_text,
)

BOUND_REASONS = {  # the reason for the lower bound, by the value of "binding"
    "work": "all the work, spread evenly over the devices",
    "path": "operators that wait for each other, one after the other",
    "message": "a single message",
    "alone": "all the work on one device",
}


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Return the sentences about a plan; every number in them is taken from `result`.

    result: as `raddle.searches.explanation.explain_plan.explain_plan` returns it. "plan" and "data" have
    the metrics of this plan and of data parallelism; "data" is None if data parallelism cannot be applied,
    and its "same" is true if this plan is data parallelism.
    """
    return [
        _speedup_sentence(result),
        _shares_sentence(result),
        _bound_sentence(result),
        _memory_sentence(result),
        _path_sentence(result),
        *_pipeline_sentences(result),
    ]


def _pipeline_sentences(result: Mapping[str, Any]) -> list[str]:
    """Return a sentence about a pipeline's schedule (its bubble and memory), or nothing for other plans."""
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


def _speedup_sentence(result: Mapping[str, Any]) -> str:
    """Return a sentence that compares the step time with data parallelism, and says why it differs."""
    plan, data, speedup = result["plan"], result["data"], result["speedup"]
    step = f"{ms_text(plan['step_ms'])} a step"
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
    changes = list(sent_changes(data["bytes"], plan["bytes"]))
    return f"{head}: it {join_words(changes)}." if changes else f"{head}."


def _shares_sentence(result: Mapping[str, Any]) -> str:
    """Return a sentence about the shares of a step in which devices compute, wait and are idle."""
    shares = _percents(result["plan"])
    text = (
        f"{shares[0]} of a step is computing, {shares[1]} waiting for data and {shares[2]} idle, "
        "on average over the devices"
    )
    if not has_comparison(result):
        return f"{text}."
    data_shares = _percents(result["data"])
    return (
        f"{text}; with data parallel it is {data_shares[0]}, {data_shares[1]} and {data_shares[2]}."
    )


def _percents(side: Mapping[str, Any]) -> list[str]:
    """Return the shares of computing, waiting and idling; side: this plan, or data parallel."""
    times = list(side["average"].values())  # ms of a step: computing, waiting for data, idle
    return [percent(ms / sum(times)) for ms in times]


def _bound_sentence(result: Mapping[str, Any]) -> str:
    """Return a sentence that compares the step time with the lower bound."""
    bound = result["bound"]
    if bound is None:
        return f"{result['bound_error'].capitalize()}."
    return (
        f"No plan on these devices takes less than {ms_text(bound['ms'])} "
        f"({BOUND_REASONS[bound['binding']]}): "
        f"this one takes {result['plan']['step_ms'] / bound['ms']:.2f} x as long, "
        f"{ms_text(result['gap_ms'])} more."
    )


def _memory_sentence(result: Mapping[str, Any]) -> str:
    """Return a sentence about the device that uses the largest share of its memory."""
    fullest, data = result["plan"]["fullest"], result["data"]
    needs = f"needs {bytes_text(fullest['peak_bytes'])} of {bytes_text(fullest['memory_bytes'])}"
    head = f"The fullest device, {fullest['device']}, {needs}"
    if not result["plan"]["fits"]:
        head = f"It does not fit: device {fullest['device']} {needs}"
    if not has_comparison(result):
        return f"{head}."
    fits = "" if data["fits"] else ", which does not fit"
    return f"{head}; with data parallel {bytes_text(data['fullest']['peak_bytes'])}{fits}."


def _path_sentence(result: Mapping[str, Any]) -> str:
    """Return a sentence about the activities on the critical path, and the longest of them."""
    total, first = result["path_ms"], result["path"][0]
    of = " of" if first["what"].startswith("sending") else ""
    # path_doing: milliseconds of the critical path, by activity ("updating", ...)
    doing = [
        f"{what} {percent(ms / total)}"
        for what, ms in result["path_doing"].items()
        if ms > NEGLIGIBLE * total
    ]
    return (
        f"The critical path is {join_words(doing)}; the longest on it is {first['what']}"
        f"{of} {shorten_names(first['name'])}, {ms_text(first['ms'])} of a step."
    )
