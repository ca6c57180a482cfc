"""The tables of docs/searching.md agree with coverage.py for every sync kind and every field of a plan."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

from raddle.plans.plan import Plan
from raddle.plans.sync import KINDS
from raddle.plans.sync.sync_kind import NUMBER
from raddle.simulation.fast.coverage import DESCRIPTIVE_FIELDS, unsupported

DOCS = Path(__file__).parents[3] / "docs" / "searching.md"


def documented() -> dict[str, str]:
    """By name in the tables of the docs: "timed" or "refused"."""
    verdicts: dict[str, str] = {}
    for line in DOCS.read_text().splitlines():
        *cells, last = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and last in ("timed", "refused"):
            for name in re.findall("`([^`]*)`", " ".join(cells)):
                assert name not in verdicts, f"{name} is said twice"
                verdicts[name] = last
    return verdicts


def sync_texts() -> dict[str, str]:
    """Every sync kind, alone and with each of its options: as the docs write it -> as a plan writes it."""
    words = [
        (kind, word) for kind, sync_kind in KINDS.items() for word in sync_kind.option_patterns
    ]
    return {k: k for k in KINDS} | {
        f"{kind}:{word.replace(NUMBER, 'N')}": f"{kind}:{word.replace(NUMBER, '3')}"
        for kind, word in words
    }


@pytest.mark.parametrize(("shown", "text"), sync_texts().items())
def test_every_sync_kind_is_in_the_table(shown: str, text: str) -> None:
    is_timed = unsupported(Plan({}, 4, sync=text)) is None
    assert documented()[shown] == ("timed" if is_timed else "refused")


def test_every_field_of_a_plan_is_in_a_table() -> None:
    expected = {}
    for field in fields(Plan):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in ("tiles", "devices", "bn", "sync", "bucket", "optimizer", "precision"):
            expected[field.name] = "timed"
        elif field.name not in DESCRIPTIVE_FIELDS:
            other = {int: 2, bool: True, str: "gpipe", tuple: (0,), dict: {"a": 1}}[type(default)]
            assert unsupported(replace(Plan({}, 4), **{field.name: other}))
            expected[field.name] = "refused"
    assert expected == {
        name: verdict for name, verdict in documented().items() if name not in sync_texts()
    }
