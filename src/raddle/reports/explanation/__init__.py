"""What `raddle explain` says of a plan and of an operator, and the page with it."""

from raddle.reports.explanation.op_text import comparison_sentence, describe_changes, show_op
from raddle.reports.explanation.plan_text import show_plan
from raddle.reports.explanation.sentences import BOUND_REASONS, sentences

__all__ = [
    "BOUND_REASONS",
    "sentences",
    "show_op",
    "show_plan",
    "comparison_sentence",
    "describe_changes",
]
