"""Kinds of messages: what each is, as everybody that tells them apart sees it."""

from __future__ import annotations

import pytest

from raddle.program.messages import MessageKind, Subject, all_are_sent

TRAITS = (
    "between_operators",
    "forward",
    "backward",
    "activates",
    "of_parameters",
    "pushes",
    "pulls",
)


def test_what_each_kind_is() -> None:
    assert {str(k): " ".join(t for t in TRAITS if getattr(k, t)) for k in MessageKind} == {
        "activation": "between_operators forward activates",
        "partial": "between_operators forward",
        "gradient": "between_operators backward",
        "partial gradient": "between_operators backward",
        "push": "of_parameters pushes",
        "pull": "of_parameters pulls",
        "signal": "",
    }


def test_a_kind_is_its_label() -> None:
    for kind in MessageKind:
        assert MessageKind(str(kind)) is kind
        assert kind.like.content == kind.content
        assert kind.like.subject == kind.subject


def test_a_kind_that_nobody_sends_is_an_error_of_import() -> None:
    all_are_sent([MessageKind.PUSH, MessageKind.PULL], Subject.PARAMETER)
    with pytest.raises(ImportError, match="nobody sends messages of kind pull, signal"):
        all_are_sent([MessageKind.PUSH], Subject.PARAMETER, Subject.ACTION)
