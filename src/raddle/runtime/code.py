"""The code of a segment: one Python function, written and compiled once, that runs all of its tiles.

    def segment(a0, a1, a2):
        v1, = f1(a0, a1, a2)
        v2, = f2(v1)
        del v1
        return (v2, )

Every name in it is a letter and a number: names of modules, parameters and operators are a user's text, and
are not written into it, not even as comments.

Its arguments are pieces of values that are there before, its results pieces that are needed after it. What
a tile reads is put together inside, under autograd, so gradients come back piece by piece.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raddle.graph.box import Box, hull
from raddle.graph.graph import Fused, Op
from raddle.graph.ops import kernel, merge
from raddle.graph.ops.fused import FUSED, SAMPLES_ONLY
from raddle.program.program import Cell, Program, Variant, tensors_of_part
from raddle.runtime.gathering import gather, overlapping

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


class Writer:
    """Writes the function of some operators on a device."""

    def __init__(
        self, program: Program, variant: Variant, device: int, place: torch.device,
        held: Callable[[Of], Sequence[Box]], kind: Callable[[Piece], str],
    ) -> None:  # fmt: skip
        self.program, self.device, self.place = program, device, place
        self.graph, self.tiles, self.merges = variant.graph, variant.tiles, variant.merges
        self.held, self.kind = held, kind
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"torch": torch}
        self.arguments: dict[Piece, str] = {}
        self.made: dict[Of, list[tuple[Box, str]]] = {}
        self.known: dict[tuple[Of, Box], str] = {}
        self.read: dict[Of, set[Box]] = {}  # all regions that the operators read
        self.count = 0
        self.in_place = False

    # -- what is written ---------------------------------------------------------------------------

    def segment(self, ops: Sequence[Op], wanted: Iterable[str], *, again: bool = False) -> Code:
        """Tiles of operators, in their order; `wanted` are the values that are needed after them.

        What runs `again` must find buffers as they were; all else may write running statistics in place.
        """
        self.in_place = not again
        for op in ops:
            for tile in self.tiles[op.name].tiles:
                if tile.device == self.device:
                    for name, region in zip(op.inputs, op.space.regions(tile.box), strict=True):
                        if region is not None:
                            self.read.setdefault(name, set()).add(region)
        native, replaced = self.native(ops)
        for op in ops:
            if op.name in native:
                self._fused(native[op.name])
            elif op.name not in replaced:
                self._tiles(op)
        keep = set(wanted)
        results = [
            (Piece(of, box), var)
            for of, pieces in self.made.items()
            for box, var in pieces
            if isinstance(of, tuple) or of in keep
        ]
        return self._code("segment", results)

    def merge(self, op: Op, cells: Sequence[Cell]) -> Code:
        """Cells of an operator's output from its partial results."""
        tiles = self.tiles[op.name].tiles
        for cell in cells:
            if self.device not in cell.devices:
                continue
            boxes = [tiles[p].box for p in cell.parts]
            parts = [
                [
                    self._region((op.name, p, k), cell.box)
                    for k in range(tensors_of_part(op, tiles[p].box))
                ]
                for p in cell.parts
            ]
            complete = len(boxes) == 1 and not op.space.partial(boxes[0])
            packed = "".join(f"({', '.join(vs)},), " for vs in parts)
            call = f"({', '.join(parts[0])},)"
            if not complete:
                call = f"{self._name('m', self._merging(op, boxes))}(({packed}))"
            self._results(call, [(name, cell.box) for name in op.outputs])
        results = [(Piece(of, box), var) for of, made in self.made.items() for box, var in made]
        return self._code("merge", results)

    @staticmethod
    def _merging(op: Op, boxes: list[Box]) -> Callable[..., Any]:
        return lambda parts: merge(op, parts, boxes)

    # -- tiles ------------------------------------------------------------------------------------------

    def _tiles(self, op: Op) -> None:
        for number, tile in enumerate(self.tiles[op.name].tiles):
            if tile.device != self.device:
                continue
            regions = list(op.space.regions(tile.box))
            if op.traits.strided and regions[0] is not None:
                regions[0] = self._roomier(op, tile.box, regions[0])
            arguments = [
                "None" if region is None else self._region(name, region)
                for name, region in zip(op.inputs, regions, strict=True)
            ]
            run = self._name("f", kernel(self._as_run(op), tile.box, self.place))
            outs = op.space.produces(tile.box)
            if op.name in self.merges:
                count = tensors_of_part(op, tile.box)
                into: list[tuple[Of, Box]] = [((op.name, number, k), outs[0]) for k in range(count)]
            else:
                into = list(zip(op.outputs, outs, strict=True))
            self._results(f"{run}({', '.join(arguments)})", into)

    def _roomier(self, op: Op, box: Box, region: Box) -> Box:
        """A whole piece in place of a region, where the window ignores what is too much.

        With a stride the last elements may not be read. To cut them off would cost a copy.
        """
        held = [b for b, _ in self.made.get(op.inputs[0], [])] or list(self.held(op.inputs[0]))
        spans = op.space.spans(0, box)
        strides = (1, 1, *op.attrs["stride"])
        for piece in held:
            more = [a - b for a, b in zip(piece.hi, region.hi, strict=True)]
            # Padding below may be as much too much above (settle_padding): both must fit in a stride.
            fits = all(
                m == 0 or (0 < m < s - (lo - low) and high == hi)
                for m, s, lo, hi, (low, high) in zip(
                    more, strides, region.lo, region.hi, spans, strict=True
                )
            )
            if piece.lo == region.lo and fits:
                return piece
        return region

    def _as_run(self, op: Op) -> Op:
        """Running statistics of local batch statistics: their variance is of this device's samples."""
        if self.program.plan.bn != "local" or not op.traits.beside:
            return op
        source = next(o for o in self.graph.ops if op.inputs[2] in o.outputs)
        boxes = [t.box for t in self.tiles[source.name].tiles if t.device == self.device]
        if len(boxes) != 1:
            return op
        count = math.prod(boxes[0].shape[d] for d in source.space.reduced)
        return dataclasses.replace(op, attrs={**op.attrs, "unbias": count / max(1, count - 1)})

    def _results(self, call: str, into: Sequence[tuple[Of, Box]]) -> None:
        variables = [self._fresh() for _ in into]
        self.lines.append(f"{', '.join(variables)}, = {call}")
        for (of, box), var in zip(into, variables, strict=True):
            self.made.setdefault(of, []).append((box, var))

    def _region(self, of: Of, region: Box) -> str:
        """The variable that holds a region, put together if it is in several pieces."""
        known = self.known.get((of, region))
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
            return self.known[of, region]
        else:
            variable = self._fresh()
            self.lines.append(f"{variable} = {self._name('g', make)}({', '.join(variables)})")
        self.known[of, region] = variable
        return variable

    def _split(self, of: Of, box: Box, variable: str) -> bool:
        """Splits a piece that is read in parts, as queries, keys and values are, all at once.

        Slices, each by itself, would give a gradient as large as the piece, and sums of them.
        """
        parts = sorted({r for r in self.read.get(of, ()) if r != box and box.holds(r)})
        dims = {d for r in parts for d in range(len(box.lo)) if r.shape[d] != box.shape[d]}
        if len(parts) < 2 or len(dims) != 1:
            return False
        (dim,) = dims
        ends = [box.lo[dim], *(r.hi[dim] for r in parts)]
        if [r.lo[dim] for r in parts] != ends[:-1] or ends[-1] != box.hi[dim]:
            return False
        names = [self._fresh() for _ in parts]
        sizes = [r.shape[dim] for r in parts]
        self.lines.append(f"{', '.join(names)}, = torch.split({variable}, {sizes}, {dim})")
        self.known.update(((of, r), name) for r, name in zip(parts, names, strict=True))
        return True

    def _argument(self, piece: Piece) -> str:
        return self.arguments.setdefault(piece, f"a{len(self.arguments)}")

    # -- composites that one native call replaces ----------------------------------------------------

    def native(self, ops: Sequence[Op]) -> tuple[dict[str, Fused], set[str]]:
        """By the operator at which they run, and all operators that they replace."""
        own = {op.name: op for op in ops}
        last: dict[str, Fused] = {}
        replaced: set[str] = set()
        for fused in self.graph.fused:
            if self._fits(fused, own):
                present = [name for name in fused.ops if name in own]
                last[present[-1]] = fused
                replaced.update(present)
        return last, replaced

    def _fits(self, fused: Fused, own: Mapping[str, Op]) -> bool:
        """Whether the tiles of a composite on this device are one box of it."""
        if not any(name in own for name in fused.ops):
            return False
        apart = fused.kind in SAMPLES_ONLY  # its steps and gates read parts of what the call reads
        made: dict[str, Box] = {}
        read: dict[str, Box | None] = {}
        for name in fused.ops:
            op = self.graph.op(name)
            if name not in own:
                elsewhere = self.device not in self.tiles[name].devices
                if op.traits.beside and elsewhere:
                    continue
                return False
            boxes = [t.box for t in self.tiles[name].tiles if t.device == self.device]
            if len(boxes) != 1 or name in self.merges:
                return False
            if apart and not _by_samples(op, boxes[0]):
                return False
            for i, region in zip(op.inputs, op.space.regions(boxes[0]), strict=True):
                if i in made and made[i] != region:
                    return False
                if i not in made and read.setdefault(i, region) != region and not apart:
                    return False
            made.update(zip(op.outputs, op.space.produces(boxes[0]), strict=True))
        return all(i is None or read.get(i) is not None for i in self._inputs(fused, own))

    def _inputs(self, fused: Fused, own: Mapping[str, Op]) -> list[str | None]:
        """Of batch norm, running statistics only where they are kept here."""
        kept = {o for name in fused.ops if name in own for o in own[name].outputs}
        absent = [o is not None and o not in kept for o in fused.outputs]
        if fused.kind == "batch_norm" and any(absent):
            return [*fused.inputs[:3], None, None]
        return list(fused.inputs)

    def _fused(self, fused: Fused) -> None:
        device = self.device
        tiles = self.tiles
        ops = {
            op.name: op
            for op in self.graph.ops
            if op.name in set(fused.ops) and device in tiles[op.name].devices
        }
        read: dict[str, Box] = {}
        made: dict[str, Box] = {}
        for op in ops.values():
            box = next(t.box for t in tiles[op.name].tiles if t.device == device)
            for i, region in zip(op.inputs, op.space.regions(box), strict=True):
                if region is not None:
                    read[i] = hull([read.get(i, region), region])
            made.update(zip(op.outputs, op.space.produces(box), strict=True))
        arguments = [
            "None" if name is None else self._region(name, read[name])
            for name in self._inputs(fused, ops)
        ]
        attrs = {**fused.attrs, "in_place": self.in_place}
        call = f"{self._name('n', FUSED[fused.kind](attrs))}({', '.join(arguments)})"
        # Each result in a variable of its own: a tuple would keep all of them as long as one is used.
        variables = [self._fresh() if name in made else "_" for name in fused.outputs]
        while variables[-1] == "_":
            variables.pop()
        self.lines.append(f"{', '.join(variables)}, *_ = {call}")
        self.lines.append("del _")
        for name, variable in zip(fused.outputs, variables, strict=False):
            if name is not None and name in made:
                self.made.setdefault(name, []).append((made[name], variable))

    # -- the function -----------------------------------------------------------------------------------

    def _fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def _name(self, letter: str, thing: Any) -> str:
        name = f"{letter}{len(self.names)}"
        self.names[name] = thing
        return name

    def _code(self, name: str, results: Sequence[tuple[Piece, str]]) -> Code:
        body = _released([*self.lines, f"return ({''.join(var + ', ' for _, var in results)})"])
        kinds: dict[str, list[Piece]] = {"graded": [], "weight": [], "plain": []}
        for piece in self.arguments:
            kinds[self.kind(piece)].append(piece)
        ordered = [self.arguments[piece] for pieces in kinds.values() for piece in pieces]
        source = f"def {name}({', '.join(ordered)}):\n    " + "\n    ".join(body)
        exec(compile(source, f"<{name} of device {self.device}>", "exec"), self.names)
        return Code(
            self.names[name],
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


def _by_samples(op: Op, box: Box) -> bool:
    return all(
        dim.name == "n" or (lo, hi) == (0, dim.size)
        for dim, lo, hi in zip(op.space.dims, box.lo, box.hi, strict=True)
    )
