"""Operators, one file a family: the line of notation, how a box is executed, and the ATen calls it
stands for. A new one is a file here that declares it: importing this package imports all of them."""

from importlib import import_module
from pkgutil import iter_modules

from raddle.graph.kind import KINDS, Kind, kernel, merge, work

__all__ = ["KINDS", "Kind", "kernel", "merge", "work"]

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
