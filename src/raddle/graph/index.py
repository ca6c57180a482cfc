"""Index expressions of operands: one expression for each dimension, and the range that a box needs of it.

    h*2+R-1            affine: a strided, padded window of extent R
    c//4*8+k           floor division: the channels of a group
    b//7%7             one of the dimensions that a reshape merged into b
    (h+1-R)/2          exact division: read only if nothing remains (transposed convolution)
    window(h)          entry h of a table of ranges (adaptive pools, interpolation, reflection)
    :                  the whole dimension, for every box

Letters are dimensions of the operator's iteration space (space.py). Here, a `box` of it is a list of
ranges, one for each dimension. Every expression is a sum of terms `coef * (dim // div % mod)` plus an
offset, so its range over a box has a closed form. The range is exact: it is clipped to the tensor, and no
smaller range contains all points read. So halos of windows, with strides, padding and dilation, are worked
out here (`Index.range`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Range = tuple[int, int]  # half-open: (0, 3) is 0, 1, 2


class Term(NamedTuple):
    """One term of an index expression: coef * (dim // div % mod)."""

    dim: int  # position of the dimension in the iteration space
    coef: int = 1
    div: int = 1
    mod: int = 0  # 0: no modulo

    def values(self, box: Sequence[Range]) -> Range:
        """Returns the first and last value of dim // div % mod over the box (both included)."""
        lo, hi = box[self.dim]
        first, last = lo // self.div, (hi - 1) // self.div
        if not self.mod:
            return first, last
        if first // self.mod == last // self.mod:
            return first % self.mod, last % self.mod
        return 0, self.mod - 1  # the values wrap around, so both ends occur


class Index(NamedTuple):
    """The index of one dimension of an operand: (sum of terms + offset) / den, or a table of ranges."""

    terms: tuple[Term, ...]
    offset: int = 0
    den: int = 1  # denominator of an exact division
    extent: int = 0  # the size of the operand's dimension
    table: tuple[Range, ...] = ()  # if not empty: the range read at each value of terms[0].dim

    @property
    def plain_dim(self) -> int | None:
        """The iteration dimension, if the expression is just that dimension; else None."""
        if len(self.terms) != 1 or self.offset or self.den != 1 or self.table:
            return None
        dim, coef, div, mod = self.terms[0]
        return dim if coef == 1 and div == 1 and not mod else None

    def span(self, box: Sequence[Range]) -> Range:
        """Returns the range of index values over a box, not clipped to the tensor: it includes padding."""
        if self.table:
            lo, hi = box[self.terms[0].dim] if self.terms else (0, 1)
            ranges = self.table[lo:hi]
            return min(a for a, _ in ranges), max(b for _, b in ranges)
        low = high = self.offset
        for term in self.terms:
            first, last = term.values(box)
            low += term.coef * (first if term.coef > 0 else last)
            high += term.coef * (last if term.coef > 0 else first)
        return -(-low // self.den), high // self.den + 1

    def range(self, box: Sequence[Range]) -> Range:
        """Returns the smallest range in the tensor that has every element read; (0, 0) if none is read."""
        low, high = self.span(box)
        if self.den == 1 and low >= 0 and high <= self.extent:
            return low, high
        if self.table:
            return (low, high) if low < high else (0, 0)
        return self._clipped(box)

    def _clipped(self, box: Sequence[Range]) -> Range:
        """Returns the range clipped to the tensor.

        Goes through all combinations of values of the terms but the first, which has a closed form.
        """
        # an index without terms is a constant; Term(0, 0) adds 0 to it
        main, *others = self.terms or (Term(0, 0),)
        first, last = main.values(box) if main.coef else (0, 0)
        coef = main.coef or 1
        low, high = self.extent, 0
        for addends in itertools.product(*(self._multiples(t, box) for t in others)):
            base = self.offset + sum(addends)
            # the index values v with v * den = coef * a + base, first <= a <= last, 0 <= v < extent
            v_low = max(0, -(-(coef * first + base) // self.den))
            v_high = min(self.extent - 1, (coef * last + base) // self.den)
            # a_low, a_high: the first and the last of these index values that some a gives
            if coef == 1:
                a_low, a_high = v_low, v_high
            else:  # den is 1: where the notation divides (transposed convolution), the first coef is 1
                a_low = -(-(v_low - base) // coef) * coef + base
                a_high = (v_high - base) // coef * coef + base
            if a_low <= a_high:
                low, high = min(low, a_low), max(high, a_high + 1)
        return (low, high) if low < high else (0, 0)

    @staticmethod
    def _multiples(term: Term, box: Sequence[Range]) -> Sequence[int]:
        first, last = term.values(box)
        return [term.coef * v for v in range(first, last + 1)]


# In this order: window(h); (h+1-R)/2; each term with its sign; in a term, each factor with the operator
# before it
_TABLE = re.compile(r"([a-z_]+\d*)\((\w+)\)")
_EXACT = re.compile(r"\((.*)\)/(\w+)")
_SIGNED = re.compile(r"([+-]?)([^+-]+)")
_FACTOR = re.compile(r"(\*|//|%)?(\w+)")


def parse_index(
    text: str,
    dims: Sequence[str],
    extent: int,
    integers: Mapping[str, int],
    tables: Mapping[str, tuple[Range, ...]],
) -> Index:
    """Parses one expression.

    dims: names of the iteration dimensions. extent: size of the operand's dimension. integers: values of
    attributes such as s0 or p1. tables: by name; entry i of a table is the range that is read at the
    value i of the dimension in brackets: `window(h)` reads the range tables["window"][h].
    """
    if text == ":":
        return Index((), extent=extent, table=((0, extent),))
    if match := _TABLE.fullmatch(text):
        return Index((Term(dims.index(match[2])),), extent=extent, table=tables[match[1]])
    den = 1
    if match := _EXACT.fullmatch(text):
        text, den = match[1], _integer(match[2], integers)
    terms, offset = [], 0
    for sign, body in _SIGNED.findall(text):
        # a dim of -1 means: the term has no dimension, it is a number
        dim, coef, div, mod = -1, -1 if sign == "-" else 1, 1, 0
        for operator, atom in _FACTOR.findall(body):
            if atom in dims:
                dim = dims.index(atom)
            elif operator == "//":
                div = _integer(atom, integers)
            elif operator == "%":
                mod = _integer(atom, integers)
            else:
                coef *= _integer(atom, integers)
        if dim < 0:
            offset += coef
        else:
            terms.append(Term(dim, coef, div, mod))
    return Index(tuple(terms), offset, den, extent)


def _integer(atom: str, integers: Mapping[str, int]) -> int:
    return int(atom) if atom.isdigit() else integers[atom]
