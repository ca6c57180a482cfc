"""Writes the tables of README.md from the results."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

README = Path(__file__).parent / "README.md"
Rows = list[dict[str, Any]]
NOT_RUN = ("not built", "not trained", "ended")


def write(results: dict[str, dict[str, Any]]) -> None:
    """Replaces the two tables between the marks of the README."""
    text = README.read_text()
    rows = list(results.values())
    for mark, table in (("libraries", libraries(rows)), ("rest", others(results))):
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)"
        text = re.sub(pattern, lambda m, table=table: m[1] + table + m[2], text, flags=re.DOTALL)
    README.write_text(text)


def libraries(rows: Rows) -> str:
    """The table by library."""
    lines = [
        "| library | architectures | train here | torch.export | captured and equal | of those exported "
        "| without opaque operators | capture ÷ export, median |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for library in dict.fromkeys(row["library"] for row in rows):
        lines.append(_library(library, [row for row in rows if row["library"] == library]))
    return "\n".join(lines) + "\n"


def _library(library: str, rows: Rows) -> str:
    trained = [r for r in rows if r["outcome"] not in NOT_RUN]
    exported = [r for r in trained if r.get("export") == "ok"]
    captured = [r for r in trained if r["outcome"] == "captured"]
    both = [r for r in exported if r["outcome"] == "captured"]
    whole = sum(not r["opaque"] for r in captured)
    ratios = [r["capture_s"] / r["export_s"] for r in both if r.get("export_s")]
    ratio = f"{median(ratios):.2f}" if ratios else "–"
    return (
        f"| {library} | {len(rows)} | {len(trained)} | {len(exported)} | {len(captured)} "
        f"| {len(both)} of {len(exported)} | {whole} | {ratio} |"
    )


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
