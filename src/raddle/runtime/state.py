"""Saves and loads the state of a trainer: parameters, buffers and optimizer state.

This file knows which boxes this rank holds; checkpoint.py gathers the boxes of all ranks into full tensors
with the module's own names, and cuts full tensors into boxes. A SlotSource names a box of a tensor and the
slot that holds it. A region is a box of a parameter with the devices that hold it; a slice is a range of
rows of a region that is synchronised separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.program.program import Program
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.checkpoint import (
    cut_optimizer,
    cut_state,
    gather_groups,
    gather_optimizer,
    gather_state,
    options_of,
)
from raddle.runtime.executor import Executor
from raddle.runtime.materialize import materialize_boxes
from raddle.runtime.setup import Setup

PERSISTENT_ROLES = ("parameter", "buffer", "frozen")  # roles of slots that hold a module's tensors
T = TypeVar("T")


def initialise_slots(setup: Setup, executor: Executor, seed: int) -> None:
    """Fills an executor's slots from the module; a module on meta is initialised layer by layer."""
    sources = [s for s in executor.rank_actions.sources if s.role in PERSISTENT_ROLES]
    tensors = dict(
        _pair_with_sources(
            sources, materialize_boxes(setup.model, _boxes_by_name(sources), seed=seed)
        )
    )
    executor.load(lambda s: tensors[s])


def owners_of(program: Program) -> dict[tuple[str, Box], int]:
    """Returns (parameter, box) -> the one rank that saves the box and counts it in norms.

    Boxes are slices or shards if the program has them, else regions.
    """
    all_regions = {**program.regions, **program.updated_pieces}
    return {
        (name, region.box): region.first_updater
        for name, regions in all_regions.items()
        for region in regions
    }


