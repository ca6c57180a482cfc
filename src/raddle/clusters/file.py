"""Reads and writes YAML files that describe a cluster; description.py lists their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from raddle.clusters.topology import Cluster
from raddle.errors import shorten
from raddle.files import write_atomically
from raddle.yaml_files import read_yaml


def load_cluster(path: str | Path) -> Cluster:
    """Reads the cluster that a file describes."""
    file = Path(path)
    advice = f"check the path, or write one with raddle probe -o {file}"
    description = read_yaml(file, "cluster in YAML", missing_hint=advice)
    return Cluster.from_dict(description, shorten(str(file)), name=file.stem)


def save_cluster(
    description: Mapping[str, Any], path: str | Path, *, comments: Sequence[str] = ()
) -> None:
    """Writes a description, which `Cluster.to_dict` gives, with the comment lines above it."""
    text = yaml.safe_dump(dict(description), sort_keys=False, default_flow_style=None, width=100)
    head = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    write_atomically(path, head + text)
