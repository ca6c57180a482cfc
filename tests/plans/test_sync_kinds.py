"""Sync kinds: parsing of `plan.sync`, their properties, slices of rows, and servers of slices."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.errors import InputError
from raddle.plans.sync import EXAMPLES, KINDS, Sync, read_sync
from raddle.plans.sync.allreduce import AllReduce
from raddle.plans.sync.in_order_server import InOrderServer
from raddle.plans.sync.p3 import P3, CollectiveSlices
from raddle.plans.sync.server_assignment import greedy
from raddle.plans.sync.servers import DEFAULT_SLICE, Servers
from raddle.plans.sync.sharded import Sharded, Zero3
from raddle.plans.sync.sync_kind import SyncKind

# VGG-19's parameters: one tensor is 71.5 % of them.
VGG19 = [
    1728,
    36864,
    73728,
    147456,
    294912,
    *[589824] * 3,
    1179648,
    *[2359296] * 7,
    102760448,
    16777216,
    4096000,
]


@pytest.mark.parametrize(
    ("text", "sync"),
    [
        ("allreduce", AllReduce()),
        ("allreduce:bf16", AllReduce(wire_dtype="bfloat16")),
        ("allreduce:after", AllReduce(after_backward=True)),
        ("allreduce:fp16,after", AllReduce(wire_dtype="float16", after_backward=True)),
        ("sharded", Sharded()),
        ("sharded:after", Sharded(after_backward=True)),
        ("sharded:parameters", Zero3()),
        ("sharded,group=4", Sharded(group_size=4)),
        ("sharded:group=4", Sharded(group_size=4)),
        ("sharded:after,group=4", Sharded(after_backward=True, group_size=4)),
        ("sharded:parameters,group=16", Zero3(group_size=16)),
        ("sharded:group=16,parameters", Zero3(group_size=16)),
        ("ps", Servers()),
        ("ps:one,async", Servers(server=0, staleness=None)),
        ("ps:2,ssp=3", Servers(server=2, staleness=3)),
        ("ps:distributed,sliced,greedy", Servers(spread=greedy, slice=DEFAULT_SLICE)),
        ("ps:after,slice=9", Servers(slice=9, after_backward=True)),
        ("p3", P3(slice=DEFAULT_SLICE, spread=greedy)),
        ("p3:slice=50000,round-robin", P3(slice=50_000)),
        ("p3:collective", CollectiveSlices()),
        ("p3:slice=9,collective", CollectiveSlices(slice=9)),
        ("server", InOrderServer()),
        ("server:3", InOrderServer(server=3)),
        ("server:3,after", InOrderServer(server=3, after_backward=True)),
    ],
)  # fmt: skip
def test_reads(text: str, sync: Sync) -> None:
    assert read_sync(text) == sync


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_kind_reads_its_name_alone_and_its_examples(kind: SyncKind) -> None:
    for text in (kind.name, *kind.examples):
        assert isinstance(read_sync(text), Sync)
        assert re.split("[:,]", text)[0] == kind.name
    assert set(kind.examples) <= set(EXAMPLES.split(", "))


OTHERS = ("sharded:parameters", "p3:collective")


def test_traits() -> None:
    """The properties of each sync kind."""
    traits = (
        "bucketed",
        "in_order_server",
        "zero3",
        "collective",
        "by_priority",
        "has_servers",
        "shards",
        "sliced",
        "allows_overlap",
    )
    assert {
        text: " ".join(t for t in traits if getattr(read_sync(text), t))
        for text in (*KINDS, "allreduce:bf16", "allreduce:after", *OTHERS)
    } == {
        "allreduce": "bucketed allows_overlap",
        "allreduce:bf16": "bucketed",
        "allreduce:after": "bucketed",
        "sharded": "has_servers shards",
        "sharded:parameters": "zero3 has_servers shards",
        "ps": "has_servers sliced",
        "p3": "by_priority has_servers sliced",
        "p3:collective": "collective by_priority sliced",
        "server": "in_order_server has_servers",
    }


@pytest.mark.parametrize(
    "text",
    ["", "ring", "allreduce:int8", "p3:async", "ps:slice=0", "ps:ssp=-1", "server:a", "sharded:2",
     "p3:after", "p3:collective,after", "sharded:parameters,after", "sharded,group=2,group=2",
     "sharded,group=", "sharded,group=-2", "sharded:parameters,parameters", "allreduce,group=2",
     "p3,group=2"],
)  # fmt: skip
def test_refuses(text: str) -> None:
    with pytest.raises(InputError, match="choose as in allreduce"):
        read_sync(text)


@pytest.mark.parametrize("text", ["sharded,group=0", "sharded:parameters,group=1"])
def test_refuses_groups_that_shard_nothing(text: str) -> None:
    with pytest.raises(InputError, match=r"has group=[01], but .*: use group=2 or a larger number"):
        read_sync(text)


@pytest.mark.parametrize("word", ["one", "2", "distributed", "round-robin", "greedy", "async"])
def test_options_of_servers_are_refused_where_there_are_none(word: str) -> None:
    for text in (f"p3:collective,{word}", f"p3:{word},slice=7,collective"):
        with pytest.raises(InputError, match=f"which has '{word}': choose as in"):
            read_sync(text)
    with pytest.raises(InputError, match="which has 'collective'"):
        read_sync("ps:collective")


@given(
    st.lists(st.integers(1, 40), max_size=3), st.integers(1, 50),
    st.sampled_from(["sharded", "ps", "ps:slice=7", "p3", "p3:collective,slice=9"]), st.integers(1, 5),
)  # fmt: skip
def test_rows_cover_a_tensor_once(shape: list[int], size: int, text: str, holders: int) -> None:
    rows = read_sync(text).row_ranges(shape, holders)
    assert [r for a, b in rows for r in range(a, b)] == list(range(shape[0] if shape else 1))


@given(st.data())
def test_every_server_is_a_holder(data: st.DataObject) -> None:
    groups = data.draw(
        st.lists(st.sets(st.integers(0, 4), min_size=1).map(sorted), min_size=1, max_size=9)
    )
    sizes = data.draw(st.lists(st.integers(1, 99), min_size=len(groups), max_size=len(groups)))
    for text in ("ps", "ps:greedy", "server"):
        assert all(
            h in g
            for h, g in zip(read_sync(text).assign_servers(sizes, groups), groups, strict=True)
        )


def test_there_may_be_no_server() -> None:
    sync = read_sync("p3:collective")
    assert sync.assign_servers([3, 4], [[0, 1], [1]]) == [-1, -1]
    assert sync.sliced
    assert not sync.has_servers


@pytest.mark.parametrize(
    ("text", "worst"), [("ps", 5.9), ("ps:greedy", 5.8), ("ps:greedy,sliced", 1.01)]
)
def test_loads_of_vgg19_on_eight_servers(text: str, worst: float) -> None:
    sync = read_sync(text)
    sizes = [b - a for n in VGG19 for a, b in sync.row_ranges([n], 8)]
    loads: Counter[int] = Counter()
    for size, server in zip(
        sizes, sync.assign_servers(sizes, [range(8)] * len(sizes)), strict=True
    ):
        loads[server] += size
    assert 8 * max(loads.values()) / loads.total() == pytest.approx(worst, rel=0.03)
