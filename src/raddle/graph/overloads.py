"""ATen overloads: their names in a graph, and what torch says about them.

>>> resolve_overload("add.Tensor") is torch.ops.aten.add.Tensor
True
"""

from __future__ import annotations

from typing import Any

import torch


def resolve_overload(call: str) -> Any:
    """Returns the ATen overload of a name such as `add.Tensor`."""
    namespace, _, name_and_overload = call.rpartition("::")
    name, overload = name_and_overload.rsplit(".", 1)
    return getattr(getattr(getattr(torch.ops, namespace or "aten"), name), overload)


def call_name(target: Any) -> str:
    """Returns the name that `resolve_overload` reads.

    An example is add.Tensor; outside of ATen, it is namespace::name.overload.
    """
    schema = target._schema
    namespace, name = schema.name.split("::")
    call = f"{name}.{schema.overload_name or 'default'}"
    return call if namespace == "aten" else f"{namespace}::{call}"


def base_name(target: Any) -> str:
    """Returns the name of an ATen function without namespace and overload, such as `add`."""
    return str(target._schema.name.split("::")[-1])


def is_pointwise(target: Any) -> bool:
    """Returns whether ATen tags a call as elementwise and it draws no random numbers, as dropout does."""
    tags = getattr(target, "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
