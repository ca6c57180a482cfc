"""What `raddle explain` says: sentences first, and the tables that they are drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from raddle.reports.terminal import _plural, bytes_text, new_table, seconds_text, stdout

BINDING = {
    "work": "all the work, spread evenly over the devices",
    "path": "operators that wait for each other, one after the other",
    "message": "a single message",
    "alone": "all the work on one device",
}
STOPPED = {
    "budget": "its time was over",
    "proposals": "it had made as many proposals as it may",
    "no improvement": "nothing had become faster for long",
    "interrupt": "it was interrupted",
    "optimum": "it is the optimum of its tables",
    "starts": "there are too many devices to improve it",
}
AVERAGES = {"compute_ms": "computing", "exposed_ms": "waiting for data", "idle_ms": "idle"}
FOLLOWS = {
    "anchor": "the layer that is split",
    "own": "its own letters",
    "after": "what it reads: {}",
    "before": "who reads it: {}",
}
MOST_ROWS = 12  # of a table, beyond which the rest is counted
FEW = 0.1  # of a difference: what makes up less of it is not named
SMALL = 0.01  # a change of less than this share is not worth a word


# -- a whole plan ----------------------------------------------------------------------------------


def show_plan(result: Mapping[str, Any]) -> None:
    """Print what `raddle.searches.explanation.whole.explain_plan` says."""
    console = stdout()
    console.print(_heading(result), style="bold")
    for sentence in sentences(result):
        console.print(sentence)
    console.print()
    console.print(_sides_table(console, result))
    console.print()
    console.print(_path_table(console, result["path"]))
    if result["search"] is not None:
        console.print()
        _show_search(console, result["search"])


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


def _compared(result: Mapping[str, Any]) -> bool:
    """Whether there is a data-parallel plan to look at beside this one."""
    return result["data"] is not None and not result["data"]["same"]


def _heading(result: Mapping[str, Any]) -> str:
    extra = [
        *([f"{result['microbatches']} micro-batches"] if result["microbatches"] > 1 else []),
        *([result["schedule"]["name"]] if result.get("schedule") else []),
        *([f"{_plural(result['recompute'], 'recomputed block')}"] if result["recompute"] else []),
        *(["split backward"] if result["split_backward"] else []),
    ]
    return ", ".join(
        [
            f"{result['model']}",
            f"batch {result['batch']}",
            *extra,
            f"{result['method'] or 'a plan'} on {result['cluster']}",
        ]
    )


def _against_data(result: Mapping[str, Any]) -> str:
    own, data, speedup = result["plan"], result["data"], result["speedup"]
    step = f"{_ms(own['step_ms'])} a step"
    if data is None:
        return f"{step}. Data parallel cannot be applied: {result['data_error']}"
    if data["same"]:
        return f"{step}: this is data parallel."
    than = f"data parallel ({step} against {_ms(data['step_ms'])})"
    if speedup > 1.005:
        head = f"{speedup:.2f} x faster than {than}"
    elif speedup < 0.995:
        head = f"{speedup:.2f} x as fast as {than}"
    else:
        head = f"As fast as {than}"
    changes = list(_sent_changes(data["bytes"], own["bytes"]))
    return f"{head}: it {_listed(changes)}." if changes else f"{head}."


def _sent_changes(old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[str]:
    """What is sent more or less, the largest change first; little of all that is sent goes unsaid."""
    least = SMALL * max(sum(old.values()), sum(new.values()))
    changes = {purpose: new[purpose] - old[purpose] for purpose in new}
    if changes["activations"] * changes["gradients"] > 0:
        both = changes.pop("activations") + changes.pop("gradients")
        changes["activations and their gradients"] = both
    for purpose in sorted(changes, key=lambda p: -abs(changes[p])):
        change = changes[purpose]
        if abs(change) > least:
            verb = "synchronises" if purpose == "parameters" else "sends"
            of = "" if purpose == "parameters" else f" of {purpose}"
            yield f"{verb} {bytes_text(abs(change))}{of} {_more(change)}"


def _shares(result: Mapping[str, Any]) -> str:
    own = _percents(result["plan"])
    text = (
        f"{own[0]} of a step is computing, {own[1]} waiting for data and {own[2]} idle, on average "
        "over the devices"
    )
    if not _compared(result):
        return f"{text}."
    there = _percents(result["data"])
    return f"{text}; with data parallel it is {there[0]}, {there[1]} and {there[2]}."


def _percents(side: Mapping[str, Any]) -> list[str]:
    times = list(side["average"].values())
    return [_percent(ms / sum(times)) for ms in times]


def _against_bound(result: Mapping[str, Any]) -> str:
    bound = result["bound"]
    if bound is None:
        return f"{result['bound_error'].capitalize()}."
    return (
        f"No plan on these devices takes less than {_ms(bound['ms'])} ({BINDING[bound['binding']]}): "
        f"this one takes {result['plan']['step_ms'] / bound['ms']:.2f} x as long, "
        f"{_ms(result['gap_ms'])} more."
    )


def _memory(result: Mapping[str, Any]) -> str:
    own, data = result["plan"]["fullest"], result["data"]
    needs = f"needs {bytes_text(own['peak_bytes'])} of {bytes_text(own['memory_bytes'])}"
    head = f"The fullest device, {own['device']}, {needs}"
    if not result["plan"]["fits"]:
        head = f"It does not fit: device {own['device']} {needs}"
    if not _compared(result):
        return f"{head}."
    fits = "" if data["fits"] else ", which does not fit"
    return f"{head}; with data parallel {bytes_text(data['fullest']['peak_bytes'])}{fits}."


def _on_the_path(result: Mapping[str, Any]) -> str:
    total, first = result["path_ms"], result["path"][0]
    of = " of" if first["what"].startswith("sending") else ""
    doing = [
        f"{what} {_percent(ms / total)}"
        for what, ms in result["path_doing"].items()
        if ms > SMALL * total
    ]
    return (
        f"The critical path is {_listed(doing)}; the longest on it is {first['what']}"
        f"{of} {_cut(first['name'])}, {_ms(first['ms'])} of a step."
    )


def _sides_table(console: Console, result: Mapping[str, Any]) -> Table:
    """A row a figure, this plan beside data parallel."""
    sides = [result["plan"]]
    if _compared(result):
        sides.append(result["data"])
    table = new_table(console)
    table.add_column("", no_wrap=True)
    for title in ("this plan", "data parallel")[: len(sides)]:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row("step", *(_ms(side["step_ms"]) for side in sides))
    for key, title in AVERAGES.items():
        table.add_row(f"{title}, average", *(_ms(side["average"][key]) for side in sides))
    for purpose in result["plan"]["bytes"]:
        amounts = [side["bytes"][purpose] for side in sides]
        title = "synchronising parameters" if purpose == "parameters" else f"sent, {purpose}"
        if any(amounts):
            table.add_row(title, *map(bytes_text, amounts))
    table.add_row("sent in all", *(bytes_text(side["comm_bytes"]) for side in sides))
    table.add_row("peak memory", *(bytes_text(side["peak_bytes"]) for side in sides))
    return table


def _path_table(console: Console, path: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table(console)
    table.add_column("longest on the critical path", overflow="fold")
    table.add_column("what", no_wrap=True)
    for title in ("in a step", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in path:
        table.add_row(_cut(row["name"]), row["what"], _ms(row["ms"]), _percent(row["share"]))
    return table


def _show_search(console: Console, search: Mapping[str, Any]) -> None:
    made = "" if search["proposals"] is None else f", {_plural(search['proposals'], 'proposal')}"
    stopped = STOPPED.get(search["stopped"], search["stopped"])
    console.print(f"Found by a search, as '{search['start']}'{made}; it ended because {stopped}.")
    if not search["tried"]:
        return
    if search["searched_as"]:
        console.print(f"The times of the search are with {search['searched_as']}.")
    table = new_table(console)
    table.add_column("tried", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in search["tried"][:MOST_ROWS]:
        table.add_row(row["name"], _ms(row["step_ms"]), _verdict(row, search["memory_bytes"]))
    console.print(table)
    _count_rest(console, len(search["tried"]))


def _verdict(row: Mapping[str, Any], memory: Sequence[int]) -> str:
    """Why something that was tried was not taken."""
    if row["taken"]:
        return "taken"
    if row["fits"] is False:
        least, most = map(bytes_text, memory)
        room = least if least == most else f"{least} to {most}"
        needs = (
            ""
            if row["peak_bytes"] is None
            else f": needs {bytes_text(row['peak_bytes'])} of {room}"
        )
        return f"does not fit{needs}"
    if row["difference"] is None:
        return ""
    faster = "faster" if row["difference"] < 0 else "slower"
    share = _percent(abs(row["difference"]))
    text = "as fast" if share == "0 %" else f"{share} {faster}"
    return text if row["simulated"] else f"{text}, one step on its own"


# -- one operator ----------------------------------------------------------------------------------


def show_op(result: Mapping[str, Any]) -> None:
    """Print what `raddle.searches.explanation.operator.explain_op` says."""
    console = stdout()
    console.print(_heading(result), style="bold")
    console.print(f"{result['op']} ({result['kind']}): {result['tiles']}")
    if result["others"]:
        count = len(result["others"])
        names = ", ".join(result["others"][:3]) + (f" and {count - 3} more" if count > 3 else "")
        console.print(f"The first of {count + 1} groups that are meant; the others are {names}.")
    if result["group"] is None:
        console.print(f"read by {_listed(result['read_by']) or 'nobody'}")
    else:
        _show_group(console, result["group"])
    if result["alternatives"] is not None:
        console.print()
        _show_alternatives(console, result)
    for note in result["notes"]:
        console.print(f"note: {note}", style="yellow")


def _show_group(console: Console, group: Mapping[str, Any]) -> None:
    members = group["members"]
    if len(members) > 1:
        console.print(
            f"It is split together with {_plural(len(members) - 1, 'other')}; {group['anchor']} "
            f"decides: {group['tiles']}"
        )
    console.print(f"{group['anchor']} is {group['notation']}")
    console.print()
    console.print(_letter_table(console, group))
    if len(members) == 1:
        return
    console.print()
    table = new_table(console)
    for title in ("member", "kind", "follows", "tiles"):
        table.add_column(title, overflow="fold")
    for row in members[:MOST_ROWS]:
        follows = FOLLOWS[row["how"]].format(row["ref"])
        unlike = "" if row["follows"] or group["configuration"] is None else ", but not here"
        table.add_row(row["name"], row["kind"], follows + unlike, row["tiles"])
    console.print(table)
    _count_rest(console, len(members))


def _letter_table(console: Console, group: Mapping[str, Any]) -> Table:
    table = new_table(console)
    table.add_column("letter", no_wrap=True)
    for title in ("size", "parts"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("can be split", overflow="fold")
    for row in group["letters"]:
        can = f"by {row['kind']}" if row["why_not"] is None else f"no: {row['why_not']}"
        of = "" if row["of"] == group["anchor"] else f", of {row['of']}"
        parts = "" if row["parts"] is None else str(row["parts"])
        table.add_row(row["letter"], str(row["size"]), parts, can + of)
    return table


def _show_alternatives(console: Console, result: Mapping[str, Any]) -> None:
    base, rows = result["base"], result["alternatives"]
    alone = "one step on its own"
    step = f"A step takes {_ms(result['step_ms'])}, and {_ms(base['step_ms'])} on its own"
    if result["overlapping"]:
        alone, step = "a step", f"A step takes {_ms(base['step_ms'])}, as steps overlap"
    console.print(f"{step}, which is what is compared here. {standing(result)}")
    if rows:
        console.print(_alternative_table(console, rows, alone, simulated=bool(result["simulated"])))
    for row in rows:
        changes = ", ".join(what_changes(base, row)) or "nothing that stands out"
        console.print(f"{_signed(row['difference_ms'])} with {row['tiles']}: {changes}")
    if any(row["partial"] for row in rows):
        console.print("Some split a sum, which optcnn does with --reduction alone.")
    for sentence in _exclusions(result["excluded"]):
        console.print(sentence)


def _alternative_table(
    console: Console, rows: Sequence[Mapping[str, Any]], alone: str, *, simulated: bool
) -> Table:
    table = new_table(console)
    table.add_column("next best", overflow="fold")
    for title in (alone, "difference", "", "memory" if simulated else "memory, about"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["tiles"],
            _ms(row["step_ms"]),
            _signed(row["difference_ms"]),
            f"{100 * row['difference']:+.1f} %",
            bytes_text(row["memory_bytes"]),
        )
    return table


def standing(result: Mapping[str, Any]) -> str:
    """How the present split does among its alternatives."""
    if not result["timed"]:
        return "There is no other way to split it here."
    others = _plural(result["timed"], "other way")
    first = result["alternatives"][0]
    how = "simulated" if result["simulated"] else "timed"
    so = f"With everything else as it is, {others} to split this group were {how}"
    if result["faster"]:
        best = f"{_ms(-first['difference_ms'])} ({_percent(-first['difference'])})"
        return f"{so}: {result['faster']} would be faster, the best by {best}."
    if not first["difference_ms"]:
        return f"{so}: none is faster, the next best is as fast."
    return f"{so}: none is faster, the next best takes {_ms(first['difference_ms'])} more."


def what_changes(base: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Why an alternative takes longer or shorter, in words: time first, and then bytes."""
    times = {
        "computing on the busiest device": row["compute_ms"] - base["compute_ms"],
        "messages on the busiest link": row["link_ms"] - base["link_ms"],
    }
    if "average" in row:  # it was simulated
        for what, key in {"waiting for data": "exposed_ms", "idle": "idle_ms"}.items():
            times[what] = row["average"][key] - base["average"][key]
    least = max(FEW * abs(row["difference_ms"]), 1e-6)
    found = [
        f"{_ms(abs(change))} {_more(change)} {what}"
        for what, change in sorted(times.items(), key=lambda item: -abs(item[1]))
        if abs(change) > least
    ]
    if "bytes" in row:
        found += list(_sent_changes(base["bytes"], row["bytes"]))[:2]
    return found


