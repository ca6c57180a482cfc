"""The iteration space of one operator, read off its line of index notation.

    y[n c h w] += x[n k h*2+R-1 w*2+Q-1] * w[c k R Q] + b[c]

- A small letter is a dimension that can be split; a CAPITAL is always taken whole (windows,
  sorted dimensions).
- `=` computes each output element on its own; `+=` sums over the dimensions that the output
  lacks, so a box that holds only a part of them gives a *partial* result. `moments=` and `lse=`
  combine in their own way (ops/norm.py).
- `*` joins the factors of a product (a contraction); `+ b[c]` is an operand that is added once,
  by the box that holds the origin of the summed dimensions; `,` separates operands of anything
  else.

Regions, partial sums, dimension kinds, operations and bytes are all derived here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from raddle.graph.box import Box
from raddle.graph.index import Index, Range, parse_index

_ACCESS = re.compile(r"(\w+)\[([^\]]*)\]")
_ASSIGN = re.compile(r"(\w*|\+)=")


class Dim(NamedTuple):
    """One dimension of the iteration space."""

    name: str
    size: int

    @property
    def unsplittable(self) -> bool:
        """Whether it may never be split."""
        return self.name.isupper()


class Access(NamedTuple):
    """How an operand is indexed. A `factor` is multiplied, a `once` operand is added by one box only."""

    indices: tuple[Index, ...]
    is_factor: bool
    added_once: bool


class Work(NamedTuple):
    """Floating-point operations, and elements read and written by operand (inputs, then outputs)."""

    flops: int
    elements: tuple[int, ...]


class Space(NamedTuple):
    """Dimensions, operands and outputs of one operator; see `parse_space`."""

    dims: tuple[Dim, ...]
    outputs: tuple[tuple[int, ...], ...]  # per output and dimension, the iteration dimension
    operands: tuple[Access, ...]
    combine: str  # "" | "sum" | "moments" | "lse"
    flops_per_point: int  # operations a point, where it is no product

    @property
    def full(self) -> Box:
        return Box.full([d.size for d in self.dims])

    @property
    def reduced_dims(self) -> tuple[int, ...]:
        """Dimensions that the output lacks."""
        output_dims = {d for output in self.outputs for d in output}
        return tuple(i for i in range(len(self.dims)) if i not in output_dims)

    @property
    def is_product(self) -> bool:
        return sum(a.is_factor for a in self.operands) > 1

    def dim_kinds(self, is_parameter: Sequence[bool]) -> str:
        """A letter a dimension: Sample, Attribute, Parameter, Reduction, or `-` where it is whole."""
        letters = []
        reduced_dims = self.reduced_dims
        in_parameter = {
            term.dim
            for access, parameter in zip(self.operands, is_parameter, strict=True)
            for index in access.indices
            for term in index.terms
            if parameter
        }
        for i, dim in enumerate(self.dims):
            if dim.unsplittable or dim.size == 1:
                letters.append("-")
            elif i in reduced_dims:
                letters.append("R")
            elif dim.name == "n":
                letters.append("S")
            else:
                letters.append("P" if i in in_parameter else "A")
        return "".join(letters)

    def output_boxes(self, box: Box) -> tuple[Box, ...]:
        """The box of each output that a box of the iteration space contributes to."""
        return tuple(
            Box(tuple(box.lo[d] for d in output), tuple(box.hi[d] for d in output))
            for output in self.outputs
        )

    def is_partial(self, box: Box) -> bool:
        """Whether the box leaves out a part of a summed dimension, so that others must be added."""
        return any(box.hi[d] - box.lo[d] < self.dims[d].size for d in self.reduced_dims)

    def regions(self, box: Box) -> tuple[Box | None, ...]:
        """The smallest region of each operand that the box needs; None where it needs nothing of it."""
        ranges = tuple(zip(box.lo, box.hi, strict=True))
        at_origin = all(box.lo[d] == 0 for d in self.reduced_dims)
        regions = [
            None if access.added_once and not at_origin else _region(access, ranges)
            for access in self.operands
        ]
        if any(a.is_factor and r is None for a, r in zip(self.operands, regions, strict=True)):
            # One factor lies wholly in the padding: the product is zero, whatever the others are.
            return tuple(
                None if a.is_factor else r for a, r in zip(self.operands, regions, strict=True)
            )
        return tuple(regions)

    def spans(self, operand: int, box: Box) -> tuple[Range, ...]:
        """The ranges of an operand that the box touches, padding included."""
        ranges = tuple(zip(box.lo, box.hi, strict=True))
        return tuple(index.span(ranges) for index in self.operands[operand].indices)

    def forward_work(self, box: Box) -> Work:
        """Operations and elements of the forward computation of a box."""
        per_point = 2 if self.is_product else self.flops_per_point
        return Work(per_point * box.volume, self._elements(box))

    def backward_work(self, box: Box, operand: int) -> Work:
        """Operations and elements of the gradient of one operand, by transposition of the line.

        A product reads the output's gradient and the other factors; anything else the output's
        gradient and its operands. The result has the operand's region.
        """
        access, elements = self.operands[operand], list(self._elements(box))
        if access.added_once:
            flops = 0
            elements[: len(self.operands)] = [0] * len(self.operands)
        elif self.is_product:
            flops = 2 * box.volume
        else:
            flops = self.flops_per_point * box.volume
        region = self.regions(box)[operand]
        elements[operand] = region.volume if region else 0
        return Work(flops, tuple(elements))

    def _elements(self, box: Box) -> tuple[int, ...]:
        regions = [*self.regions(box), *self.output_boxes(box)]
        return tuple(r.volume if r else 0 for r in regions)


def _region(access: Access, ranges: Sequence[Range]) -> Box | None:
    operand_ranges = [index.range(ranges) for index in access.indices]
    if any(lo >= hi for lo, hi in operand_ranges):
        return None
    return Box(tuple(lo for lo, _ in operand_ranges), tuple(hi for _, hi in operand_ranges))


def parse_space(
    notation: str,
    shapes: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    integers: Mapping[str, int] | None = None,
    tables: Mapping[str, Sequence[Range]] | None = None,
    flops_per_point: int = 1,
) -> Space:
    """Reads a line of notation, given the shapes of its operands and outputs.

    `names` holds integers for attributes (`s0`) and for dimensions that no shape tells (`R`).

    >>> s = parse_space("y[n c] += x[n k] * w[c k] + b[c]", [(8, 5), (6, 5), (6,)], [(8, 6)])
    >>> s.regions(Box((0, 2, 0), (4, 4, 5)))
    ([0:4 0:5], [2:4 0:5], [2:4])
    """
    return _parse_space(
        notation,
        tuple(tuple(s) for s in shapes),
        tuple(tuple(s) for s in outputs),
        tuple(sorted((integers or {}).items())),
        tuple((k, tuple(v)) for k, v in sorted((tables or {}).items())),
        flops_per_point,
    )


@cache
def _parse_space(
    notation: str,
    shapes: tuple[tuple[int, ...], ...],
    outputs: tuple[tuple[int, ...], ...],
    integers: tuple[tuple[str, int], ...],
    tables: tuple[tuple[str, tuple[Range, ...]], ...],
    flops_per_point: int,
) -> Space:
    assign = _ASSIGN.search(notation)
    assert assign is not None, f"no assignment in '{notation}'"
    left = [m[2].split() for m in _ACCESS.finditer(notation[: assign.start()])]
    right = list(_ACCESS.finditer(notation, assign.end()))
    assert (len(left), len(right)) == (len(outputs), len(shapes)), f"'{notation}' for {shapes}"
    integer_of = dict(integers)
    sizes = _sizes(left, [m[2].split() for m in right], shapes, outputs, integer_of)
    dims = list(sizes)
    operands = []
    for number, (match, shape) in enumerate(zip(right, shapes, strict=True)):
        before = notation[assign.end() if not number else right[number - 1].end() : match.start()]
        after = notation[match.end() :].lstrip()
        once = "+" in before
        factor = not once and ("*" in before or (after.startswith("*") and not number))
        tokens = match[2].split()
        assert len(tokens) == len(shape), f"{match[0]} in '{notation}' for shape {shape}"
        indices = tuple(
            parse_index(token, dims, extent, integer_of, dict(tables))
            for token, extent in zip(tokens, shape, strict=True)
        )
        operands.append(Access(indices, factor, once))
    combine = {"": "", "+": "sum"}.get(assign[1], assign[1])
    return Space(
        tuple(Dim(name, size) for name, size in sizes.items()),
        tuple(tuple(dims.index(token) for token in tokens) for tokens in left),
        tuple(operands),
        combine,
        flops_per_point,
    )


def _sizes(
    left: Sequence[Sequence[str]],
    right: Sequence[Sequence[str]],
    shapes: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    integer_of: Mapping[str, int],
) -> dict[str, int]:
    """Dimension sizes: from the outputs, then from operands indexed plainly, then as given."""
    sizes: dict[str, int] = {}
    for tokens, shape in [*zip(left, outputs, strict=True), *zip(right, shapes, strict=True)]:
        for token, size in zip(tokens, shape, strict=True):
            if re.fullmatch(r"[A-Za-z]", token) and token not in integer_of:
                sizes.setdefault(token, size)
    operand_text = " ".join(token for tokens in right for token in tokens)
    for name, size in integer_of.items():
        if len(name) == 1 and re.search(rf"\b{name}\b", operand_text):
            sizes[name] = size
    return sizes
