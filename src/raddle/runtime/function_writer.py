"""Writes the Python source of one generated function, line by line, and makes the function from it.

    def segment(a0, a1, a2):
        v1, = f1(a0, a1, a2)
        v2, = f2(v1)
        del v1
        return (v2, )

a: arguments, c: numbers, v: variables, f: functions that are called, g: functions that assemble a region.
Names of modules, parameters and operators come from the user and never appear in the source, not even in
comments: this avoids code injection.

The arguments are pieces (boxes of tensors) that the device holds before the call; the results are pieces
that are needed after it. A region is a box of a tensor that a line reads. If a line reads a region that
lies in several pieces, the function assembles the region under autograd. So each piece gets its own
gradient.
"""

from __future__ import annotations

import linecache
import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.runtime.region_assembly import overlapping_boxes, region_assembler

# The name of a value, or (operator, tile, k): the k-th tensor of the partial result of an operator's tile.
# Most partial results are one tensor; those of mean and variance, for example, are two.
TensorId = str | tuple[str, int, int]


class Piece(NamedTuple):
    """A box of a tensor."""

    tensor_id: TensorId
    box: Box


class GeneratedCode(NamedTuple):
    """A generated function.

    Its arguments are the differentiable pieces, then weights, then all others, then numbers.
    """

    function: Callable[..., tuple[Tensor, ...]]
    differentiable: tuple[Piece, ...]  # activations that get a gradient
    weights: tuple[Piece, ...]  # parameters that get a gradient
    nondifferentiable: tuple[Piece, ...]
    results: tuple[Piece, ...]
    source: str
    # Numbers that differ between functions that are otherwise equal. They are the last arguments, as int32
    # tensors without dimensions.
    numbers: tuple[int, ...] = ()
    # Functions with equal keys return the same results for the same arguments.
    key: Hashable = None


