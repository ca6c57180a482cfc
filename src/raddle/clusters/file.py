"""YAML files that describe a cluster."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from raddle.clusters.description import parse
from raddle.clusters.topology import Cluster
from raddle.errors import InputError


def load(path: str | Path) -> Cluster:
    """Read the cluster that a file describes."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{file} is a folder: name the YAML file in it.")
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"no file {file}: check the path, or write one with raddle probe -o {file}."
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as text ({error}): check the file.") from None
    return parse(_data(text, file), str(file), name=file.stem)


def save(description: Mapping[str, Any], path: str | Path, *, comments: Sequence[str] = ()) -> None:
    """Write what `Cluster.to_dict` gives, with lines of comment above it."""
    text = yaml.safe_dump(dict(description), sort_keys=False, default_flow_style=None, width=100)
    head = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    try:
        Path(path).write_text(head + text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}): name a file in a folder that exists."
        ) from None


def _data(text: str, file: Path) -> object:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{file}{_line(error)} is no YAML ({_problem(error)}): mend it.") from None
    except (RecursionError, ValueError) as error:  # ValueError: a date such as 2020-13-45
        raise InputError(f"{file} is no YAML ({str(error).splitlines()[0]}): mend it.") from None


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}," if mark is not None else ""


def _problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return " ".join(str(problem).split())


class _Loader(yaml.SafeLoader):
    """YAML, but a key that stands twice is a mistake and not the last one's."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} stands there twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)
