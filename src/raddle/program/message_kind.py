"""The kinds of messages of a program, with their properties.

Other files ask for a property (`kind.is_pull`), not for a certain kind. So a new kind needs one line in
`MessageKind`, and the code that sends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Content(str, Enum):
    """The content of a message: a value, its gradient, or nothing (a signal)."""

    VALUE = "value"
    GRADIENT = "gradient"
    NOTHING = "nothing"


class Subject(Enum):
    """The subject of a message, which decides who sends it, who waits for it and which memory it needs."""

    RESULT = "result"  # a complete result: from its operator to the operators that read it, or back
    PART = "part"  # a partial result: from its tile to where it is merged, or back
    PARAMETER = "parameter"  # between the holders of a parameter and its server
    ACTION = "action"  # an action of the schedule has ended


class Purpose(str, Enum):
    """The row of a report in which sent bytes are counted, in the order of the rows."""

    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    PARTIAL_RESULTS = "partial results"
    PARAMETERS = "parameters"
    SIGNALS = "signals"


class MessageKind(str, Enum):
    """A kind of message: its label, content, subject and purpose."""

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
        """The first kind with the same content and subject. Kinds that are alike are checked alike."""
        alike = (self.content, self.subject)
        return next(kind for kind in MessageKind if (kind.content, kind.subject) == alike)

    @property
    def is_of_parameter(self) -> bool:
        """Whether the message goes between the holders of a parameter and its server."""
        return self.subject is Subject.PARAMETER

    @property
    def is_push(self) -> bool:
        """Whether the message brings the gradient of a parameter to its server."""
        return self.is_of_parameter and self.content is Content.GRADIENT

    @property
    def is_pull(self) -> bool:
        """Whether the message brings a parameter from its server."""
        return self.is_of_parameter and self.content is Content.VALUE

    @property
    def is_forward(self) -> bool:
        """Whether the message brings a complete or partial result to where it is used."""
        return self.between_operators and self.content is Content.VALUE

    @property
    def is_backward(self) -> bool:
        """Whether the message brings the gradient of a complete or partial result back."""
        return self.between_operators and self.content is Content.GRADIENT

    @property
    def between_operators(self) -> bool:
        return self.subject in (Subject.RESULT, Subject.PART)

    @property
    def is_activation(self) -> bool:
        """Whether the message brings a complete result to its readers."""
        return self.subject is Subject.RESULT and self.content is Content.VALUE


def check_all_kinds_sent(kinds: Iterable[MessageKind], *subjects: Subject) -> None:
    """Raises ImportError if a message kind about these subjects is not among `kinds`.

    The file that sends messages about a subject calls this when it is imported, with the kinds that it
    sends. So a new kind that is never sent is noticed at once.
    """
    unsent = {kind for kind in MessageKind if kind.subject in subjects} - {*kinds}
    if unsent:
        raise ImportError(f"nobody sends messages of kind {', '.join(sorted(map(str, unsent)))}")
