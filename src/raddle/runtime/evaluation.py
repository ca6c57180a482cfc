"""Runs the forward of a module in evaluation mode, with a plan that is derived from the training plan.

`Trainer.evaluate` and `Trainer.predict` call it. The graph of evaluation differs from that of training (no
dropout, for example), so the module is captured again and the training plan's tiles are transferred.

A SlotSource names a box of a parameter, buffer or input, and the slot (numbered place) that it fills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from raddle.errors import InputError
from raddle.graph.arguments import Path, leaves, map_leaves
from raddle.graph.box import Box
from raddle.graph.step_module import OutputModule, StepModule, TensorMark
from raddle.plans.adapt import adapt
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.runtime.batches import BatchCutter
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.capture_batch import capture_evaluation
from raddle.runtime.checkpoint import assemble, gather_state
from raddle.runtime.executor import Executor
from raddle.runtime.setup import Setup
from raddle.runtime.state import TrainingState
from raddle.runtime.step_result import StepResult


class Evaluation:
    """Runs a step in evaluation mode, with the parameters and buffers of the training executor.

    step: the module with an example batch, and with its loss if there is one. Every batch that is run later
    must have the shapes of the example.
    """

    def __init__(
        self, setup: Setup, training: Executor, state: TrainingState, step: StepModule
    ) -> None:
        self.setup, self.training, self.state = setup, training, state
        self.kind, self.shapes = type(step), _shapes(step.batch)
        letters = {name: setup.graph.values[name].letters for name in setup.graph.inputs}
        self.graph = capture_evaluation(step, letters)
        if self.graph.loss is None and not isinstance(step, OutputModule):
            raise InputError(
                "the module gives no loss: to evaluate it, pass loss=... to parallelize."
            )
        # adapt: transfers the tiles of the training plan to the operators of this graph
        program = lower(self.graph, adapt(setup.plan, setup.graph, self.graph), train=False)
        check(program)
        self.executor = setup.make_executor(program)
        self.batch_cutter = BatchCutter(program, self.executor.rank_actions)

    def fits(self, step: StepModule) -> bool:
        """Returns whether a step is of the kind and has the shapes that this evaluation was made for."""
        return type(step) is self.kind and _shapes(step.batch) == self.shapes

    def run(self, batch: Any, step: int) -> StepResult:
        """Returns the loss and the metrics of a batch. step: the number of training steps so far."""
        tensors = self.batch_cutter.tensors(batch)
        read_input = self.batch_cutter.reader([tensors], self.setup.rank, self.setup.place)
        self.executor.load(self._current_state())
        loss = self.executor.run(read_input, step)
        if self.training.rank_actions.gathered:  # ZeRO-3: free the parameters gathered for this run
            self.executor.store.drop(
                s.slot for s in self.executor.rank_actions.sources_with_role("parameter")
            )
        return StepResult(loss, self.executor.losses.metrics.by_step[0])

    def output_of(self, batch: Any, step: int) -> Any:
        """Returns what the module returns for a batch, with full tensors on the CPU of every rank."""
        self.run(batch, step)
        tensors = iter(self._outputs())
        return map_leaves(
            lambda _, leaf: next(tensors) if leaf is TensorMark else leaf, self.graph.output_tree
        )

    def _current_state(self) -> Callable[[SlotSource], Tensor]:
        """Returns a function that returns the current tensor of a slot's box.

        Parameters come from this rank; buffers and ZeRO-3 parameters are gathered from all ranks.
        """
        setup, training = self.setup, self.training
        local_pieces: dict[str, list[tuple[Box, Tensor]]] = {}
        for source in training.rank_actions.sources:
            if source.role in ("parameter", "frozen"):
                tensor = training.slots[source.slot]
                local_pieces.setdefault(source.name, []).append((source.box, tensor.detach()))
        buffers = {v.name: v.shape for v in setup.graph.buffers}
        program = setup.program
        zero3_parameters = program.updated_pieces if program.gathers_before_use else {}
        shapes = buffers | {name: setup.graph.values[name].shape for name in zero3_parameters}
        # owned_pieces: name -> boxes with tensors, only those that no other rank gives
        pieces = {n: p for n, p in self.state.owned_pieces().items() if n in shapes}
        assembled = gather_state(setup.exchange, pieces, shapes, {})

        def find(source: SlotSource) -> Tensor:
            if source.name in assembled:
                return assembled[source.name][
                    source.box.slices_within(Box.full(shapes[source.name]))
                ]
            return _region(local_pieces[source.name], source.box)

        return find

    def _outputs(self) -> list[Tensor]:
        """Returns the outputs of the module, assembled from the boxes of all ranks."""
        results = []
        for name in self.graph.outputs:
            box_slots = self.executor.rank_actions.outputs.get(name, [])
            all_pieces: dict[Box, Tensor] = {}
            local_pieces = [(box, self.executor.slots[slot].cpu()) for box, slot in box_slots]
            for pieces in self.setup.exchange(local_pieces):
                all_pieces.update(pieces)
            value = self.graph.values[name]
            results.append(assemble(value.shape, value.dtype, list(all_pieces.items())))
        return results


def _shapes(batch: Any) -> list[tuple[Path, Any]]:
    """Returns the paths of a batch's leaves, with the shapes of tensors."""
    return [
        (path, tuple(leaf.shape) if isinstance(leaf, Tensor) else None)
        for path, leaf in leaves(batch)
    ]


def _region(pieces: Sequence[tuple[Box, Tensor]], box: Box) -> Tensor:
    """Returns the tensor of a box, cut or assembled from pieces."""
    for held_box, tensor in pieces:
        if held_box.contains(box):
            return tensor[box.slices_within(held_box)]
    result = pieces[0][1].new_zeros(box.shape)
    for held_box, tensor in pieces:
        common = held_box & box
        if not common.empty:
            result[common.slices_within(box)] = tensor[common.slices_within(held_box)]
    return result
