"""Draws clusters of every topology: buses, ports, groups in nodes, shared NICs, oversubscribed leaves."""

from __future__ import annotations

from hypothesis import strategies as st

from raddle.clusters import Cluster, Device, Link, Network
from raddle.clusters.devices import Collectives, Group, Library
from raddle.clusters.topology import build_cluster

KINDS = [
    Device("fast", 0, {"float32": 1e13}, 16 * 2**30, 9e11),
    Device("slow", 0, {"float32": 1e12, "float64": 3e11}, 2**30, 1e11, 1e-5, {"conv": 0.2}),
]

rates = st.floats(1.0, 1e12)
latencies = st.floats(0.0, 1e-3)
flags = st.booleans()
shares = st.sampled_from([1.0, 0.8])
groups = st.none() | st.builds(Group, st.integers(1, 4), rates, latencies, flags, flags)
links = st.builds(Link, rates, latencies, flags, flags, shares, groups)
modes = st.sampled_from(
    [*(Collectives(library) for library in Library), Collectives(Library.NCCL, True, True)]
)


@st.composite
def drawn_clusters(draw: st.DrawFn) -> Cluster:
    """Up to five nodes of up to five devices, with links and networks of all kinds."""
    leaf, oversubscription = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    networks = st.builds(
        Network, rates, latencies, flags, flags, shares, st.integers(1, 3),
        st.just(leaf), st.just(oversubscription),
    )  # fmt: skip
    kinds = st.lists(st.sampled_from(KINDS), min_size=1, max_size=5)
    nodes = st.lists(st.tuples(kinds, links, networks), min_size=1, max_size=5)
    return build_cluster("drawn", draw(nodes), draw(modes))
