"""Operators, one file for each family: index notation, kernels, and the ATen calls that they translate.

Importing this package imports all of its files, so a file that is added here declares its operators.
"""

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
