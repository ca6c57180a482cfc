"""Makes a cluster from a user's text: a preset's name, perhaps with a size, or the path of a file."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches

from raddle.clusters.catalogue import LOCAL, PRESETS, local
from raddle.clusters.description import MAX_DEVICES
from raddle.clusters.preset import Preset
from raddle.clusters.topology import Cluster, build_cluster
from raddle.errors import InputError


def cluster(spec: str | os.PathLike[str] | Cluster) -> Cluster:
    """Makes the cluster of a preset, as "p100:4x4", "h100:16" or "local:2", or of a YAML file.

    After the colon: `4x4` is 4 nodes with 4 devices each; `16` is 16 devices on nodes of the preset's
    size. Without a colon the cluster has the preset's default size, which `raddle clusters` lists.
    A cluster is returned as it is, so functions can take a text or a cluster.

    >>> len(cluster("p100:4x4").devices)
    16
    """
    if isinstance(spec, Cluster):
        return spec
    if not isinstance(spec, str | os.PathLike):
        raise InputError(
            f"the cluster is a {type(spec).__name__}: name a preset such as 'p100:4x4', or a YAML file."
        )
    text = os.fspath(spec)
    name, colon, size = text.partition(":")
    name = name.strip().lower()
    if name == LOCAL:
        return _local(text, size, has_size=bool(colon))
    if name in PRESETS:
        return _preset(PRESETS[name], text, size, has_size=bool(colon))
    if text.lower().endswith((".yaml", ".yml")) or os.sep in text or os.path.isfile(text):
        from raddle.clusters.file import load_cluster

        return load_cluster(text)
    raise InputError(f"no cluster {text!r}: {_advice(name)}")


def _preset(preset: Preset, spec: str, size: str, *, has_size: bool) -> Cluster:
    """Makes the cluster of a preset. spec: all that the user wrote, for errors; size: after the colon."""
    sizes = _node_sizes(preset, spec, size) if has_size else [preset.per_node] * preset.nodes
    title = f"{preset.name}:{size.strip().lower()}" if has_size else preset.name
    nodes = [([preset.device] * n, preset.link, preset.network) for n in sizes]
    return build_cluster(title, nodes, preset.collectives)


def _node_sizes(preset: Preset, spec: str, size: str) -> list[int]:
    """Returns for each node the number of its devices; the last node may have fewer for a size like 18."""
    match = re.fullmatch(r"\s*(?:(\d+)\s*[xX]\s*)?(\d+)\s*", size, re.ASCII)
    if match is None:
        raise InputError(
            f"{spec!r} has no size that makes sense: "
            f"write {preset.name}:16 for 16 devices or {preset.name}:4x4 for 4 nodes of 4."
        )
    nodes, devices = (None if digits is None else _count(spec, digits) for digits in match.groups())
    assert devices is not None
    if nodes is not None:
        _check_count(spec, nodes * devices)
        return [devices] * nodes
    full, remainder = divmod(devices, preset.per_node)
    return [preset.per_node] * full + [remainder] * (remainder > 0)


def _local(spec: str, size: str, *, has_size: bool) -> Cluster:
    """Makes the cluster of processes on this machine; arguments as in `_preset`."""
    if has_size and not re.fullmatch(r"\s*\d+\s*", size, re.ASCII):
        raise InputError(
            f"{spec!r} has no size that makes sense: write local:2 for 2 processes on this machine."
        )
    return local(_count(spec, size) if has_size else 2)


def _count(spec: str, digits: str) -> int:
    """Returns the number that a user wrote, if it is a possible number of devices."""
    digits = digits.strip().lstrip("0")
    # int() raises another error for more than 4,300 digits; a long text becomes a huge number instead.
    return _check_count(spec, int(digits or "0") if len(digits) < 20 else 10**20)


def _check_count(spec: str, count: int) -> int:
    """Returns the number, or raises InputError if no cluster can have so many devices."""
    if not 1 <= count <= MAX_DEVICES:
        raise InputError(f"{spec!r} asks for {_amount(count)}: ask for 1 to {MAX_DEVICES} devices.")
    return count


def _amount(count: int) -> str:
    """Returns an impossible number of devices in words."""
    return "no devices" if count < 1 else f"more than {MAX_DEVICES} devices"


def _advice(name: str) -> str:
    """Returns the end of the error about an unknown preset: similar names, or all names."""
    names = [*PRESETS, LOCAL]
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there is {', '.join(names)}, or give the path of a YAML file."
