"""The files of docs/clusters.md are clusters, and its table of bus bandwidths is what they give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from raddle.clusters import Cluster
from raddle.clusters.summary import summarise
from raddle.costs.collectives import collective_seconds
from raddle.program.collective_kind import Collective

PAGE = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
FILES = {
    data["name"]: data for data in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.S))
}
ROWS = {
    cells[0]: cells[1:]
    for cells in (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if re.match(r"\| [a-z-]+ \| \d", line)
    )
}
KINDS = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)


def test_the_table_has_a_row_for_each_file() -> None:
    assert list(ROWS) == list(FILES)
    assert len(FILES) >= 7


@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_the_bandwidths_of_its_row(name: str) -> None:
    on = Cluster.from_dict(FILES[name])
    count, nbytes = len(on.devices), 2**30
    bandwidths = [
        (2 if kind is Collective.ALL_REDUCE else 1) * (count - 1) / count
        * nbytes / collective_seconds(on, kind, range(count), nbytes) / 1e9
        for kind in KINDS
    ]  # fmt: skip
    assert ROWS[name] == [str(count), *(f"{rate:.1f}" for rate in bandwidths)]


def test_a_summary_shows_the_links_between_groups_and_leaves() -> None:
    for name, links in {
        "nvlink-pairs": {"node0.device0 bridge out", "node0.device0 out"},
        "pcie-tree": {"node0.device0 out", "node0.switch0 out"},
        "leaf-spine": {"node0.device0 out", "node0.device0 nic out", "leaf0.lane0 out"},
    }.items():
        routes = summarise(Cluster.from_dict(FILES[name]))["routes"]
        assert {route["holds"][0] for route in routes} == links
