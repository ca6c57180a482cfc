"""Cluster files: the documented examples, the round trip, and an error for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raddle.clusters import Cluster, Link, Network, cluster, description
from raddle.clusters.file import save_cluster
from raddle.errors import InputError

GOOD = """\
name: mine
devices: {gpu: {flops: {float32: 15e12}, memory: 16 GiB, bandwidth: 900e9}}
nodes:
  - {count: 2, devices: [gpu, gpu], link: {bandwidth: 25e9, latency: 5e-6, duplex: true, shared: false}}
network: {bandwidth: 12.5e9, latency: 5e-6}
"""


def write_file(folder: Path, text: str | bytes) -> str:
    file = folder / "mine.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(file)


def test_the_form_in_full(tmp_path: Path) -> None:
    c = cluster(write_file(tmp_path, GOOD))
    assert (c.name, c.nodes, len(c.devices)) == ("mine", 2, 4)
    assert (c.devices[0].memory, c.devices[0].peak("float32")) == (16 * 2**30, 15e12)
    assert c.node_links == (Link(25e9, 5e-6),) * 2
    assert c.node_networks == (Network(12.5e9, 5e-6),) * 2


def documented() -> list[str]:
    """The indented blocks of the module's docstring."""
    blocks = re.split(r"\n(?=\S)", description.__doc__ or "")
    return [
        re.sub(r"(?m)^    ", "", block.partition("\n")[2]) for block in blocks if "nodes:" in block
    ]


def test_the_documented_examples(tmp_path: Path) -> None:
    least, full = (cluster(write_file(tmp_path, text)) for text in documented())
    assert (least.name, len(least.devices), least.nodes) == ("mine", 4, 2)
    assert [device.kind for device in full.devices] == ["gpu", "gpu", "cpu"] * 2 + ["cpu"]
    assert full.route(0, 6).bandwidth == 1.25e9  # the network of the last node
    assert full.route(0, 3).bandwidth == 12.5e9
    # The long example writes the defaults.
    assert full.devices[0].efficiency == least.devices[0].efficiency
    assert full.devices[0].overhead == least.devices[0].overhead


@pytest.mark.parametrize("spec", ["p100:4x4", "h100:12", "k80:2", "skylake-opa", "local:3"])
def test_round_trip(spec: str, tmp_path: Path) -> None:
    c = cluster(spec)
    file = tmp_path / "again.yaml"
    save_cluster(c.to_dict(), file, comments=["what it is: a test", ""])
    assert file.read_text().startswith("# what it is: a test\n#\n")
    assert cluster(file) == c


def test_host_overhead(tmp_path: Path) -> None:
    text = GOOD.replace("900e9}", "900e9, host_overhead: {sum: 1 ms, byte: 0.2 ns}}")
    c = cluster(write_file(tmp_path, text))
    expected = {"message": 0, "slice": 0, "byte": 2e-10, "sum": 1e-3, "collective": 0}
    assert c.devices[0].host_overhead == expected
    assert Cluster.from_dict(c.to_dict()) == c
    assert Cluster.from_dict(c.to_dict()).devices[0].host_overhead == c.devices[0].host_overhead
    assert "host_overhead" not in cluster("p100:4x4").to_dict()["devices"]["p100"]


def test_anchors_and_merge_keys(tmp_path: Path) -> None:
    text = GOOD.replace("link: {", "link: &wire {").replace(
        "network: {bandwidth: 12.5e9, latency: 5e-6}", "network: {bandwidth: 1e9, latency: 0}"
    )
    text += "  \n"
    text = text.replace(
        "network:", "  - {devices: [gpu, gpu], link: {<<: *wire, latency: 1 ms}}\nnetwork:"
    )
    c = cluster(write_file(tmp_path, text))
    assert c.node_links[2] == Link(25e9, 1e-3)


