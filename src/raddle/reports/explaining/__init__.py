"""What `raddle explain` says of a plan and of an operator, and the page with it."""

from raddle.reports.explaining.operator import show_op, standing, what_changes
from raddle.reports.explaining.plan import show_plan
from raddle.reports.explaining.sentences import BINDING, sentences

__all__ = ["BINDING", "sentences", "show_op", "show_plan", "standing", "what_changes"]
