"""The iteration space of one operator, parsed from its index notation.

    y[n c h w] += x[n k h*2+R-1 w*2+Q-1] * w[c k R Q] + b[c]

The iteration space has one dimension for each letter: n c h w k R Q here. A box of it is a part of the
operator's work. The words of this file:

- A small letter is a dimension that can be split; a CAPITAL is never split (a window, a dimension to sort).
- `=` computes each output element independently; `+=` sums over the dimensions that the output lacks (the
  *reduced* dimensions), so a box with a part of them gives a *partial* result. `moments=` (mean and
  variance) and `lse=` (log-sum-exp) reduce too, but combine partial results differently (ops/norm.py).
- `*` joins the factors of a product (a contraction); `+ b[c]` is an operand that is added once, by the box
  that contains the origin of the reduced dimensions; `,` separates operands of anything else.
- An *access* is an operand with its indices, such as x[n k].
- The *region* of an operand is the box of its elements that a box of the iteration space reads. The halo of
  a convolution is the part of the region that neighbouring tiles read too (`Space.regions`).

Regions, partial sums, dimension kinds, FLOPs and numbers of elements are all derived here and nowhere else.
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
        """Whether the dimension may never be split."""
        return self.name.isupper()


class Access(NamedTuple):
    """An operand with its indices: how it is read, and how it enters the result."""

    indices: tuple[Index, ...]
    is_factor: bool  # a factor of a product
    added_once: bool  # added by one box only, as a bias is


class Work(NamedTuple):
    """The work of a box."""

    flops: int  # floating-point operations
    elements: tuple[int, ...]  # read or written: for each operand, then for each output


class Space(NamedTuple):
    """The iteration space of one operator; made by `parse_space`."""

    dims: tuple[Dim, ...]
    outputs: tuple[tuple[int, ...], ...]  # for each output, its dimensions as positions in `dims`
    operands: tuple[Access, ...]
    combine: str  # how partial results are combined: "" | "sum" | "moments" | "lse"
    flops_per_point: int  # for operators that are not products

    @property
    def full(self) -> Box:
        """The box of the whole iteration space."""
        return Box.full([d.size for d in self.dims])

    @property
    def reduced_dims(self) -> tuple[int, ...]:
        """The dimensions that the outputs lack: those that are summed over."""
        output_dims = {d for output in self.outputs for d in output}
        return tuple(i for i in range(len(self.dims)) if i not in output_dims)

    @property
    def is_product(self) -> bool:
        """Whether the operator is a contraction of two or more factors."""
        return sum(a.is_factor for a in self.operands) > 1

    def dim_kinds(self, is_parameter: Sequence[bool]) -> str:
        """Returns one letter for each dimension, which says how it can be split.

        S: sample, P: indexes a parameter, R: reduced (summed over), A: any other attribute of the output,
        `-`: cannot be split. is_parameter: for each operand, whether it is a parameter.
        """
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
        """Returns, for each output, the box of elements to which a box of the iteration space adds."""
        return tuple(
            Box(tuple(box.lo[d] for d in output), tuple(box.hi[d] for d in output))
            for output in self.outputs
        )

    def is_partial(self, box: Box) -> bool:
        """Returns whether the box lacks a part of a reduced dimension, so that its result is partial."""
        return any(box.hi[d] - box.lo[d] < self.dims[d].size for d in self.reduced_dims)

    def regions(self, box: Box) -> tuple[Box | None, ...]:
        """Returns, for each operand, the smallest region that the box needs.

        The region is None if the box needs no element of the operand.
        """
        ranges = tuple(zip(box.lo, box.hi, strict=True))
        at_origin = all(box.lo[d] == 0 for d in self.reduced_dims)
        regions = [
            None if access.added_once and not at_origin else _region(access, ranges)
            for access in self.operands
        ]
        if any(a.is_factor and r is None for a, r in zip(self.operands, regions, strict=True)):
            # One factor is entirely padding: the product is zero, so no factor is needed.
            return tuple(
                None if a.is_factor else r for a, r in zip(self.operands, regions, strict=True)
            )
        return tuple(regions)

    def spans(self, operand: int, box: Box) -> tuple[Range, ...]:
        """Returns, for each dimension of an operand, the range of indices over the box, with padding."""
        ranges = tuple(zip(box.lo, box.hi, strict=True))
        return tuple(index.span(ranges) for index in self.operands[operand].indices)

    def forward_work(self, box: Box) -> Work:
        """Returns the work of the forward computation of a box."""
        per_point = 2 if self.is_product else self.flops_per_point
        return Work(per_point * box.volume, self._elements(box))

    def backward_work(self, box: Box, operand: int) -> Work:
        """Returns the work of computing the gradient of one operand, derived from the same notation.

        A product reads the output's gradient and the other factors; any other operator reads the output's
        gradient and all operands. The result has the shape of the operand's region.
        """
        access, elements = self.operands[operand], list(self._elements(box))
        if access.added_once:
            # The gradient of a bias reads no operand, only the output's gradient.
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
        """Returns the number of elements that a box reads of each operand, then writes of each output."""
        regions = [*self.regions(box), *self.output_boxes(box)]
        return tuple(r.volume if r else 0 for r in regions)


def _region(access: Access, ranges: Sequence[Range]) -> Box | None:
    """Returns the region of one operand for a box with these ranges; None if it has no elements."""
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
    """Parses index notation, given the shapes of the operands and of the outputs.

    integers: values of attributes (`s0`), and sizes of dimensions that no shape determines (`R`).
    tables: by name, tables that the notation uses like functions, where no formula says which elements are
    read: in `x[n c window(h)]`, entry h of `window` is the range of rows that the output row h reads. An
    adaptive pool from 7 rows to 3 has `window` = ((0, 3), (2, 5), (4, 7)).

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
    """Does what `parse_space` says, with arguments that can be cached."""
    assign = _ASSIGN.search(notation)
    assert assign is not None, f"no assignment in '{notation}'"
    # tokens: the index expressions of one output or operand, such as n and c//cg*kg+k
    output_tokens = [m[2].split() for m in _ACCESS.finditer(notation[: assign.start()])]
    matches = list(_ACCESS.finditer(notation, assign.end()))  # one for each operand
    operand_tokens = [m[2].split() for m in matches]
    counts = (len(output_tokens), len(matches))
    assert counts == (len(outputs), len(shapes)), f"'{notation}' for {shapes}"
    integer_of = dict(integers)
    sizes = _sizes(output_tokens, operand_tokens, shapes, outputs, integer_of)
    dims = list(sizes)
    operands = []
    for number, (match, shape) in enumerate(zip(matches, shapes, strict=True)):
        # before: the text between the operand before and this one; after: all text after this one
        before = notation[assign.end() if not number else matches[number - 1].end() : match.start()]
        after = notation[match.end() :].lstrip()
        added_once = "+" in before
        is_factor = not added_once and ("*" in before or (after.startswith("*") and not number))
        tokens = operand_tokens[number]
        assert len(tokens) == len(shape), f"{match[0]} in '{notation}' for shape {shape}"
        indices = tuple(
            parse_index(token, dims, extent, integer_of, dict(tables))
            for token, extent in zip(tokens, shape, strict=True)
        )
        operands.append(Access(indices, is_factor, added_once))
    combine = {"": "", "+": "sum"}.get(assign[1], assign[1])
    return Space(
        tuple(Dim(name, size) for name, size in sizes.items()),
        tuple(tuple(dims.index(token) for token in tokens) for tokens in output_tokens),
        tuple(operands),
        combine,
        flops_per_point,
    )


def _sizes(
    output_tokens: Sequence[Sequence[str]],
    operand_tokens: Sequence[Sequence[str]],
    shapes: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    integer_of: Mapping[str, int],
) -> dict[str, int]:
    """Returns the size of each dimension.

    The size comes from the outputs, else from operands indexed by the dimension, else from integer_of.

    output_tokens, operand_tokens: the index expressions of each output and of each operand. shapes: of the
    operands. outputs: shapes of the outputs. integer_of: `integers` of `parse_space`.
    """
    sizes: dict[str, int] = {}
    for tokens, shape in [
        *zip(output_tokens, outputs, strict=True),
        *zip(operand_tokens, shapes, strict=True),
    ]:
        for token, size in zip(tokens, shape, strict=True):
            if re.fullmatch(r"[A-Za-z]", token) and token not in integer_of:
                sizes.setdefault(token, size)
    operand_text = " ".join(token for tokens in operand_tokens for token in tokens)
    for name, size in integer_of.items():  # one letter (R): a dimension; several (s0): an attribute
        if len(name) == 1 and re.search(rf"\b{name}\b", operand_text):
            sizes[name] = size
    return sizes