class FunctionWriter:
    """Collects the lines of one function; `build` makes the function.

    held_boxes(tensor_id): the boxes of a tensor that the device holds before the function runs.
    """

    def __init__(self, held_boxes: Callable[[TensorId], Sequence[Box]]) -> None:
        self.held_boxes = held_boxes
        self.computed: dict[TensorId, list[tuple[Box, str]]] = {}  # boxes of results, and variables
        self._regions_to_read: dict[TensorId, set[Box]] = {}  # see announce_reads
        self._lines: list[str] = []
        self._namespace: dict[str, Any] = {"torch": torch}  # globals of the function
        self._keys: list[Hashable] = []  # of these globals, in their order
        self._numbers: list[int] = []  # arguments c0, c1, ...
        self._arguments: dict[Piece, str] = {}  # names: a0, a1, ...
        self._region_variables: dict[tuple[TensorId, Box], str] = {}  # regions that have a variable
        self._count = 0  # variables so far

    def announce_reads(self, reads: Iterable[tuple[TensorId, Box | None]]) -> None:
        """Notes which regions later lines will read. If they divide a piece, one torch.split makes them."""
        for tensor_id, region in reads:
            if region is not None:
                self._regions_to_read.setdefault(tensor_id, set()).add(region)

    def boxes(self, tensor_id: TensorId) -> list[Box]:
        """Returns the boxes of a tensor that the function has computed, or else those held before it."""
        return [box for box, _ in self.computed.get(tensor_id, [])] or list(
            self.held_boxes(tensor_id)
        )

    def add_call(
        self, function: Any, arguments: str, results: Sequence[tuple[TensorId, Box] | None], *,
        key: Hashable,
    ) -> None:  # fmt: skip
        """Adds a line that calls a function.

        key: functions with equal keys are equal.
        results: the piece that each result is; None for results that are not needed. Each result gets its
        own variable: a tuple would keep all results alive as long as one is used.
        """
        self.add_line(f"{self._bind('f', function, key)}({arguments})", results)

    def add_line(self, expression: str, results: Sequence[tuple[TensorId, Box] | None]) -> None:
        """Adds a line that evaluates an expression to a tuple; results as for add_call."""
        variables = ["_" if result is None else self._new_variable() for result in results]
        while variables and variables[-1] == "_":
            variables.pop()
        ignores_some = len(variables) < len(results) or "_" in variables
        self._lines.append(f"{', '.join(variables)}, {'*_ ' if ignores_some else ''}= {expression}")
        if ignores_some:
            self._lines.append("del _")
        for target, variable in zip(results, variables, strict=False):
            if target is not None:
                self.computed.setdefault(target[0], []).append((target[1], variable))

    def region_variable(self, tensor_id: TensorId, region: Box) -> str:
        """Returns the variable that holds a region of a tensor; adds a line to assemble it, if needed."""
        existing = self._region_variables.get((tensor_id, region))
        if existing is not None:
            return existing
        computed = self.computed.get(tensor_id, [])
        # All boxes of the tensor: first those that the function has computed, then its arguments
        boxes = [box for box, _ in computed] + [
            box
            for box in self.held_boxes(tensor_id)
            if not any(box == computed_box for computed_box, _ in computed)
        ]
        indices = overlapping_boxes(boxes, region)
        variables = [
            computed[i][1] if i < len(computed) else self._argument(Piece(tensor_id, boxes[i]))
            for i in indices
        ]
        assemble = region_assembler([boxes[i] for i in indices], region)
        if assemble is None:
            variable = variables[0]
        elif len(indices) == 1 and self._split_piece(tensor_id, boxes[indices[0]], variables[0]):
            return self._region_variables[tensor_id, region]
        else:
            variable = self._new_variable()
            key = tuple(boxes[i] for i in indices), region
            name = self._bind("g", assemble, key)
            self._lines.append(f"{variable} = {name}({', '.join(variables)})")
        self._region_variables[tensor_id, region] = variable
        return variable

    def _split_piece(self, tensor_id: TensorId, box: Box, variable: str) -> bool:
        """Adds one torch.split if the announced reads divide a piece, as queries, keys and values do.

        Separate slices would each have a gradient of the size of the whole piece, and autograd would sum
        them. Returns whether the piece was split.
        """
        parts = sorted(
            {r for r in self._regions_to_read.get(tensor_id, ()) if r != box and box.contains(r)}
        )
        dims = {d for r in parts for d in range(len(box.lo)) if r.shape[d] != box.shape[d]}
        if len(parts) < 2 or len(dims) != 1:
            return False
        (dim,) = dims
        ends = [box.lo[dim], *(r.hi[dim] for r in parts)]
        if [r.lo[dim] for r in parts] != ends[:-1] or ends[-1] != box.hi[dim]:
            return False
        names = [self._new_variable() for _ in parts]
        sizes = [r.shape[dim] for r in parts]
        self._lines.append(f"{', '.join(names)}, = torch.split({variable}, {sizes}, {dim})")
        self._region_variables.update(
            ((tensor_id, r), name) for r, name in zip(parts, names, strict=True)
        )
        return True

    def _argument(self, piece: Piece) -> str:
        return self._arguments.setdefault(piece, f"a{len(self._arguments)}")

    def _new_variable(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def number_variable(self, number: int) -> str:
        """Returns the name of a new argument, through which the function gets this number."""
        self._numbers.append(number)
        return f"c{len(self._numbers) - 1}"

    def _bind(self, letter: str, bound: Any, key: Hashable) -> str:
        """Returns a new global name for an object that the function uses. Equal objects have equal keys."""
        self._keys.append(key)
        name = f"{letter}{len(self._namespace)}"
        self._namespace[name] = bound
        return name

    def build(
        self,
        name: str,
        label: str,
        argument_kind: Callable[[Piece], str],
        results: Sequence[tuple[Piece, str]],
    ) -> GeneratedCode:
        """Returns the function. label: its file name in tracebacks; results: (piece, its variable)."""
        body = _with_deletions(
            [*self._lines, f"return ({''.join(var + ', ' for _, var in results)})"]
        )
        by_kind: dict[str, list[Piece]] = {
            "differentiable": [],
            "weight": [],
            "nondifferentiable": [],
        }
        for piece in self._arguments:
            by_kind[argument_kind(piece)].append(piece)
        ordered = [self._arguments[piece] for pieces in by_kind.values() for piece in pieces]
        ordered += [f"c{n}" for n in range(len(self._numbers))]
        source = f"def {name}({', '.join(ordered)}):\n    " + "\n    ".join(body)
        exec(compile(source, _file_of(label, source), "exec"), self._namespace)
        return GeneratedCode(
            self._namespace[name],
            tuple(by_kind["differentiable"]),
            tuple(by_kind["weight"]),
            tuple(by_kind["nondifferentiable"]),
            tuple(piece for piece, _ in results),
            source,
            tuple(self._numbers),
            (
                source,
                tuple(self._keys),
                tuple(tuple(p.box.shape for p in pieces) for pieces in by_kind.values()),
            ),
        )


def _file_of(label: str, source: str) -> str:
    """Returns the name of a file that does not exist, under which Python finds this source.

    So tracebacks show its lines. And up to version 2.12, torch.compile calls functions whose source it does
    not find through one function of its own, for which it keeps at most 8 results: it would look through
    all of them before each call, and would not compile a ninth function.
    """
    name = f"<{label} {zlib.crc32(source.encode()):08x}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    return name


def _with_deletions(lines: Sequence[str]) -> list[str]:
    """Returns the lines with a `del` after the last use of each variable, so that its memory is freed."""
    last_use = {
        name: index for index, line in enumerate(lines) for name in re.findall(r"\bv\d+\b", line)
    }
    result = []
    for line_number, line in enumerate(lines):
        result.append(line)
        dead = [name for name, end in last_use.items() if end == line_number]
        if dead and line_number < len(lines) - 1:
            result.append(f"del {', '.join(dead)}")
    return result
