"""The sync kinds: how copies of a parameter are synchronised. `plan.sync` names one, with options.

A holder is a device that has a copy of a parameter, or of a part of it. A server is the device that updates
a parameter or a slice of it: holders push gradients to it, and pull the result.

    allreduce           gradients are all-reduced in buckets, and all holders update; allreduce:bf16, :fp16
    sharded             ZeRO-2: the rows of a parameter are sharded; every holder is the server of its shard
    sharded:parameters  ZeRO-3: the same, and a holder keeps only its shard: others pull it before each use
    sharded,group=N     HSDP: rows are sharded within groups of N holders, and replicated across groups;
                        also sharded:parameters,group=N
    ps                  parameter servers, by default on all holders: ps:distributed,sliced,greedy,ssp=2
    p3                  ps with slices, the most urgent first, and no barrier: p3:slice=50000
    p3:collective       the same slices without servers: each is all-reduced, and updated on all holders
    server, server:D    whole parameters are updated on their first holder, or on device D, in program order

All but p3 and sharded:parameters have the option `after`, as in allreduce:after or ps:sliced,after: a
device sends no gradient before its whole backward has ended, as in systems of 2018.

A new kind is a file here with a `KIND`, and an entry in `KINDS` below. Other code asks for a property of
`Sync`, such as `zero3`, not for a certain kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from raddle.errors import InputError, quote
from raddle.plans.sync.allreduce import KIND as ALLREDUCE
from raddle.plans.sync.in_order_server import KIND as IN_ORDER_SERVER
from raddle.plans.sync.p3 import KIND as P3
from raddle.plans.sync.servers import KIND as SERVERS
from raddle.plans.sync.sharded import KIND as SHARDED
from raddle.plans.sync.sync_kind import Sync, UnreadableOption

if TYPE_CHECKING:
    import torch

__all__ = ["DEFAULT", "EXAMPLES", "KINDS", "Sync", "check_wire_dtype", "read_sync", "split_sync"]

KINDS = {kind.name: kind for kind in (ALLREDUCE, SHARDED, SERVERS, P3, IN_ORDER_SERVER)}
EXAMPLES = ", ".join(example for kind in KINDS.values() for example in kind.examples)
DEFAULT = "allreduce"

_files = {
    "sync_kind",
    "server_assignment",
    *(kind.parse.__module__.rpartition(".")[2] for kind in KINDS.values()),
}
for _file in iter_modules(__path__):
    if _file.name not in _files:
        raise ImportError(f"plans/sync has {_file.name}.py, whose kind is not among the KINDS")


@lru_cache(maxsize=1024)
def read_sync(text: str) -> Sync:
    """Parses `plan.sync`, such as "ps:sliced,greedy". Raises InputError if it is not a sync kind."""
    name, options = split_sync(text)
    try:
        if name not in KINDS:
            raise UnreadableOption(name)
        for option in options:
            if not any(re.fullmatch(pattern, option) for pattern in KINDS[name].option_patterns):
                raise UnreadableOption(option)
        return KINDS[name].parse(options)
    except UnreadableOption as error:
        detail = "" if error.option == text else f", which has {quote(error.option)}"
        raise InputError(f"sync is {quote(text)}{detail}: choose as in {EXAMPLES}.") from None


def split_sync(text: str) -> tuple[str, list[str]]:
    """Returns the name of a sync kind and its options.

    The name ends at the first colon or comma: "sharded,group=8" is read as "sharded:group=8" is.
    """
    name = re.split("[:,]", text, maxsplit=1)[0]
    return name, [word for word in text[len(name) + 1 :].split(",") if word]


def check_wire_dtype(text: str, dtypes: Mapping[str, torch.dtype]) -> None:
    """Raises InputError if a parameter's gradient cannot be sent in the compressed type of a sync kind.

    dtypes: by parameter.
    """
    narrow = read_sync(text).wire_dtype
    for name, dtype in dtypes.items() if narrow else ():
        if dtype.is_complex:
            raise InputError(
                f"sync is {quote(text)}, but {quote(name)} is {str(dtype).removeprefix('torch.')}, which "
                f"{narrow} cannot hold: use sync allreduce."
            )
