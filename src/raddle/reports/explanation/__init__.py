"""Explains plans and operators in sentences and tables, for `raddle explain` and the HTML page.

The data come from `raddle.searches.explanation`; this package only puts them into words.
"""

from raddle.reports.explanation.op_text import comparison_sentence, describe_changes, show_op
from raddle.reports.explanation.plan_text import show_plan
from raddle.reports.explanation.sentences import BOUND_REASONS, sentences

__all__ = [
    "BOUND_REASONS",
    "comparison_sentence",
    "describe_changes",
    "sentences",
    "show_op",
    "show_plan",
]
