"""Converts between the state of the plain module and the boxes of it that ranks hold.

Saving gathers the boxes of all ranks and assembles full tensors; loading cuts full tensors into a rank's
boxes. So any plan can load what any other plan, or the plain module on one device, has saved. A piece is a
box of a tensor, with the tensor of its elements. A tied tensor has several names; the first one identifies
it.

>>> left, right = Box((0,), (2,)), Box((2,), (5,))
>>> assemble((5,), torch.int64, [(right, torch.tensor([2, 3, 4])), (left, torch.tensor([0, 1]))])
tensor([0, 1, 2, 3, 4])
>>> cut(torch.arange(5), [left, right])
[tensor([0, 1]), tensor([2, 3, 4])]
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raddle.errors import InputError
from raddle.graph.box import Box, covers
from raddle.graph.interpret import Pieces

# Name -> shape, of all parameters (and buffers); the same on every rank
Shapes = Mapping[str, Sequence[int]]
Exchange = Callable[[Any], list[Any]]  # all-gather: takes this rank's object, returns those of all
Entries = dict[str, Any]  # an optimizer's state of one parameter, or options of a parameter group
Group = tuple[Entries, Sequence[str]]  # options (lr, betas, ...), and names of its parameters
EXCHANGE_ELEMENTS = 2**20  # small tensors are exchanged together until they have so many elements


# -- tensors -----------------------------------------------------------------------------------------


def assemble(
    shape: Sequence[int], dtype: torch.dtype, pieces: Iterable[tuple[Box, Tensor]]
) -> Tensor:
    """Returns a tensor on the CPU from pieces that cover it; where pieces overlap, they must be equal."""
    pieces, full = list(pieces), Box.full(shape)
    assert covers((box for box, _ in pieces), full), (
        f"{[b for b, _ in pieces]} leave gaps in {full}"
    )
    result = torch.empty(full.shape, dtype=dtype, device="cpu")
    for box, tensor in pieces:
        result[box.slices_within(full)].copy_(tensor.detach())
    return result


def cut(tensor: Tensor, boxes: Iterable[Box], device: str | torch.device = "cpu") -> list[Tensor]:
    """Returns copies of boxes of a tensor; each copy has its own memory, on `device`."""
    full = Box.full(tensor.shape)
    pieces = []
    for box in boxes:
        assert full.contains(box), f"{box} is not in a tensor of shape {full.shape}"
        piece = torch.empty(box.shape, dtype=tensor.dtype, device=device)
        pieces.append(piece.copy_(tensor.detach()[box.slices_within(full)]))
    return pieces


# -- parameters and buffers --------------------------------------------------------------------------


def gather_state(
    exchange: Exchange,
    pieces: Mapping[str, Pieces],
    shapes: Shapes,
    aliases: Mapping[str, str],
    *,
    keep: bool = True,
) -> dict[str, Tensor]:
    """Returns full parameters and buffers, on the CPU, under all names that the module has for them.

    All ranks call it with the same shapes. One large tensor, or several small ones, are exchanged at a
    time. pieces: this rank's boxes with their tensors, by name. If several ranks hold a box, only one
    should give it, as copies cost time and may be out of date: the server, or the first device that holds
    it. aliases: other names of tied tensors -> first name; keep: False where the result is not needed.
    """
    state: dict[str, Tensor] = {}
    for name, pieces_by_rank in _exchange_by_name(exchange, pieces, shapes):
        by_box: dict[Box, Tensor] = {}
        for rank_pieces in pieces_by_rank:
            for box, tensor in rank_pieces:
                by_box.setdefault(box, tensor)  # if several ranks give a box, the first one counts
        parts: Pieces = list(by_box.items())
        assert parts, f"no rank holds a piece of '{name}'"
        full = assemble(shapes[name], parts[0][1].dtype, parts)
        if keep:
            state[name] = full
    return state | {alias: state[name] for alias, name in aliases.items() if name in state}


def _exchange_by_name(
    exchange: Exchange, local: Mapping[str, Any], shapes: Shapes
) -> Iterator[tuple[str, list[Any]]]:
    """Yields each name with all ranks' entries for it. Small tensors share one exchange to save time."""
    names, elements = list[str](), 0
    for count, (name, shape) in enumerate(shapes.items(), 1):
        names.append(name)
        elements += math.prod(shape)
        if elements < EXCHANGE_ELEMENTS and count < len(shapes):
            continue
        by_rank = exchange({name: local[name] for name in names if name in local})
        yield from ((name, [rank.get(name, []) for rank in by_rank]) for name in names)
        names, elements = [], 0


