"""Reads YAML files within limits on size and nesting.

Aliases count as the nodes that they stand for: with them, a small file could make a huge structure.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from raddle.errors import InputError, shorten
from raddle.files import MAX_DEPTH, MAX_INT, Path, read_text

MAX_BYTES = 256 * 2**10  # PyYAML reads about 100 KiB per second
MAX_NODES = 50_000  # scalars, lists and mappings; an alias counts as the nodes that it stands for


def read_yaml(path: Path, file_type: str, *, missing_hint: str = "") -> Any:
    """Returns the data of a YAML file; the keys of a mapping must be unique.

    file_type: what an error message calls the file ("cluster in YAML"). missing_hint: the advice in the
    message for a file that does not exist: how to get one.
    """
    text = read_text(path, file_type, missing_hint=missing_hint, max_bytes=MAX_BYTES)
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(
            f"{shorten(str(path))}{_line_text(error)} is no YAML ({_problem_text(error)}): mend it."
        ) from None
    except RecursionError:
        raise InputError(f"{shorten(str(path))} is no YAML ({_TOO_DEEP}): mend it.") from None


_TOO_DEEP = f"more than {MAX_DEPTH} lists and mappings are within each other"


def _line_text(error: yaml.YAMLError) -> str:
    """Returns the line of an error in words, such as ", line 3,"; "" if it is unknown."""
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}," if mark is not None else ""


def _problem_text(error: yaml.YAMLError) -> str:
    """Returns PyYAML's reason for an error, on one line."""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return shorten(" ".join(str(problem).split()))


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses too deep or too large data and repeated keys."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.node_count = 0
        # id(node with an anchor) -> number of nodes in it, itself included
        self.anchor_sizes: dict[int, int] = {}

    # For each token, PyYAML's scanner visits all open brackets: deep nesting would take very long. So depth
    # is checked when a bracket or an indented block is opened, not afterwards.

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        self._check_depth()
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        self._check_depth()
        return bool(super().add_indent(column))

    def _check_depth(self) -> None:
        if self.flow_level + len(self.indents) >= MAX_DEPTH:
            raise yaml.scanner.ScannerError(None, None, _TOO_DEEP, self.get_mark())

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Returns a node, and counts the nodes in it.

        An alias within its own anchor is refused: the anchor has no size yet.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark, anchor, before = event.start_mark, event.anchor, self.node_count
        alias = isinstance(event, yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if alias and id(node) not in self.anchor_sizes:
            raise yaml.composer.ComposerError(None, None, f"*{anchor} is within itself", mark)
        self.node_count += self.anchor_sizes[id(node)] if alias else 1
        if anchor is not None and not alias:
            self.anchor_sizes[id(node)] = self.node_count - before
        if self.node_count > MAX_NODES:
            raise yaml.composer.ComposerError(
                None,
                None,
                f"it has more than {MAX_NODES:,} values, those of aliases included",
                mark,
            )
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Returns the value of a node; refuses wrong scalars and too large integers."""
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep=deep)
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, str):
                value.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(
                None, None, f"{shorten(node.value, 40)!r} is no {kind}", node.start_mark
            ) from None
        if isinstance(value, int) and not -MAX_INT <= value <= MAX_INT:
            shown = shorten(node.value, 40)
            raise ConstructorError(None, None, f"{shown} is too large", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Returns a mapping; refuses repeated keys."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # the key <<, which may be repeated
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    twice = shorten(repr(key))
                    raise ConstructorError(
                        None, None, f"the key {twice} is there twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)
