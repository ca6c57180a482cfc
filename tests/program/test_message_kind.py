"""The properties of every kind of message."""

from __future__ import annotations

import pytest

from raddle.program.message_kind import MessageKind, Subject, check_all_kinds_sent

TRAITS = (
    "between_operators",
    "is_forward",
    "is_backward",
    "is_activation",
    "is_of_parameter",
    "is_push",
    "is_pull",
)


def test_what_each_kind_is() -> None:
    assert {str(k): " ".join(t for t in TRAITS if getattr(k, t)) for k in MessageKind} == {
        "activation": "between_operators is_forward is_activation",
        "partial": "between_operators is_forward",
        "gradient": "between_operators is_backward",
        "partial gradient": "between_operators is_backward",
        "push": "is_of_parameter is_push",
        "pull": "is_of_parameter is_pull",
        "signal": "",
    }


def test_a_kind_is_its_label() -> None:
    for kind in MessageKind:
        assert MessageKind(str(kind)) is kind
        assert kind.first_alike.content == kind.content
        assert kind.first_alike.subject == kind.subject


def test_a_kind_that_nobody_sends_is_an_error_of_import() -> None:
    check_all_kinds_sent([MessageKind.PUSH, MessageKind.PULL], Subject.PARAMETER)
    with pytest.raises(ImportError, match="nobody sends messages of kind pull, signal"):
        check_all_kinds_sent([MessageKind.PUSH], Subject.PARAMETER, Subject.ACTION)
