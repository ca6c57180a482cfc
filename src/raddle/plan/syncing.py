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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from raddle.errors import InputError, quote

SLICE = 250_000  # elements: fills a link of 1 Gbit/s with two of them under way
KINDS = ("allreduce", "sharded", "ps", "p3", "server")
EXAMPLES = (
    "allreduce, allreduce:bf16, sharded, sharded:parameters, ps, ps:sliced,greedy, ps:one,async, "
    "ps:ssp=2, p3, p3:collective"
)
COMPRESSED = {"bf16": "bfloat16", "fp16": "float16"}


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


def read_sync(text: str) -> Sync:
    """Raises InputError for what is not a way to synchronise."""
    kind, _, rest = text.partition(":")
    words = [w for w in rest.split(",") if w]
    if kind == "allreduce":
        chosen = Sync(kind)
        for word in words:
            if word not in COMPRESSED:
                raise _wrong(text, word)
            chosen = Sync(kind, compressed=COMPRESSED[word])
        return chosen
    if kind == "server" and not words:
        return Sync("ps", assign="first", inline=True)
    if kind == "server" and len(words) == 1 and words[0].isdigit():
        return Sync("ps", server=int(words[0]), inline=True)
    if kind == "sharded" and words in ([], ["parameters"]):
        return Sync(kind, divided=bool(words))
    if kind not in ("ps", "p3"):
        raise _wrong(text, kind)
    fields: dict[str, object] = {}
    if kind == "p3":
        fields = {"slice": SLICE, "assign": "greedy"}
    if kind == "p3" and "collective" in words:
        fields = {"slice": SLICE, "collective": True}
    for word in words:
        if fields.get("collective") and not word.startswith("slice="):
            if word != "collective":  # all others say where homes are
                raise _wrong(text, word)
            continue
        fields.update(_word(text, word, p3=kind == "p3"))
    return Sync(kind, **fields)  # type: ignore[arg-type]


def _word(text: str, word: str, *, p3: bool) -> dict[str, object]:
    name, _, number = word.partition("=")
    if name == "slice" and number.isdigit() and int(number):
        return {"slice": int(number)}
    if word in ("round-robin", "greedy"):
        return {"assign": word}
    if word == "one" or word.isdigit():
        return {"server": 0 if word == "one" else int(word)}
    if word == "distributed":
        return {"server": None}
    known: dict[str, dict[str, object]] = {
        "whole": {"slice": 0},
        "sliced": {"slice": SLICE},
        "sync": {"staleness": 0},
        "async": {"staleness": None},
    }
    if not p3 and word in known:
        return known[word]
    if not p3 and name == "ssp" and number.isdigit():
        return {"staleness": int(number)}
    raise _wrong(text, word)


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