class TrainingState:
    """Saves and loads one rank's part of the state; all ranks call the methods together."""

    def __init__(
        self, setup: Setup, executor: Executor, optimizer: torch.optim.Optimizer, *, seed: int = 0
    ) -> None:
        self.setup, self.executor, self.optimizer = setup, executor, optimizer
        self._owners = owners_of(setup.program)
        self._untrained_parameters = self._copy_untrained(seed)

    def _copy_untrained(self, seed: int) -> dict[str, Tensor]:
        """Returns copies of parameters that are frozen or unused, on rank 0 only, for checkpoints."""
        regions = self.setup.program.regions
        boxes = {
            v.name: [Box.full(v.shape)]
            for v in self.setup.graph.values.values()
            if v.role == "frozen" or (v.role == "parameter" and v.name not in regions)
        }
        if self.setup.rank != 0 or not boxes:
            return {}
        pieces = materialize_boxes(self.setup.model, boxes, seed=seed)
        return {name: tensor for name, (tensor,) in pieces.items()}

    # -- the module ------------------------------------------------------------------------------------

    def module_state(self, *, persistent_only: bool = True) -> dict[str, Tensor]:
        """Returns full parameters and buffers under the module's own names, on every rank's CPU.

        persistent_only: without the buffers that a state_dict leaves out.
        """
        self.executor.synchronize()
        aliases, shapes = self.setup.graph.aliases, self._shapes(persistent_only=persistent_only)
        return gather_state(self.setup.exchange, self.owned_pieces(), shapes, aliases)

    def load_module_state(self, state: Mapping[str, Tensor]) -> None:
        """Loads parameters and buffers from a state of the module, from any plan or from plain PyTorch."""
        executor, setup = self.executor, self.setup
        executor.synchronize()
        shapes = self._shapes()
        sources = [
            s
            for s in executor.rank_actions.sources
            if s.role in PERSISTENT_ROLES and s.name in shapes
        ]
        boxes, aliases = _boxes_by_name(sources), setup.graph.aliases
        pieces = cut_state(state, boxes, shapes, aliases, device=setup.place)
        # First name of a tensor -> its name in the state
        given_names = {aliases.get(name, name): name for name in state}
        self._untrained_parameters = {
            name: state[name if name in state else given_names[name]].detach().cpu().clone()
            for name in self._untrained_parameters
        }
        with torch.no_grad():
            for source, tensor in _pair_with_sources(sources, pieces):
                if source.role == "parameter":
                    executor.parameter_updater.masters.write(source.slot, tensor)
                else:  # buffers and frozen parameters are replaced, never written
                    dtype = executor.slots[source.slot].dtype
                    executor.slots[source.slot] = tensor.to(dtype, copy=True)
        if executor.parameter_sync is not None:
            executor.parameter_sync.refresh()
        executor.synchronize()  # no rank may send gradients before all ranks have loaded

    def owned_pieces(self) -> dict[str, list[tuple[Box, Tensor]]]:
        """Returns the boxes that this rank saves: name -> (box, tensor) pairs. One rank saves a box."""
        # sliced: parameters whose slices or shards are updated on different ranks
        executor, sliced = self.executor, self.setup.program.updated_pieces
        pieces: dict[str, list[tuple[Box, Tensor]]] = {}
        unsliced = [(s, p) for s, p in executor.parameters() if s.name not in sliced]
        updated = executor.updated_parameters() if sliced else []
        for source, parameter in (*unsliced, *updated):
            if self.owns(source):
                pieces.setdefault(source.name, []).append((source.box, parameter.detach()))
        for name, tensor in self._untrained_parameters.items():
            pieces[name] = [(Box.full(tensor.shape), tensor)]
        for source in executor.rank_actions.sources_with_role("buffer"):
            tensor = executor.slots[source.slot]
            # current_buffers: buffer -> its boxes that this rank keeps up to date and saves
            saved_boxes = executor.rank_actions.current_buffers.get(source.name, [])
            if source.name not in self.setup.graph.updates:
                saved_boxes = [source.box] if self.setup.rank == 0 else []
            pieces[source.name] = [
                (box, tensor[box.slices_within(source.box)]) for box in saved_boxes
            ]
        return pieces

    def owns(self, source: SlotSource) -> bool:
        """Returns whether this rank is the one that saves and counts this box of a parameter."""
        return self.setup.rank == self._owners[source.name, source.box]

    def _shapes(self, *, persistent_only: bool = True) -> dict[str, tuple[int, ...]]:
        """Returns shapes of all parameters and buffers that a saved state contains."""
        # state_dict leaves out buffers that are registered with persistent=False.
        saved_names = self.setup.model.state_dict().keys()
        values = [v for v in self.setup.graph.values.values() if v.role in PERSISTENT_ROLES]
        return {v.name: v.shape for v in values if not persistent_only or v.name in saved_names}

    # -- the optimizer ---------------------------------------------------------------------------------

    def optimizer_state(self) -> dict[str, Any]:
        """Returns {"state": parameter name -> full entries, "param_groups": groups of names}."""
        self.executor.synchronize()
        entries: dict[str, list[tuple[Box, dict[str, Any]]]] = {}
        for source, parameter in self.executor.updated_parameters():
            if self.owns(source):
                state = dict(self.optimizer.state.get(parameter, {}))
                entries.setdefault(source.name, []).append((source.box, state))
        groups = gather_groups(self.setup.exchange, self._groups())
        order = {name: i for i, name in enumerate(n for names in self.group_names() for n in names)}
        for group in groups:
            group["params"].sort(key=lambda name: order.get(name, 0))
        return {
            "state": gather_optimizer(self.setup.exchange, entries, self._trained_shapes()),
            "param_groups": groups,
        }

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Loads the result of `optimizer_state`, with this plan or another one."""
        self.executor.synchronize()
        updated, optimizer = self.executor.updated_parameters(), self.optimizer
        sources = [source for source, _ in updated]
        parameter_of = {(source.name, source.box): p for source, p in updated}
        shapes, place = self._trained_shapes(), self.setup.place
        pieces = cut_optimizer(state["state"], _boxes_by_name(sources), shapes, device=place)
        options = [
            options_of(state["param_groups"], index, names)
            for index, (_, names) in enumerate(self._groups())
        ]
        if missing_option := next((k for k in optimizer.defaults if k not in options[0]), None):
            raise InputError(
                f"the optimizer's state is not of {type(optimizer).__name__}: it has no "
                f"'{missing_option}'; use the optimizer that it was saved from."
            )
        for source, entries in _pair_with_sources(sources, pieces):
            optimizer.state[parameter_of[source.name, source.box]] = entries
        for group, group_options in zip(optimizer.param_groups, options, strict=True):
            group.update(group_options)
        self.executor.synchronize()

    def group_names(self) -> list[list[str]]:
        """Returns the names of the parameters in each group of the optimizer, on all ranks together."""
        names = [g.get("param_names", []) for g in self.optimizer.param_groups]
        trained = self._trained_shapes()
        return [[n for n in dict.fromkeys(group) if n in trained] for group in names]

    def _trained_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns shapes of the parameters that are trained."""
        values = self.setup.graph.values
        return {name: values[name].shape for name in self.setup.program.regions}

    def _groups(self) -> list[tuple[dict[str, Any], list[str]]]:
        """Returns the options of this rank's parameter groups, each with the names of its parameters."""
        names = {
            id(parameter): source.name for source, parameter in self.executor.updated_parameters()
        }
        return [
            (
                {k: v for k, v in group.items() if k not in ("params", "param_names")},
                list(dict.fromkeys(names[id(p)] for p in group["params"] if id(p) in names)),
            )
            for group in self.optimizer.param_groups
        ]


def _boxes_by_name(sources: Iterable[SlotSource]) -> dict[str, list[Box]]:
    """Returns name of a tensor -> the boxes of its sources."""
    boxes: dict[str, list[Box]] = {}
    for source in sources:
        boxes.setdefault(source.name, []).append(source.box)
    return boxes


def _pair_with_sources(
    sources: Iterable[SlotSource], by_name: Mapping[str, Sequence[T]]
) -> Iterator[tuple[SlotSource, T]]:
    """Yields each source with its entry. by_name: name -> entries in the order of the sources."""
    iterators = {name: iter(entries) for name, entries in by_name.items()}
    return ((source, next(iterators[source.name])) for source in sources)
