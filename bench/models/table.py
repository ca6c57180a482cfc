"""Writes the tables of README.md from the results."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

README = Path(__file__).parent / "README.md"
Rows = list[dict[str, Any]]
DOCS = Path(__file__).parents[2] / "docs" / "models.md"
VERIFIED = Path(__file__).parent / "verified.json"
NOT_RUN = ("not built", "not trained", "ended")
CAPTURED = ("captured", "not compared")  # the second: the comparison itself did not run


def write(results: dict[str, dict[str, Any]]) -> None:
    """Replaces the tables between the marks of the README and of the docs."""
    measured = {key: row for key, row in results.items() if "outcome" in row}
    plans = json.loads(VERIFIED.read_text()) if VERIFIED.exists() else {}
    tables = {
        "libraries": libraries(list(results.values())), "rest": others(measured),
        "verified": verified(plans, results),
    }  # fmt: skip
    for page in (README, DOCS):
        _replace(page, tables)


def _replace(page: Path, tables: dict[str, str]) -> None:
    text = page.read_text()
    for mark, table in tables.items():
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)"
        text = re.sub(pattern, lambda m, table=table: m[1] + table + m[2], text, flags=re.DOTALL)
    page.write_text(text)


def libraries(rows: Rows) -> str:
    """The table by library."""
    lines = [
        "| library | architectures | train here | torch.export | captured before | captured now "
        "| of those exported | compared: equal | captured with opaque operators |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for library in dict.fromkeys(row["library"] for row in rows):
        lines.append(_library(library, [row for row in rows if row["library"] == library]))
    return "\n".join(lines) + "\n"


def _library(library: str, rows: Rows) -> str:
    """A row of the table. Rows without an outcome have only that of torch.export so far."""
    trained = [r for r in rows if "export" in r]
    before = sum(r.get("before") == "captured" for r in trained)
    measured = [r for r in trained if r.get("outcome", "ended") not in NOT_RUN]
    exported = [r for r in measured if r["export"] == "ok"]
    captured = [r for r in measured if r["outcome"] in CAPTURED]
    compared = [r for r in measured if "errors" in r]
    numbers = [
        len(rows), len(trained), sum(r["export"] == "ok" for r in trained), before,
        f"{len(captured)} of {len(measured)}",
        f"{sum(r in captured for r in exported)} of {len(exported)}",
        f"{sum(r['outcome'] == 'captured' for r in compared)} of {len(compared)}",
        sum(bool(r.get("opaque")) for r in captured),
    ]  # fmt: skip
    return f"| {library} | " + " | ".join(map(str, numbers)) + " |"


def verified(plans: dict[str, dict[str, Any]], results: dict[str, dict[str, Any]]) -> str:
    """The table of the models that were verified, with the plans that were not equal."""
    lines = ["| library | models | equal under all plans | plans |", "|---|---|---|---|"]
    for library in dict.fromkeys(results[key]["library"] for key in plans):
        rows = [row for key, row in plans.items() if results[key]["library"] == library]
        tried = [plan for row in rows for plan in row["plans"].values()]
        equal = sum(row["outcome"] == "equal" for row in rows)
        held = f"{sum(plan['holds'] for plan in tried)} of {len(tried)}"
        lines.append(f"| {library} | {len(rows)} | {equal} | {held} |")
    others = [f"- {key}: {row['outcome']}, {_short(row['reason'])}" for key, row in plans.items()
              if row["outcome"] != "equal"]  # fmt: skip
    return "\n".join([*lines, "", *others]).rstrip() + "\n"


def others(results: dict[str, dict[str, Any]]) -> str:
    """The models that train here and are not captured and equal, each with the reason; then the others."""
    lines = ["| model | outcome | torch.export | reason |", "|---|---|---|---|"]
    for key, row in results.items():
        if row["outcome"] not in ("captured", *NOT_RUN):
            exported = "yes" if row.get("export") == "ok" else "no"
            lines.append(f"| {key} | {row['outcome']} | {exported} | {_short(row['reason'])} |")
    opaque = Counter(
        kind for row in results.values() for kind in {op["kind"] for op in row.get("opaque", [])}
    )
    lines += ["", "Opaque operators, with the number of models that have them: "]
    lines.append(", ".join(f"`{kind}` {count}" for kind, count in opaque.most_common()) + ".")
    lines += ["", "Not run here, by the first words of the reason:", ""]
    reasons = Counter(
        (row["outcome"], row["reason"].split("[")[0][:90])
        for row in results.values()
        if row["outcome"] in NOT_RUN
    )
    lines += [
        f"- {count} {outcome}: {_short(why)}" for (outcome, why), count in reasons.most_common()
    ]
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    """The reason without the folders of this machine, on one line."""
    text = re.sub(r"/\S*?/site-packages/", "", reason.replace("\n", " ")).replace("|", "/")
    return text if len(text) <= 220 else text[:217] + "..."
