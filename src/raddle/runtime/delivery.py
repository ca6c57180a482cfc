"""What a rank does with messages of each kind: what it packs, and where it puts what has come.

All of the runtime that depends on the kind of a message is in this file. It depends on what the message
carries and is about (`program/message_kind.py`), so a new kind that is about nothing new needs no change here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from raddle.errors import never
from raddle.graph.box import Box
from raddle.program.message_kind import Content, MessageKind, Subject
from raddle.program.program import Key
from raddle.runtime.builders.slot_table import BoxSlots, SlotTable
from raddle.runtime.execution.store import Store
from raddle.runtime.function_writer import Of
from raddle.runtime.region_assembly import overlapping


class Part(NamedTuple):
    """A box inside a message: which slots it is made of, and how; or which it is added to, and where."""

    shape: tuple[int, ...]
    slots: tuple[int, ...]
    make: Callable[..., Tensor] | None = None
    places: tuple[tuple[tuple[slice, ...], tuple[slice, ...]], ...] = ()  # in the slot, in the box


class Delivery:
    """Of a kind of messages, between which slots it goes. Signals carry nothing, and are this."""

    fills = False  # slots of its own, which are emptied when nobody reads them any more
    completes = False  # values that a buffer may have been waiting for
    gathers = False  # parameters that are released after their use
    of_gradients = False  # of slots, which the sender forgets
    of_updates = False  # a step without an update does not send it
    changes = False  # in place later, so that a copy is sent

    def packed(self, pieces: SlotTable, key: Key, of: Of) -> BoxSlots:
        """The pieces that the sender makes it of."""
        return pieces.box_slots(key, of)

    def landing(self, pieces: SlotTable, key: Key, of: Of, box: Box) -> Part:
        """Where the receiver puts a box."""
        return Part(box.shape, ())

    def take(self, store: Store, part: Part, tensor: Tensor) -> None:
        """A box has come: the receiver puts it there."""


class Values(Delivery):
    """Fill slots of their own."""

    fills = completes = True

    def landing(self, pieces: SlotTable, key: Key, of: Of, box: Box) -> Part:
        return Part(box.shape, (pieces.add_received(key, of, box),))

    def take(self, store: Store, part: Part, tensor: Tensor) -> None:
        store.slots[part.slots[0]] = tensor


class Partials(Values):
    """Are values too, but not complete."""

    completes = False


class Gradients(Delivery):
    """Go back from where a value was received to where it was made, and are added there."""

    of_gradients = True

    def packed(self, pieces: SlotTable, key: Key, of: Of) -> BoxSlots:
        return pieces.received[key, of]

    def landing(self, pieces: SlotTable, key: Key, of: Of, box: Box) -> Part:
        return _within(pieces.computed[key, of], box)

    def take(self, store: Store, part: Part, tensor: Tensor) -> None:
        for slot, (place, region) in zip(part.slots, part.places, strict=True):
            store.add_box(slot, place, tensor[region])


class Parameters(Delivery):
    """Are written into the receiver's copy of a parameter."""

    of_updates = changes = True

    def landing(self, pieces: SlotTable, key: Key, of: Of, box: Box) -> Part:
        assert isinstance(of, str)
        return _within(pieces.persistent[of], box)

    def take(self, store: Store, part: Part, tensor: Tensor) -> None:
        with torch.no_grad():
            for slot, (place, region) in zip(part.slots, part.places, strict=True):
                store.slots[slot][place] = tensor[region]


class ParameterGradients(Parameters):
    """Are added to the gradient of the server's copy."""

    of_gradients, changes = True, False

    def take(self, store: Store, part: Part, tensor: Tensor) -> None:
        for slot, (place, region) in zip(part.slots, part.places, strict=True):
            store.add_box(slot, place, tensor[region])
            store.given.add(slot)


class Rows(Parameters):
    """Of a divided parameter: what its home keeps is gathered where the parameter is used."""

    gathers = True
    of_updates = changes = False  # it is pulled in every step

    def packed(self, pieces: SlotTable, key: Key, of: Of) -> BoxSlots:
        assert isinstance(of, str)
        return pieces.shards[of]

    def take(self, store: Store, part: Part, tensor: Tensor) -> None:
        for slot, (place, region) in zip(part.slots, part.places, strict=True):
            store.wholes.open(slot)[place] = tensor[region]


def delivery_of(kind: MessageKind, *, divided: bool = False) -> Delivery:
    """`divided`: whether parameters are at their homes alone while nobody uses them."""
    if kind.content is Content.NOTHING:
        return Delivery()
    value = kind.content is Content.VALUE
    match kind.subject:
        case Subject.RESULT:
            return Values() if value else Gradients()
        case Subject.PART:
            return Partials() if value else Gradients()
        case Subject.PARAMETER if value:
            return Rows() if divided else Parameters()
        case Subject.PARAMETER:
            return ParameterGradients()
        case Subject.ACTION:
            return Delivery()
        case _:
            return never(kind.subject)


def _within(held: BoxSlots, box: Box) -> Part:
    """A box as parts of the pieces that it overlaps."""
    found = [held[i] for i in overlapping([b for b, _ in held], box)]
    commons = [(own & box, own, slot) for own, slot in found]
    places = tuple(
        (common.slices_within(own), common.slices_within(box)) for common, own, _ in commons
    )
    return Part(box.shape, tuple(slot for *_, slot in commons), places=places)
