"""How copies of a parameter agree: what `plan.sync` says, and which device is the home of which rows.

    allreduce          summed in buckets on all holders, which update their copies; allreduce:bf16, :fp16
    sharded            every holder is the home of an equal share of the rows
    sharded:parameters the same, and only homes keep rows: all others pull them before each use
    ps                 homes are servers, spread over the holders: ps:distributed,sliced,greedy,ssp=2
    p3                 slices of ps, the most urgent first, without a barrier: p3:slice=50000
    p3:collective      the same slices without homes: each is all-reduced, and updated on all holders
    server, server:D   ps of whole parameters on their first holder, or on device D

Words of `ps`: a device (one server there), `one` (on device 0) or `distributed`; `whole`, `sliced` or
`slice=N` elements; `round-robin` or `greedy`; `sync`, `async` or `ssp=S`: no worker is more than S steps
ahead of the slowest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from raddle.errors import InputError, quote

if TYPE_CHECKING:
    import torch

SLICE = 250_000  # elements: fills a link of 1 Gbit/s with two of them under way
COMPRESSED = {"bf16": "bfloat16", "fp16": "float16"}
NUMBER = "[0-9]{1,9}"
_HOMES = (NUMBER, "one", "distributed", "round-robin", "greedy")
# Every kind, with the words that may follow it, as patterns: nothing else is read. Tests draw from it.
WORDS = {
    "allreduce": tuple(COMPRESSED),
    "sharded": ("parameters",),
    "ps": (*_HOMES, "whole", "sliced", f"slice={NUMBER}", "sync", "async", f"ssp={NUMBER}"),
    "p3": (*_HOMES, f"slice={NUMBER}", "collective"),
    "server": (NUMBER,),
}
EXAMPLES = (
    "allreduce, allreduce:bf16, sharded, sharded:parameters, ps, ps:sliced,greedy, ps:one,async, "
    "ps:ssp=2, p3, p3:collective"
)


@dataclass(frozen=True)
class Sync:
    """What a text says; homes are chosen by `assign` unless there is one `server`."""

    kind: str  # allreduce, sharded, ps or p3
    server: int | None = None  # the device that is the home of all
    assign: str = "round-robin"  # or greedy, or first: the first holder
    slice: int = 0  # elements; 0: whole parameters
    staleness: int | None = 0  # steps; None: no bound
    compressed: str = ""  # the type in which gradients travel
    inline: bool = False  # a server that devices send to and receive from in the program's order
    divided: bool = False  # rows are at their homes alone, and elsewhere while they are used
    collective: bool = False  # slices have no homes: all-reduced, in one order of all ranks

    @property
    def homes(self) -> bool:
        """Whether parameters are updated at a home, not on every holder."""
        return self.kind != "allreduce" and not self.collective

    @property
    def sliced(self) -> bool:
        """Whether slices are summed and updated one by one, while others compute."""
        return self.kind != "allreduce" and not self.inline

    @property
    def synchronous(self) -> bool:
        return self.staleness == 0


@lru_cache(maxsize=1024)
def read_sync(text: str) -> Sync:
    """Raises InputError for what is not a way to synchronise."""
    kind, _, rest = text.partition(":")
    words = [w for w in rest.split(",") if w]
    if kind not in WORDS:
        raise _wrong(text, kind)
    for word in words:
        if not any(re.fullmatch(known, word) for known in WORDS[kind]):
            raise _wrong(text, word)
    if kind == "allreduce":
        return Sync(kind, compressed=COMPRESSED[words[-1]] if words else "")
    if kind in ("server", "sharded") and len(words) > 1:
        raise _wrong(text, words[1])
    if kind == "server":
        chosen = {"server": int(words[0])} if words else {"assign": "first"}
        return Sync("ps", inline=True, **chosen)
    if kind == "sharded":
        return Sync(kind, divided=bool(words))
    return _sliced(text, kind, words)


def _sliced(text: str, kind: str, words: Sequence[str]) -> Sync:
    """Servers, or P3."""
    fields: dict[str, object] = {}
    if kind == "p3":
        fields = {"slice": SLICE, "assign": "greedy"}
    collective = "collective" in words
    if collective:
        fields = {"slice": SLICE, "collective": True}
    for word in words:
        if collective and not word.startswith("slice="):
            if word != "collective":  # all others say where homes are
                raise _wrong(text, word)
            continue
        fields.update(_word(text, word))
    return Sync(kind, **fields)  # type: ignore[arg-type]


def check_width(text: str, dtypes: Mapping[str, torch.dtype]) -> None:
    """Raises InputError for parameters whose gradients cannot travel in a narrower type."""
    narrow = read_sync(text).compressed
    for name, dtype in dtypes.items() if narrow else ():
        if dtype.is_complex:
            raise InputError(
                f"sync is {quote(text)}, but {quote(name)} is {str(dtype).removeprefix('torch.')}, which "
                f"{narrow} cannot hold: use sync allreduce."
            )


def _word(text: str, word: str) -> dict[str, object]:
    name, _, number = word.partition("=")
    if name == "slice" and not int(number):
        raise _wrong(text, word)
    if number:
        return {"slice" if name == "slice" else "staleness": int(number)}
    if word.isdigit():
        return {"server": int(word)}
    known: dict[str, dict[str, object]] = {
        "one": {"server": 0},
        "distributed": {"server": None},
        "round-robin": {"assign": word},
        "greedy": {"assign": word},
        "whole": {"slice": 0},
        "sliced": {"slice": SLICE},
        "sync": {"staleness": 0},
        "async": {"staleness": None},
    }
    return known[word]


def _wrong(text: str, word: str) -> InputError:
    strange = "" if word == text else f", which has {quote(word)}"
    return InputError(f"sync is {quote(text)}{strange}: choose as in {EXAMPLES}.")


def rows_of(shape: Sequence[int], sync: Sync, holders: int) -> list[tuple[int, int]]:
    """Slices of a tensor as ranges of rows, each of about `sync.slice` elements; one if it has no rows."""
    if not shape or not shape[0]:
        return [(0, 1)] if not shape else []
    rows, elements = shape[0], 1
    for extent in shape[1:]:
        elements *= extent
    if sync.kind == "sharded":
        pieces = min(holders, rows)
    elif sync.slice:
        pieces = min(rows, -(-rows * elements // sync.slice))
    else:
        pieces = 1
    cuts = [rows * i // pieces for i in range(pieces + 1)]
    return [(a, b) for a, b in pairwise(cuts)]


def homes_of(sizes: Sequence[int], holders: Sequence[Sequence[int]], sync: Sync) -> list[int]:
    """By slice, its home: one of its holders, or the server; -1 where all holders update it.

    Round-robin takes turns, greedy gives the largest that is left to the server that has least.
    """
    if sync.collective:
        return [-1] * len(sizes)
    if sync.server is not None:
        return [sync.server] * len(sizes)
    if sync.assign == "first":
        return [group[0] for group in holders]
    homes = [-1] * len(sizes)
    if sync.assign == "greedy":
        load: dict[int, int] = {}
        for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
            homes[i] = min(holders[i], key=lambda d: (load.get(d, 0), d))
            load[homes[i]] = load.get(homes[i], 0) + sizes[i]
        return homes
    turns: dict[tuple[int, ...], int] = {}
    for i, group in enumerate(holders):
        turn = turns.get(tuple(group), 0)
        homes[i] = group[turn % len(group)]
        turns[tuple(group)] = turn + 1
    return homes


def loads(sizes: Sequence[int], homes: Sequence[int]) -> dict[int, int]:
    """By server, the elements that it is the home of."""
    found: dict[int, int] = {}
    for size, home in zip(sizes, homes, strict=True):
        found[home] = found.get(home, 0) + size
    return found