def cut_state(
    state: Mapping[str, Tensor],
    boxes: Mapping[str, Sequence[Box]],
    shapes: Shapes,
    aliases: Mapping[str, str],
    *,
    device: str | torch.device = "cpu",
) -> dict[str, list[Tensor]]:
    """Returns name -> a rank's boxes of a full state. Raises InputError if names or shapes do not fit.

    The state must have every name; for a tied tensor, one of its names is enough.
    """
    named = {aliases.get(name, name): tensor for name, tensor in state.items()}
    named |= {name: tensor for name, tensor in state.items() if name in shapes}
    wrong_shapes = [
        f"'{name}' is {actual} instead of {tuple(shapes[first_name])}"
        for name, tensor in state.items()
        if (first_name := aliases.get(name, name)) in shapes
        and (actual := _shape(tensor)) != tuple(shapes[first_name])
    ]
    _raise_if_different("the state", named, shapes, wrong_shapes)
    return {name: cut(named[name], rank_boxes, device) for name, rank_boxes in boxes.items()}


# -- optimizers --------------------------------------------------------------------------------------


def gather_optimizer(
    exchange: Exchange,
    entries: Mapping[str, Sequence[tuple[Box, Entries]]],
    shapes: Shapes,
    *,
    keep: bool = True,
) -> dict[str, Entries]:
    """Returns the full optimizer state: parameter -> entries such as "exp_avg" (a full tensor) and "step".

    entries: `optimizer.state[tensor]` for each box of this rank; the other arguments are as for
    `gather_state`.
    """
    result: dict[str, Entries] = {}
    for name, entries_by_rank in _exchange_by_name(exchange, entries, shapes):
        shape, parts = shapes[name], [p for of_rank in entries_by_rank for p in of_rank]
        keys = dict.fromkeys(key for _, box_entries in parts for key in box_entries)
        full = {
            key: _assemble_entry(
                name, key, shape, [(box, saved[key]) for box, saved in parts if key in saved]
            )
            for key in keys
        }  # fmt: skip
        if keep:
            result[name] = full
    return result


def _assemble_entry(
    name: str, key: str, shape: Sequence[int], parts: Sequence[tuple[Box, Any]]
) -> Any:
    """Returns one full entry of a parameter's optimizer state, from the entries of all its boxes."""
    first = parts[0][1]
    if not isinstance(first, Tensor) or first.ndim == 0:
        return first.detach().to("cpu", copy=True) if isinstance(first, Tensor) else first
    for box, tensor in parts:
        if tuple(tensor.shape) != box.shape:
            raise InputError(
                f"the optimizer keeps '{key}' of shape {tuple(tensor.shape)} for the box {box} of "
                f"'{name}': only what has the shape of its parameter, or is a scalar, can be saved."
            )
    return assemble(shape, first.dtype, parts)


def cut_optimizer(
    entries: Mapping[str, Entries],
    boxes: Mapping[str, Sequence[Box]],
    shapes: Shapes,
    *,
    device: str | torch.device = "cpu",
) -> dict[str, list[Entries]]:
    """Returns name -> `optimizer.state[tensor]` for each box of a rank, cut from a full optimizer state.

    Each box gets its own copies, also of scalars. As in torch, the entry "step" stays on the CPU.
    """
    wrong_shapes = [
        f"'{key}' of '{name}' is {_shape(entry)} instead of {tuple(shapes[name])}"
        for name, saved in entries.items()
        for key, entry in saved.items()
        if name in shapes and isinstance(entry, Tensor) and entry.ndim
        and _shape(entry) != tuple(shapes[name])
    ]  # fmt: skip
    _raise_if_different("the optimizer's state", entries, shapes, wrong_shapes)
    return {
        name: [
            {key: _cut_entry(key, entry, box, device) for key, entry in entries[name].items()}
            for box in rank_boxes
        ]
        for name, rank_boxes in boxes.items()
    }


