"""One Python function of pieces: written line by line, compiled once.

    def segment(a0, a1, a2):
        v1, = f1(a0, a1, a2)
        v2, = f2(v1)
        del v1
        return (v2, )

Every name in it is a letter and a number: names of modules, parameters and operators are a user's text, and
are not written into it, not even as comments.

Its arguments are pieces of values that are there before, its results pieces that are needed after it. What
a line reads is put together inside, under autograd, so gradients come back piece by piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.runtime.region_assembly import gather, overlapping

# Names what a piece is of: a value, or the k-th tensor of a part of an operator's partial results.
Of = str | tuple[str, int, int]


class Piece(NamedTuple):
    """A box of something that a device holds."""

    of: Of
    box: Box


class Code(NamedTuple):
    """A function of pieces: first those that get a gradient, then parameters, then all others."""

    function: Callable[..., tuple[Tensor, ...]]
    graded: tuple[Piece, ...]
    weights: tuple[Piece, ...]
    plain: tuple[Piece, ...]
    results: tuple[Piece, ...]
    source: str


class Function:
    """A function while it is written; `held(of)` are the boxes that are there before it."""

    def __init__(self, held: Callable[[Of], Sequence[Box]]) -> None:
        self.held = held
        self.made: dict[Of, list[tuple[Box, str]]] = {}  # by its lines, in which variables
        self._read: dict[Of, set[Box]] = {}  # all regions that its lines will read
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"torch": torch}
        self._arguments: dict[Piece, str] = {}
        self._known: dict[tuple[Of, Box], str] = {}
        self._count = 0

    def expect(self, reads: Iterable[tuple[Of, Box | None]]) -> None:
        """What lines to come will read: where it is all of a piece, that is split at once."""
        for of, region in reads:
            if region is not None:
                self._read.setdefault(of, set()).add(region)

    def boxes(self, of: Of) -> list[Box]:
        """The boxes of something that are there: made by its lines, or else before it."""
        return [box for box, _ in self.made.get(of, [])] or list(self.held(of))

    def call(self, function: Any, arguments: str, into: Sequence[tuple[Of, Box] | None]) -> None:
        """A line that calls something; where results go, None for those that nobody needs.

        Each has a variable of its own: a tuple would keep all of them as long as one is used.
        """
        self.line(f"{self._name('f', function)}({arguments})", into)

    def line(self, expression: str, into: Sequence[tuple[Of, Box] | None]) -> None:
        """The same for an expression that gives several results."""
        variables = ["_" if own is None else self._fresh() for own in into]
        while variables and variables[-1] == "_":
            variables.pop()
        rest = len(variables) < len(into) or "_" in variables
        self._lines.append(f"{', '.join(variables)}, {'*_ ' if rest else ''}= {expression}")
        if rest:
            self._lines.append("del _")
        for own, variable in zip(into, variables, strict=False):
            if own is not None:
                self.made.setdefault(own[0], []).append((own[1], variable))

    def region(self, of: Of, region: Box) -> str:
        """The variable that holds a region, put together if it is in several pieces."""
        known = self._known.get((of, region))
        if known is not None:
            return known
        inside = self.made.get(of, [])
        boxes = [box for box, _ in inside] + [
            box for box in self.held(of) if not any(box == own for own, _ in inside)
        ]
        found = overlapping(boxes, region)
        variables = [
            inside[i][1] if i < len(inside) else self._argument(Piece(of, boxes[i])) for i in found
        ]
        make = gather([boxes[i] for i in found], region)
        if make is None:
            variable = variables[0]
        elif len(found) == 1 and self._split(of, boxes[found[0]], variables[0]):
            return self._known[of, region]
        else:
            variable = self._fresh()
            self._lines.append(f"{variable} = {self._name('g', make)}({', '.join(variables)})")
        self._known[of, region] = variable
        return variable

    def _split(self, of: Of, box: Box, variable: str) -> bool:
        """Splits a piece that is read in parts, as queries, keys and values are, all at once.

        Slices, each by itself, would give a gradient as large as the piece, and sums of them.
        """
        parts = sorted({r for r in self._read.get(of, ()) if r != box and box.contains(r)})
        dims = {d for r in parts for d in range(len(box.lo)) if r.shape[d] != box.shape[d]}
        if len(parts) < 2 or len(dims) != 1:
            return False
        (dim,) = dims
        ends = [box.lo[dim], *(r.hi[dim] for r in parts)]
        if [r.lo[dim] for r in parts] != ends[:-1] or ends[-1] != box.hi[dim]:
            return False
        names = [self._fresh() for _ in parts]
        sizes = [r.shape[dim] for r in parts]
        self._lines.append(f"{', '.join(names)}, = torch.split({variable}, {sizes}, {dim})")
        self._known.update(((of, r), name) for r, name in zip(parts, names, strict=True))
        return True

    def _argument(self, piece: Piece) -> str:
        return self._arguments.setdefault(piece, f"a{len(self._arguments)}")

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _name(self, letter: str, thing: Any) -> str:
        name = f"{letter}{len(self._names)}"
        self._names[name] = thing
        return name

    def compiled(
        self,
        name: str,
        label: str,
        kind: Callable[[Piece], str],
        results: Sequence[tuple[Piece, str]],
    ) -> Code:
        """The function; `kind` says of an argument whether it gets a gradient, is a weight, or neither."""
        body = _released([*self._lines, f"return ({''.join(var + ', ' for _, var in results)})"])
        kinds: dict[str, list[Piece]] = {"graded": [], "weight": [], "plain": []}
        for piece in self._arguments:
            kinds[kind(piece)].append(piece)
        ordered = [self._arguments[piece] for pieces in kinds.values() for piece in pieces]
        source = f"def {name}({', '.join(ordered)}):\n    " + "\n    ".join(body)
        exec(compile(source, f"<{label}>", "exec"), self._names)
        return Code(
            self._names[name],
            tuple(kinds["graded"]),
            tuple(kinds["weight"]),
            tuple(kinds["plain"]),
            tuple(piece for piece, _ in results),
            source,
        )


def _released(lines: Sequence[str]) -> list[str]:
    """Lines with a `del` after the last use of each variable: what nobody keeps must not stay alive."""
    last = {name: at for at, line in enumerate(lines) for name in re.findall(r"\bv\d+\b", line)}
    result = []
    for at, line in enumerate(lines):
        result.append(line)
        gone = [name for name, end in last.items() if end == at]
        if gone and at < len(lines) - 1:
            result.append(f"del {', '.join(gone)}")
    return result