def _exclusions(excluded: Mapping[str, Any]) -> Iterator[str]:
    for row in excluded["refused"]:
        yield f"{row['count']} cannot be, as {row['example']}: {row['reason']}"
    memory = excluded["memory"]
    if memory is not None:
        saved = memory["difference_ms"]
        how = f"{_ms(abs(saved))} {'slower' if saved > 0 else 'faster'}"
        yield (
            f"{memory['count']} would not fit: they need about {bytes_text(memory['least_bytes'])} or "
            f"more of {bytes_text(memory['memory_bytes'])}; the fastest, {memory['fastest']}, would be "
            f"{how}."
        )
    if excluded["untimed"]:
        yield f"{excluded['untimed']} more were not timed."


# -- words -----------------------------------------------------------------------------------------


def _ms(ms: float) -> str:
    return seconds_text(ms / 1e3)


def _signed(ms: float) -> str:
    return f"{'-' if ms < 0 else '+'}{_ms(abs(ms))}"


def _percent(share: float) -> str:
    """0.034 -> "3 %"; what is little but not nothing has a digit more."""
    percent = 100 * share
    return f"{percent:.1f} %" if 0.05 <= percent < 0.95 else f"{percent:.0f} %"


def _more(change: float) -> str:
    return "more" if change > 0 else "less"


def _listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _cut(names: str) -> str:
    """Of a bucket of parameters, the first few."""
    parts = names.split(", ")
    return names if len(parts) <= 3 else f"{', '.join(parts[:2])} and {len(parts) - 2} more"


def _count_rest(console: Console, count: int) -> None:
    if count > MOST_ROWS:
        console.print(f"and {count - MOST_ROWS} more")