def _cut_entry(key: str, entry: Any, box: Box, device: str | torch.device) -> Any:
    """Returns a box's part of one optimizer entry; scalars are copied."""
    if not isinstance(entry, Tensor):
        return entry
    if entry.ndim:
        return cut(entry, [box], device)[0]
    return entry.detach().to("cpu" if key == "step" else device, copy=True)


# -- parameter groups --------------------------------------------------------------------------------


def gather_groups(exchange: Exchange, groups: Sequence[Group]) -> list[Entries]:
    """Returns the parameter groups as one optimizer of all parameters would have them; "params" are names.

    Ranks hold different parameters, so the same group may have different parameters, or none, on a rank.
    """
    # (index of the group, its options, names of its parameters as an ordered set)
    groups_seen: list[tuple[int, Entries, dict[str, None]]] = []
    by_rank = exchange(
        [({k: _copy(v) for k, v in options.items()}, list(names)) for options, names in groups]
    )
    for rank_groups in by_rank:
        for index, (options, names) in enumerate(rank_groups):
            same = [
                group_names
                for i, o, group_names in groups_seen
                if names and i == index and _equal(o, options)
            ]
            if same:
                same[0].update(dict.fromkeys(names))
            elif names:
                groups_seen.append((index, options, dict.fromkeys(names)))
    all_names = [name for _, _, names in groups_seen for name in names]
    if twice := next((name for name in all_names if all_names.count(name) > 1), None):
        raise InputError(
            f"the optimizer's options for '{twice}' differ from tile to tile, so no checkpoint can hold "
            "them: give all tiles of a parameter the same options."
        )
    groups_seen.sort(key=lambda group: group[0])
    if not groups_seen:  # nothing is trained
        return [{**options, "params": []} for options, _ in by_rank[0]]
    return [{**options, "params": list(names)} for _, options, names in groups_seen]


def options_of(saved: Sequence[Mapping[str, Any]], index: int, names: Sequence[str]) -> Entries:
    """Returns the saved options for a rank's parameter group with this index and these parameters.

    A group without parameters takes the options of the saved group with the same index.
    """
    group_names = set(names)
    matching = [group for group in saved if group_names & set(group["params"])]
    if not names and saved:
        matching = [saved[min(index, len(saved) - 1)]]
    missing = group_names.difference(*(group["params"] for group in saved))
    if missing or not matching:  # always raises: the names in `missing`, or the group, are missing
        _raise_if_different(
            "the optimizer's state", {}, dict.fromkeys(sorted(missing), ()), ["a group is missing"]
        )
    options = [{k: v for k, v in g.items() if k not in ("params", "param_names")} for g in matching]
    if not all(_equal(options[0], other) for other in options):
        raise InputError(
            f"the parameters {', '.join(sorted(group_names)[:3])} are in one group of this optimizer, but "
            "had different options when they were saved: make the same groups as then."
        )
    return {key: _copy(value) for key, value in options[0].items()}


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):  # for example, a learning rate given as a tensor
        return value.detach().to("cpu", copy=True)
    return copy.deepcopy(value)


def _equal(one: Entries, other: Entries) -> bool:
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            return bool(torch.equal(torch.as_tensor(a), torch.as_tensor(b)))
        return bool(a == b)

    return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())


# -- errors ------------------------------------------------------------------------------------------


def _shape(value: Any) -> tuple[int, ...] | str:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _raise_if_different(
    what: str, names: Mapping[str, Any], shapes: Shapes, wrong_shapes: Sequence[str]
) -> None:
    """Raises InputError if names are missing or unexpected, or shapes wrong; lists up to three problems.

    what: begins the message. names: those that were given, as keys; shapes: those that are needed.
    """
    problems = [f"'{name}' is missing" for name in shapes if name not in names]
    problems += [f"'{name}' is unexpected" for name in names if name not in shapes]
    problems += wrong_shapes
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InputError(
            f"{what} does not fit the model: {', '.join(problems[:3])}{more}; "
            "load one that was saved from this model."
        )