# (text in GOOD, its replacement, what the error has to contain besides the file's name)
MISTAKES = [
    ("25e9", "0", "nodes[0].link.bandwidth is 0: write a positive number of bytes/s, as 25 GB/s"),
    ("25e9", "-3 GB/s", "nodes[0].link.bandwidth is '-3 GB/s': write a positive number"),
    ("25e9", ".inf", "nodes[0].link.bandwidth is inf"),
    ("25e9", "fast", "nodes[0].link.bandwidth is 'fast': write a number of bytes/s"),
    ("25e9", "25 gigs", "the unit 'gigs' is none of B/s"),
    ("25e9", "true", "nodes[0].link.bandwidth is True: write a number"),
    ("25e9", "[1, 2]", "nodes[0].link.bandwidth is [1, 2]: write a number"),
    ("12.5e9", "0", "network.bandwidth is 0"),
    ("900e9", "-1", "devices.gpu.bandwidth is -1"),
    ("16 GiB", "16 Gbit", "devices.gpu.memory is '16 Gbit': the unit 'Gbit'"),
    ("15e12", "0", "devices.gpu.flops.float32 is 0"),
    ("5e-6}\n", "-1}\n", "network.latency is -1: write a number from 0 on of seconds, as 5 us"),
    (
        "[gpu, gpu]",
        "[gpu, gpo]",
        "nodes[0].devices[1] is 'gpo', no kind of device: did you mean gpu?",
    ),
    ("[gpu, gpu]", "[tpu-v4]", "no kind of device: there is gpu."),
    ("[gpu, gpu]", "[]", "nodes[0].devices is []: list the kinds, as [gpu]"),
    ("[gpu, gpu]", "gpu", "nodes[0].devices is 'gpu': list the kinds"),
    ("[gpu, gpu]", "[[gpu]]", "nodes[0].devices[0] is ['gpu'], no kind"),
    ("duplex: true", "duplicate: true", "has an unknown key 'duplicate': did you mean duplex?"),
    ("duplex: true", "duplex: maybe", "nodes[0].link.duplex is 'maybe': write true or false"),
    ("shared: false", "per_device: true", "nodes[0].link has an unknown key 'per_device'"),
    ("bandwidth: 25e9, ", "", "nodes[0].link has no bandwidth: add it"),
    ("memory: 16 GiB, ", "", "devices.gpu has no memory: add it"),
    (
        "flops: {float32: 15e12}",
        "flops: 15e12",
        "devices.gpu.flops is '15e12': write keys and values",
    ),
    ("float32", "fp32", "devices.gpu.flops has an unknown key 'fp32'"),
    ("float32", "float16", "devices.gpu.flops has no float32: add it"),
    ("memory:", "efficiency: {conv: 4.5}, memory:", "efficiency.conv is 4.5: write a share"),
    ("memory:", "efficiency: {memory: 1.5}, memory:", "efficiency.memory is 1.5: write a share"),
    (
        "memory:",
        "host_overhead: {collective: 2}, memory:",
        "host_overhead.collective is 2: write a",
    ),
    ("memory:", "efficiency: {convolution: 1}, memory:", "did you mean conv?"),
    ("memory:", "overhead: soon, memory:", "devices.gpu.overhead is 'soon'"),
    ("name: mine", "nmae: mine", "has an unknown key 'nmae': did you mean name?"),
    ("name: mine", "name: []", "name is []: write a text"),
    ("name: mine", "1: mine", "has an unknown key 1: there is devices, nodes, name, network"),
    ("network: {bandwidth: 12.5e9, latency: 5e-6}", "", "has 2 nodes and no network: add network"),
    ("network: {bandwidth: 12.5e9, latency: 5e-6}", "network: [1]", "network is [1]: write keys"),
    ("count: 2", "count: 0", "nodes[0].count is 0: write a whole number from 1 on"),
    ("count: 2", "count: 1.5", "nodes[0].count is 1.5"),
    (
        "count: 2",
        "count: 1000000000",
        "brings the cluster to 2000000000 devices: describe at most 65536",
    ),
    ("{gpu: {", "{gpu: 3, gpo: {", "devices.gpu is 3: write keys and values"),
    (
        "link: {bandwidth: 25e9, latency: 5e-6, duplex: true, shared: false}",
        "",
        "2 devices and no link",
    ),
    (GOOD, "", "holds nothing"),
    (GOOD, "# only a comment\n", "holds nothing"),
    (GOOD, "just words", "is 'just words': write keys and values"),
    (GOOD, "[]", "is []: write keys and values"),
    (GOOD, "name: x\nnodes: [1]\n", "has no devices: add it"),
    (GOOD, "name: x\ndevices: {}\nnodes: []\n", "devices is {}: name each kind"),
    (GOOD, "a: b: c\n", "line 1, is no YAML (mapping values are not allowed here): mend it"),
    ("nodes:\n", "nodes: {\n", ", line 4, is no YAML"),
    (
        "name: mine",
        "name: mine\nname: yours",
        ", line 2, is no YAML (the key 'name' is there twice)",
    ),
    ("name: mine", "name: !!python/object:os.system x", "is no YAML"),
    ("name: mine", "name: \x07", "is no YAML"),
    ("name: mine", "? [a]\n: b", "is no YAML (found unhashable key)"),
    (GOOD, "a: 1\n---\nb: 2\n", "is no YAML"),
    (GOOD, "&a [*a]", "line 1, is no YAML (*a is within itself)"),
    (GOOD, "a: " + "[" * 5000, "is no YAML"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), MISTAKES)
def test_mistakes(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    assert old in GOOD
    file = write_file(tmp_path, GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        cluster(file)
    text = str(caught.value)
    assert text.startswith(file)
    assert sentence in text
    assert "\n" not in text
    assert text.endswith((".", "?"))


def test_nodes_that_are_no_list(tmp_path: Path) -> None:
    text = GOOD.replace("nodes:\n  - {", "nodes: {").replace("shared: false}}", "shared: false}}")
    with pytest.raises(InputError, match=r"nodes is .*: list at least one node"):
        cluster(write_file(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no cluster in YAML .*gone.yaml': check the path"):
        cluster(str(tmp_path / "gone.yaml"))
    with pytest.raises(InputError, match="Is a directory"):
        cluster(str(tmp_path))
    with pytest.raises(InputError, match="it is no text in UTF-8"):
        cluster(write_file(tmp_path, b"\xff\xfe\xfa"))
    with pytest.raises(InputError, match=r"cannot be read \(embedded null byte\)"):
        cluster("no\0where.yaml")
    with pytest.raises(InputError, match="cannot be written"):
        save_cluster({}, tmp_path / "gone" / "x.yaml")


def test_plain_data_in_a_plan_is_named_after_the_plan() -> None:
    data = {**cluster("p100").to_dict(), "network": {"bandwidth": 1, "latency": "x"}}
    with pytest.raises(InputError, match=r"^plan.json: network.latency is 'x'"):
        Cluster.from_dict(data, "plan.json")
    with pytest.raises(InputError, match=r"^cluster has no name"):
        Cluster.from_dict({"devices": {}, "nodes": []})
