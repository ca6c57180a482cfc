"""Presets, and the texts that select them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raddle.clusters import Cluster, catalogue, cluster, further_gpus, presets
from raddle.clusters.devices import DTYPES
from raddle.clusters.preset import Preset
from raddle.errors import InputError


@pytest.mark.parametrize("row", presets(), ids=lambda row: row["name"])
def test_every_preset_is_what_its_row_says(row: dict) -> None:
    c = cluster(row["name"])
    assert (c.nodes, len(c.devices)) == (row["nodes"], row["nodes"] * row["devices_per_node"])
    device = c.devices[0]
    assert (device.memory, device.bandwidth) == (row["memory"], row["memory_bandwidth"])
    assert device.flops == row["flops"]
    assert row["source"]
    assert c.homogeneous
    assert Cluster.from_dict(c.to_dict()) == c
    assert all(device.peak(dtype) > 0 for dtype in DTYPES)
    assert all(0 < share <= 1 for share in device.efficiency.values())


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("p100:4x4", [4, 4, 4, 4]),
        ("p100", [4, 4, 4, 4]),
        ("P100:2X3", [3, 3]),
        ("h100:16", [8, 8]),
        ("h100:12", [8, 4]),
        ("h100:3", [3]),
        ("skylake-10gbe:4", [1, 1, 1, 1]),
        ("k80", [4] * 16),
        ("local:2", [2]),
        ("local:1", [1]),
        ("local", [2]),
    ],
)
def test_sizes(spec: str, sizes: list[int]) -> None:
    c = cluster(spec)
    assert [len(c.members(node)) for node in range(c.nodes)] == sizes


def test_the_papers_links() -> None:
    optcnn = cluster("p100:4x4")
    assert optcnn.route(0, 4).bandwidth == 12.5e9  # 100 Gb/s
    assert optcnn.route(0, 1).bandwidth > optcnn.route(0, 4).bandwidth
    flexflow = cluster("k80:2x4")
    assert flexflow.route(0, 1).resources == flexflow.route(2, 3).resources  # one shared bus
    assert flexflow.route(0, 4).bandwidth == 7e9  # 56 Gb/s
    thesis = cluster("skylake-10gbe:2"), cluster("skylake-opa:2")
    assert [c.route(0, 1).bandwidth for c in thesis] == [1.25e9, 12.5e9]


def test_local_ranks_share_the_cores() -> None:
    one, two, four = (cluster(f"local:{n}").devices[0] for n in (1, 2, 4))
    assert one.peak("float32") == 2 * two.peak("float32") == 4 * four.peak("float32")
    assert one.memory // 2 == two.memory
    assert len({one.kind, two.kind, four.kind}) == 3  # profiles store measurements by kind


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("p10", "did you mean p100"),
        ("warehouse", "there is p100, k80"),
        ("", "there is p100, k80"),
        ("p100:", "write p100:16 for 16 devices"),
        ("p100:4x", "write p100:16 for 16 devices"),
        ("p100:4x4x4", "write p100:16 for 16 devices"),
        ("p100:-4", "write p100:16 for 16 devices"),
        ("p100:٤", "write p100:16 for 16 devices"),
        ("p100:0", "asks for no devices"),
        ("p100:0x4", "asks for no devices"),
        ("p100:65537", "more than 65536 devices"),
        ("p100:1000x1000", "more than 65536 devices"),
        ("p100:" + "9" * 5000, "more than 65536 devices"),
        ("local:2x2", "write local:2 for 2 processes"),
        ("local:0", "asks for no devices"),
        ("nowhere.yaml", "no cluster in YAML 'nowhere.yaml'"),
        ("no/where", "no cluster in YAML 'no/where'"),
    ],
)
def test_mistakes(spec: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster(spec)
    assert sentence in str(caught.value)


def test_presets_need_neither_torch_nor_yaml() -> None:
    """A node that runs a plan has torch and the standard library alone."""
    script = (
        "import sys; from raddle.clusters import Cluster, cluster; "
        "c = cluster('p100'); Cluster.from_dict(c.to_dict()); "
        "print(sorted({'torch', 'yaml', 'rich', 'typer', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


def test_presets_are_listed_in_the_order_in_which_they_are_written_down() -> None:
    written = [
        value.name
        for module in (catalogue, further_gpus)
        for value in vars(module).values()
        if isinstance(value, Preset)
    ]
    assert [row["name"] for row in presets()] == [*written, "local"]
