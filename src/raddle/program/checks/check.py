"""Checks a program before it runs, and refuses an incorrect one with the reason.

The program is replayed without tensors: each instruction changes which boxes each device holds.
Activations, partial results and their gradients are replayed by micro-batch (replay.py), parameters over
all steps (parameters.py), and buffers here. An instruction may use the content of a message only if it
waits for the message. Where the schedule has one action `after` another, the program has to enforce it
(schedule_waits.py), and all devices have to enter collectives in the same order (collective_order.py). A
program that passes cannot deadlock. The simulator starts an instruction when its dependencies (`deps`) have
ended, while a run executes the list in order. If a program passes, both use the same values.

A docstring of a check says what must hold; the check raises InputError if it does not.
A variant is a graph of one micro-batch size, with its tiles on certain devices; all micro-batches of this
size that run on these devices use it. Most programs have one (program.py). The key of an instruction names
its step, micro-batch and variant; its number is its index in the program. A cell of a merge is a box of an
operator's output, with the devices that merge it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from raddle.errors import InputError
from raddle.graph.box import Box, subtract
from raddle.program.checks.after_backward import check_after_backward
from raddle.program.checks.collective_order import check_collective_order
from raddle.program.checks.parameters import check_parameters
from raddle.program.checks.replay import check_micro_batches
from raddle.program.checks.schedule_waits import check_waits
from raddle.program.checks.variant_facts import VariantFacts
from raddle.program.describe import BoxesByDevice, describe
from raddle.program.message_kind import MessageKind
from raddle.program.program import Gather, Merge, Move, Program, Reduce, Run, Update
from raddle.program.replicated_loss import replicated_loss_ops


def check(program: Program) -> None:
    """Raises InputError with the reason if the program must not run."""
    _check_order(program)
    _check_devices(program)
    held = check_parameters(program)  # by parameter and device, boxes
    _check_turns(program)
    check_after_backward(program)
    all_facts = [VariantFacts(program, held, variant) for variant in program.variants]
    for facts in all_facts:
        _check_replicated_loss(facts)
    check_micro_batches(program, all_facts)
    _check_buffers(program, all_facts)
    check_waits(program)
    check_collective_order(program)


def _check_order(program: Program) -> None:
    """Steps, micro-batches, variants and message kinds exist; dependencies come earlier in the list."""
    steps, micro_batches = program.plan.steps, program.plan.microbatches
    for number, instruction in enumerate(program.instructions):
        key = instruction.key
        known_variant = 0 <= key.variant < len(program.variants)
        if not (known_variant and 0 <= key.step < steps and 0 <= key.micro_batch < micro_batches):
            raise InputError(
                f"{describe(number, instruction)} belongs to none of the plan's {steps} steps of "
                f"{micro_batches} micro-batches."
            )
        if isinstance(instruction, Move) and not isinstance(instruction.kind, MessageKind):
            raise InputError(
                f"{describe(number, instruction)}: '{instruction.kind}' is no kind of message."
            )
        for dep in instruction.deps:
            if not 0 <= dep < number:
                raise InputError(
                    f"{describe(number, instruction)} waits for instruction {dep}, which does not "
                    "come before it: the program has a cycle."
                )


def _check_devices(program: Program) -> None:
    """Checks that all devices are devices of the plan, and that no device sends to itself."""
    count = program.plan.devices
    for number, instruction in enumerate(program.instructions):
        devices: Iterable[int] = instruction.devices
        if isinstance(instruction, Merge):
            devices = chain(devices, *(cell.devices for cell in instruction.cells))
        elif isinstance(instruction, Reduce | Gather):
            regions = chain.from_iterable(instruction.regions)
            devices = chain(devices, *(region.devices for region in regions))
        elif isinstance(instruction, Update):
            devices = chain(devices, *(region.devices for region in instruction.regions))
        wrong = [d for d in devices if not 0 <= d < count]
        if wrong:
            raise InputError(
                f"{describe(number, instruction)} names device {wrong[0]}, "
                f"but the plan has devices 0 to {count - 1}."
            )
        if isinstance(instruction, Move) and any(
            m.source == m.target for m in instruction.messages
        ):
            raise InputError(f"{describe(number, instruction)} sends from a device to itself.")


def _check_turns(program: Program) -> None:
    """Checks that all-reduces of bundles come in the plan's order, which all ranks have to follow."""
    order = program.plan.order
    if not order or not program.slices:
        return
    # By (parameters, slices), the number of the bundle.
    bundle_number = {(b.parameters, b.slices): number for number, b in enumerate(program.bundles)}
    # By number of a bundle, its position in `plan.order`.
    turn_of = {number: position for position, number in enumerate(order)}
    # By step, the turn and the first parameter of the last all-reduce.
    last: dict[int, tuple[int, str]] = {}
    for number, i in enumerate(program.instructions):
        if isinstance(i, Reduce):
            slices = tuple(region for regions in i.regions for region in regions)
            turn = turn_of[bundle_number[i.parameters, slices]]
            last_turn, name = last.get(i.key.step, (-1, ""))
            if turn < last_turn:
                raise InputError(
                    f"{describe(number, i)} comes after the all-reduce of a slice of '{name}', "
                    "but comes before it in the plan's order of slices."
                )
            last[i.key.step] = turn, i.parameters[0]


