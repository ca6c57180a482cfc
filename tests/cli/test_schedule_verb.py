"""`raddle schedule`: the list, a picture, and a schedule in a file."""

from __future__ import annotations

import json
import pathlib

from command_line import raddle, refused

from raddle.api.schedules import NAMES


def test_the_list_has_all_schedules() -> None:
    rows = json.loads(raddle("schedule", "--json").stdout)
    assert [row["name"] for row in rows] == list(NAMES)
    lines = raddle("schedule").stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(NAMES)


def test_a_picture() -> None:
    words = ("schedule", "gpipe", "--stages", 2, "--microbatches", 3)
    assert raddle(*words).stdout.splitlines()[:2] == [
        "  0  F0 F1 F2 .. .. B2 B1 B0",
        "  1  .. F0 F1 F2 B2 B1 B0 ..",
    ]
    shown = json.loads(raddle(*words, "--json").stdout)
    assert (shown["stages"], shown["workers"], shown["alive"]) == (2, 2, [3, 3])


def test_interleaved_has_fewer_workers_than_stages() -> None:
    shown = json.loads(raddle("schedule", "interleaved", "--stages", 4, "--json").stdout)
    assert (shown["stages"], shown["workers"]) == (4, 2)


def test_a_schedule_of_a_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("F0.0 F1.0 B0.0 B1.0\nF0.1 B0.1 F1.1 B1.1\nF1.0 after B0.1\n")
    done = raddle("schedule", file)
    assert done.returncode == 0
    assert done.stdout.splitlines()[:3] == [
        "  0  F0 .. .. F1 B0 .. B1",
        "  1  .. F0 B0 .. F1 B1 ..",
        "F1.0 after B0.1",
    ]
    file.write_text("F0 G0\n")
    refused(raddle("schedule", file), "G0")
    refused(raddle("schedule", "gpip"), "there is no schedule 'gpip': choose sequential, gpipe")
