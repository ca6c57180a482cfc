"""Operators, one file a family: the line of notation, how a box is executed, and the ATen calls it
stands for. A new one is a file here that declares it: importing this package imports all of them."""

from importlib import import_module
from pkgutil import iter_modules

from raddle.graph.operator_kind import (
    OPERATOR_KINDS,
    OperatorKind,
    make_kernel,
    merge_partials,
    work,
)

__all__ = ["OPERATOR_KINDS", "OperatorKind", "make_kernel", "merge_partials", "work"]

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