def _check_replicated_loss(facts: VariantFacts) -> None:
    """Checks that the variant replicates the loss wherever its tiles allow it, and nowhere else.

    The loss is replicated if the partial results of some operators near it are merged on every device. Then
    each device computes the loss, and from it the gradient of its own part, and no device has to send this
    gradient (replicated_loss.py).
    """
    program = facts.program
    expected = replicated_loss_ops(
        facts.graph,
        replace(program.plan, tiles=facts.variant.tiles),
        program.active,  # the values that need a gradient
        lambda op: facts.is_partial(op) and not facts.has_local_statistics(op),
    )
    if expected != facts.replicated_loss_ops:
        raise InputError(
            f"gradients start on every device for {sorted(facts.replicated_loss_ops)}, but may do so for "
            f"{sorted(expected)}: some would count twice, or not at all."
        )


# -- buffers: all steps ---------------------------------------------------------------------------


def _check_buffers(program: Program, all_facts: Sequence[VariantFacts]) -> None:
    """Checks that every run reads the last content of a buffer (a running mean, say).

    Replicas of a pipeline stage on other devices have buffers of their own.
    """
    written = program.graph.buffers_by_value  # by value, the buffers whose next content it is
    # By buffer and device, the boxes of the last content that the device holds.
    current: dict[str, dict[int, list[Box]]] = {}
    for number, i in enumerate(program.instructions):
        facts = all_facts[i.key.variant]
        if isinstance(i, Move) and i.kind.is_activation:
            for buffer in written.get(i.value, []):
                for m in i.messages:
                    current[buffer].setdefault(m.target, []).extend(m.boxes)
        if not isinstance(i, Run | Merge) or i.phase != "F":
            continue
        op = facts.ops[i.op]
        if isinstance(i, Run):
            _check_current(facts, number, i, current)
        # The instruction that completes the outputs: the merge, if the operator has one, else the run.
        if (op.name in facts.merges) == isinstance(i, Merge):
            for k, o in enumerate(op.outputs):
                for buffer in written.get(o, []):  # replicas on other devices keep theirs
                    boxes_by_device = current.setdefault(buffer, {})
                    boxes_by_device |= {d: [] for d in _readers(facts, buffer)} | _computed_boxes(
                        facts, i, k
                    )


def _readers(facts: VariantFacts, buffer: str) -> set[int]:
    """Returns the devices that read a buffer."""
    return {d for op in facts.graph.readers.get(buffer, ()) for d in facts.devices[op.name]}


def _check_current(
    facts: VariantFacts, number: int, run: Run, current: Mapping[str, BoxesByDevice]
) -> None:
    """Checks that the tiles of a run find the last content of the buffers that they read."""
    op = facts.ops[run.op]
    if not any(name in current for name in op.inputs):
        return
    for box, device in facts.tiles[op.name]:
        for name, region in zip(op.inputs, facts.regions_and_outputs(op, box)[0], strict=True):
            if name not in current or region is None:
                continue
            boxes = current[name].get(device)
            if boxes is None:  # on a replica that has not written it yet
                continue
            if region not in boxes and subtract(region, boxes):
                raise InputError(
                    f"{describe(number, run)}: device {device} has no {region} of buffer '{name}' "
                    "as it was written last."
                )


def _computed_boxes(facts: VariantFacts, i: Run | Merge, output: int) -> dict[int, list[Box]]:
    """Returns the boxes of one output that a run or merge computes on each device; output: its number."""
    boxes_by_device: dict[int, list[Box]] = {}
    if isinstance(i, Merge):
        for cell in i.cells:
            for device in cell.devices:
                boxes_by_device.setdefault(device, []).append(cell.box)
    else:
        op = facts.ops[i.op]
        for box, device in facts.tiles[op.name]:
            boxes_by_device.setdefault(device, []).append(
                facts.regions_and_outputs(op, box)[1][output]
            )
    return boxes_by_device
