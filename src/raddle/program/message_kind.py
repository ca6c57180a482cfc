"""Kinds of messages, and all that depends on a kind: a new one is a line here, and whoever sends it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Content(str, Enum):
    """What a message carries."""

    VALUE = "value"
    GRADIENT = "gradient"
    NOTHING = "nothing"


class Subject(Enum):
    """What a message is about, which says who sends it, who waits for it and whose memory it fills."""

    RESULT = "result"  # from an operator to those that read its result, or back
    PART = "part"  # of a partial result: from a tile to where it is merged, or back
    PARAMETER = "parameter"  # between the holders of a parameter and its server
    ACTION = "action"  # of a schedule


class Purpose(str, Enum):
    """What the bytes that cross devices are for, in the order in which they are shown."""

    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    PARTIAL_RESULTS = "partial results"
    PARAMETERS = "parameters"
    SIGNALS = "signals"


class MessageKind(str, Enum):
    """What messages are for. Whoever tells kinds apart asks for what a kind is, not for its name."""

    ACTIVATION = "activation", Content.VALUE, Subject.RESULT, Purpose.ACTIVATIONS
    PARTIAL = "partial", Content.VALUE, Subject.PART, Purpose.PARTIAL_RESULTS
    GRADIENT = "gradient", Content.GRADIENT, Subject.RESULT, Purpose.GRADIENTS
    PARTIAL_GRADIENT = "partial gradient", Content.GRADIENT, Subject.PART, Purpose.PARTIAL_RESULTS
    PUSH = "push", Content.GRADIENT, Subject.PARAMETER, Purpose.PARAMETERS  # to its server
    PULL = "pull", Content.VALUE, Subject.PARAMETER, Purpose.PARAMETERS  # from its server
    SIGNAL = "signal", Content.NOTHING, Subject.ACTION, Purpose.SIGNALS  # an action has ended

    content: Content
    subject: Subject
    purpose: Purpose

    def __new__(
        cls, label: str, content: Content, subject: Subject, purpose: Purpose
    ) -> MessageKind:
        kind = str.__new__(cls, label)
        kind._value_ = label
        kind.content, kind.subject, kind.purpose = content, subject, purpose
        return kind

    def __str__(self) -> str:
        return str(self.value)

    @property
    def first_alike(self) -> MessageKind:
        """The first kind that carries and is about the same: it is checked and reckoned alike."""
        alike = (self.content, self.subject)
        return next(kind for kind in MessageKind if (kind.content, kind.subject) == alike)

    @property
    def is_of_parameter(self) -> bool:
        """Whether it is between a parameter's holders and its server, not between operators."""
        return self.subject is Subject.PARAMETER

    @property
    def is_push(self) -> bool:
        """Whether it brings the gradient of a parameter to its server."""
        return self.is_of_parameter and self.content is Content.GRADIENT

    @property
    def is_pull(self) -> bool:
        """Whether it brings a parameter from its server."""
        return self.is_of_parameter and self.content is Content.VALUE

    @property
    def is_forward(self) -> bool:
        """Whether it brings what an operator computed, complete or in part, to where it is read."""
        return self.between_operators and self.content is Content.VALUE

    @property
    def is_backward(self) -> bool:
        """Whether it brings the gradient of what a forward message brought back to its sender."""
        return self.between_operators and self.content is Content.GRADIENT

    @property
    def between_operators(self) -> bool:
        return self.subject in (Subject.RESULT, Subject.PART)

    @property
    def is_activation(self) -> bool:
        """Whether it brings a complete result to those that read it."""
        return self.subject is Subject.RESULT and self.content is Content.VALUE


def check_all_kinds_sent(kinds: Iterable[MessageKind], *subjects: Subject) -> None:
    """Whoever sends messages about some subjects says of which kinds; one that nobody sends is an error."""
    unsent = {kind for kind in MessageKind if kind.subject in subjects} - {*kinds}
    if unsent:
        raise ImportError(f"nobody sends messages of kind {', '.join(sorted(map(str, unsent)))}")
