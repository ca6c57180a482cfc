"""The range of a dimension that each device has, for all configurations of a group of operators at once.

A group (groups.py) is a set of operators that are split together along letters: names of dimensions. One
letter splits a dimension into few different ranges, so each range is stored once. For h of size 8:

    degree of h      1      2           4
    ranges           0:8    0:4  4:8    0:2  2:4  4:6  6:8
    number           0      1    2      3    4    5    6

The degree is the number of parts. The array `index` [x, d] has the number of the range that device d has in
configuration x.
"""

# x: configuration of a group, d: position in the list of sampled devices: all, or some if the cluster has
# more than 64 (transfers.sampled_devices), a: axis (position of a letter in Group.letters), q: degree
# (number of parts of a letter)

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from raddle.graph.index import Index
from raddle.searches.configurations import Configuration

Array = np.ndarray
Cuts = tuple[int, ...]  # cut points of a dimension, with 0 and its size


class Lattice:
    """All configurations of a group as arrays; groups with the same possible degrees share a lattice.

    A configuration uses the first devices of the cluster, its parts in row-major order: its devices form a
    grid with one axis for each letter, and a device has a coordinate along each axis.
    """

    def __init__(self, degrees: Sequence[tuple[int, ...]], devices: Array) -> None:
        self.devices = devices  # [d]: indices of the sampled devices in the cluster
        self.degrees = degrees  # [x]: number of parts of each letter
        self.configurations = [Configuration(x, tuple(range(math.prod(x)))) for x in degrees]
        self.parts = np.array(degrees, np.int64).reshape(len(degrees), -1)  # [x, a]
        self.total = self.parts.prod(axis=1)  # [x]: number of devices that the configuration uses
        # [x, a]: product of the degrees from axis a on
        later = np.cumprod(self.parts[:, ::-1], axis=1)[:, ::-1]
        # [x, a]: distance of the devices of two neighbouring parts of the letter
        self.strides = np.concatenate([later[:, 1:], np.ones((len(degrees), 1), np.int64)], axis=1)
        self.options = [np.unique(column) for column in self.parts.T]  # [a]: all degrees, ascending
        self.used = devices[None, :] < self.total[:, None]  # [x, d]: whether the device has a part

    def coordinate(self, a: int, devices: Array) -> Array:
        """Returns [x, d]: the number of the part of letter `a` that a device has."""
        return np.asarray(devices[None, :] // self.strides[:, a, None] % self.parts[:, a, None])

    @cached_property
    def coordinates(self) -> list[Array]:
        """For each axis, `coordinate` of the sampled devices."""
        return [self.coordinate(a, self.devices) for a in range(self.parts.shape[1])]

    @cached_property
    def range_index(self) -> list[Array]:
        """For each axis, [x, d]: the number of the device's range, counted through all degrees."""
        indices = []
        for a, options in enumerate(self.options):
            # by degree, the number of its first range
            first = np.concatenate([[0], np.cumsum(options)])
            begin = first[np.searchsorted(options, self.parts[:, a])]
            indices.append(begin[:, None] + self.coordinates[a])
        return indices


@dataclass(eq=False)
class Ranges:
    """The ranges of one dimension of an operator or a value. Equal ranges are one object.

    "[x, d], or one number" below means: one number if the dimension is never split.
    """

    lo: Array  # start of each range
    hi: Array  # end of each range
    index: Array | None = None  # [x, d]: number of the device's range; None: one range for all
    axes: tuple[int, ...] = ()  # the axes that split the dimension
    # Degrees above 1 of its axis that split other dimensions but leave this one whole, for example because
    # its parts would overlap (member_ranges.py).
    unsplit_degrees: frozenset[int] = frozenset()

    def span(self, x: int, d: int) -> tuple[int, int]:
        """Returns the start and end of the range of one device in one configuration."""
        k = 0 if self.index is None else self.index[x, d]
        return int(self.lo[k]), int(self.hi[k])

    @cached_property
    def end(self) -> int:
        """The largest end of a range."""
        return int(self.hi.max())

    @cached_property
    def has_empty(self) -> bool:
        """Whether there are empty ranges; a tile may read nothing but padding."""
        return bool((self.hi <= self.lo).any())

    @cached_property
    def sizes(self) -> Array:
        """[x, d], or one number: elements in the range."""
        sizes = np.maximum(self.hi - self.lo, 0).astype(np.float64)
        return sizes[0] if self.index is None else sizes[self.index]  # type: ignore[no-any-return]

    @cached_property
    def nonempty(self) -> Array:
        """[x, d], or one number: whether the range is not empty."""
        return self.sizes > 0

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Starts and ends of the ranges, each [d, x] or one number."""
        lo, hi = self.lo.astype(np.float64), self.hi.astype(np.float64)
        if self.index is None:
            return lo[0], hi[0]
        transposed = self.index.T
        return lo[transposed], hi[transposed]


def single_range(lo: int, hi: int) -> Ranges:
    """Returns the ranges of a dimension that is never split."""
    return Ranges(np.array([lo]), np.array([hi]))


def split_ranges(lattice: Lattice, a: int, size: int, cuts: Sequence[Cuts]) -> Ranges:
    """Returns the ranges of a dimension of this size that axis `a` splits.

    cuts: for each degree of the axis (lattice.options[a]) its cut points; () if that degree leaves the
    dimension whole.
    """
    lo: list[int] = []
    hi: list[int] = []
    options = lattice.options[a].tolist()
    for q, points in zip(options, cuts, strict=True):
        lo += points[:-1] or [0] * q
        hi += points[1:] or [size] * q
    unsplit_degrees = frozenset(
        q for q, points in zip(options, cuts, strict=True) if q > 1 and not points
    )
    if len(unsplit_degrees) == sum(q > 1 for q in options):
        return single_range(0, size)
    return Ranges(np.array(lo), np.array(hi), lattice.range_index[a], (a,), unsplit_degrees)


def ranges_read(index: Index, dims: Sequence[Ranges], cache: dict[Any, Any]) -> Ranges:
    """Returns the ranges of an operand's dimension that are read.

    index: the expression over the operator's dimensions, such as h*2+R, that reads the operand's dimension.
    dims: the ranges of the operator's dimensions. cache: earlier results; height and width often share one.
    """
    dims_read = sorted({term.dim for term in index.terms})
    box = [(0, 1)] * len(dims)
    for d in dims_read:
        box[d] = (int(dims[d].lo[0]), int(dims[d].hi[0]))
    split_dims = [d for d in dims_read if dims[d].index is not None]
    if not split_dims:
        return single_range(*index.range(box))
    range_index, spans = _combine([dims[d] for d in split_dims])
    # The key has the index expression with its dimensions renumbered, so that h and w can be equal. t[1:]:
    # the fields of a term after its dimension; index[1:]: the fields of the index after its terms.
    terms = tuple((dims_read.index(t.dim), *t[1:]) for t in index.terms)
    whole_ranges = tuple(box[d] for d in dims_read if d not in split_dims)
    key = (
        terms,
        *index[1:],
        whole_ranges,
        tuple(dims_read.index(d) for d in split_dims),
        tuple(spans),
    )
    if key not in cache:
        spans_read = []
        for combination in spans:
            for d, span in zip(split_dims, combination, strict=True):
                box[d] = span
            spans_read.append(index.range(box))
        cache[key] = spans_read[0] if len(set(spans_read)) == 1 else np.array(spans_read).T
    lo, hi = cache[key]
    if isinstance(lo, int):
        return single_range(lo, hi)
    return Ranges(lo, hi, range_index, tuple(sorted({a for d in split_dims for a in dims[d].axes})))


def _combine(dims: Sequence[Ranges]) -> tuple[Array, list[tuple[tuple[int, int], ...]]]:
    """Returns [x, d], the number of each device's combination of ranges, and the list of combinations."""
    spans = [list(zip(r.lo.tolist(), r.hi.tolist(), strict=True)) for r in dims]
    numbers = [r.index for r in dims if r.index is not None]
    if len(dims) == 1:
        return numbers[0], [(span,) for span in spans[0]]
    lengths = [len(dim_spans) for dim_spans in spans]
    flat = np.ravel_multi_index(numbers, lengths)
    used, inverse = np.unique(flat, return_inverse=True)
    each = zip(*np.unravel_index(used, lengths), strict=True)
    combinations = [
        tuple(spans_of_dim[k] for spans_of_dim, k in zip(spans, ks, strict=True)) for ks in each
    ]
    return inverse.reshape(flat.shape), combinations


def combination_ids(ranges: Sequence[Ranges], shape: tuple[int, ...]) -> Array:
    """Returns [x, d]: the same number for devices that have the same ranges in a configuration."""
    ids = np.zeros(shape, np.int64)
    for r in ranges:
        if r.index is not None:
            ids = ids * len(r.lo) + r.index
    return ids


def volume(ranges: tuple[Ranges, ...], cache: dict[Any, Any]) -> Array | float:
    """Returns the elements of the box that the ranges make; cached.

    The result is an array [x, d], or one number if nothing is split.
    """
    elements = cache.get(ranges)
    if elements is None:
        fixed = math.prod(float(r.sizes) for r in ranges if r.index is None)
        split = tuple(sorted((r for r in ranges if r.index is not None), key=id))
        if not split:
            elements = fixed
        elif fixed != 1 or split != ranges:
            elements = fixed * volume(split, cache)
        else:
            elements = split[0].sizes
            for r in split[1:]:
                elements = elements * r.sizes
        cache[ranges] = elements
    return elements
