"""Turns writes in place into new values: `relu_`, `x[:, 0] += 1`, counters in buffers.

An exported program has writes in place and views of the tensors that are written. A graph has neither: its
values never change. Here every fx node is a *root* or a view of another node, its parent. A write to a view
gives the parent a new value (with that part replaced), and so on up to the root. A view that was made
before the write is computed again when it is next read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from raddle.errors import InputError
from raddle.graph.builder import Builder
from raddle.graph.dtypes import carries_gradient
from raddle.graph.graph import Value

A = torch.ops.aten
# Calls that return new tensors, although tracing shows views.
NEW_TENSORS = {"lift_fresh", "lift_fresh_copy"}


class View(NamedTuple):
    """A node that is a view of its parent, made by an ATen call."""

    parent: Node
    target: Any  # the ATen call; None: the node is the same tensor as its parent
    args: tuple[Any, ...]  # of the call, after the parent
    kwargs: dict[str, Any]
    item: int | None = None  # if the call returns a list: the position in it


class Memory:
    """Holds the current value of every node during the translation, and the last values of buffers."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.values: dict[Node, Any] = {}
        self.views: dict[Node, View] = {}
        self.versions: dict[Node, int] = {}  # of roots: the number of writes so far
        self.value_version: dict[Node, int] = {}  # the root's version when the node was computed
        self.states: dict[Node, Value] = {}  # parameters, buffers and constants, which are roots
        # by name of a buffer or frozen parameter, the last value written to it
        self.updates: dict[str, Value] = {}
        self.no_grad = False  # whether the current nodes are under torch.no_grad

    def put(self, node: Node, value: Any, view: View | None = None) -> None:
        """Sets the value of a node; view: how the node is made from its parent, if it is a view."""
        self.values[node] = value
        if view is not None:
            self.views[node] = view
        self.value_version[node] = self.versions.get(self._root(node), 0)

    def put_state(self, node: Node, value: Value) -> None:
        """Sets a parameter, buffer or constant. Nodes of the same tensor become views of the first one."""
        first = next((n for n, v in self.states.items() if v.name == value.name), None)
        self.put(node, value, View(first, None, (), {}) if first is not None else None)
        if first is None:
            self.states[node] = value

    def read(self, node: Node) -> Any:
        """Returns the current value of a node; a view whose root was written since is computed again."""
        current = self.versions.get(self._root(node), 0)
        if node in self.views and self.value_version[node] != current:
            view = self.views[node]
            value = self.read(view.parent)
            if view.target is not None:
                value = self.builder.call(view.target, value, *view.args, **view.kwargs)
            self.values[node] = value if view.item is None else value[view.item]
            self.value_version[node] = current
        return self.values[node]

    def write(self, node: Node, value: Value) -> None:
        """Writes a new value to a node, and so to all nodes that it is a view of."""
        root = self._root(node)
        state = self.states.get(root)
        # "frozen": a parameter that is not trained, which a forward may write as it writes a buffer
        if state is not None and state.role not in ("buffer", "frozen"):
            raise InputError(
                f"the model writes to the {state.role} '{state.name}' in its forward, which cannot be "
                "captured: keep what changes in a buffer."
            )
        if self.no_grad:
            value = self._keep_old_gradient(self.read(node), value, state is not None)
        self.versions[root] = self.versions.get(root, 0) + 1
        while (view := self.views.get(node)) is not None:
            self.values[node], self.value_version[node] = value, self.versions[root]
            value = self._parent_value(view, value)
            node = view.parent
        self.values[root], self.value_version[root] = value, self.versions[root]
        if state is not None:
            self.updates[state.name] = value

    def _keep_old_gradient(self, old: Value, new: Value, is_state: bool) -> Any:
        """Returns the value after a write that autograd does not record.

        It has the elements of the new value and the gradient of the old one.

        is_state: whether a buffer is written, which has no gradient.
        """
        call = self.builder.call
        if not carries_gradient(new.dtype):
            return new
        if is_state:
            return call(A.detach.default, new)
        change = call(A.detach.default, call(A.sub.Tensor, new, old))
        return call(A.add.Tensor, old, change)

    def is_same_tensor(self, node: Node, nodes: Collection[Node]) -> bool:
        """Returns whether a node is the same tensor as one of `nodes`, perhaps after writes in place."""
        while node not in nodes:
            view = self.views.get(node)
            if view is None or view.target is not None or view.item is not None:
                return False
            node = view.parent
        return True

    def _root(self, node: Node) -> Node:
        while node in self.views:
            node = self.views[node].parent
        return node

    def _parent_value(self, view: View, value: Value) -> Any:
        """Returns the new value of a view's parent after `value` is written to the view."""
        call, name = self.builder.call, _name(view.target)
        if view.target is None:
            return value
        parent = self.read(view.parent)
        if name == "select":
            return call(A.select_scatter.default, parent, value, *view.args)
        if name in ("slice", "narrow"):
            dim, start, end = _bounds(name, view.args, parent)
            step = view.args[3:] or (1,)
            return call(A.slice_scatter.default, parent, value, dim, start, end, *step)
        if name in (
            "view",
            "reshape",
            "flatten",
            "unsqueeze",
            "squeeze",
            "unflatten",
            "_unsafe_view",
        ):
            return call(A.reshape.default, value, list(parent.shape))
        if name in ("transpose", "t"):
            return call(A.transpose.int, value, *(view.args or (0, 1)))
        if name == "permute":
            order = [d % len(parent.shape) for d in view.args[0]]
            return call(A.permute.default, value, [order.index(d) for d in range(len(order))])
        if name == "detach":
            return self._keep_old_gradient(parent, value, False)
        if name in ("alias", "contiguous", "to", "dropout", "feature_dropout", "alpha_dropout"):
            return value
        raise InputError(
            f"the model writes in place through a view made by '{name}', which cannot be captured: "
            "write the result to a new tensor instead."
        )


def _bounds(name: str, args: tuple[Any, ...], parent: Value) -> tuple[int, int | None, int | None]:
    """Returns (dim, start, end) of a `slice` or `narrow`; args: the call's arguments after the tensor."""
    if name == "narrow":
        dim, start, length = args
        return dim, start, start + length
    dim, start, end = (*args, *(0, None, None)[len(args) :])[:3]
    return dim, start, end


def _name(target: Any) -> str:
    """Returns the name of an ATen call without namespace and overload; "" for None."""
    return target._schema.name.split("::")[-1] if target is not None else ""


def writes_in_place(target: Any) -> bool:
    """Returns whether a call writes to its first argument.

    Raises InputError if it writes to another one.
    """
    written = [a for a in target._schema.arguments if a.alias_info and a.alias_info.is_write]
    first = target._schema.arguments[:1]
    if any(a.name not in [f.name for f in first] or "[]" in str(a.type) for a in written):
        raise InputError(
            f"the model calls '{target}', which writes to '{written[-1].name}' and cannot be captured: "
            "write the result to a new tensor instead."
        )
    return bool(written)


def is_view(node: Node) -> bool:
    """Returns whether a node is a view of its first argument; for a reshape this depends on strides."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return False
    if _name(node.target) in ("dropout", "feature_dropout", "alpha_dropout"):
        # The arguments are x, p and train. If nothing is dropped, the call returns x itself.
        return not node.args[2] or not node.args[1]
    viewed, result = source.meta.get("val"), node.meta.get("val")
    if isinstance(result, (list, tuple)) and result:
        result = result[0]
    if (
        not isinstance(viewed, Tensor)
        or not isinstance(result, Tensor)
        or _name(node.target) in NEW_TENSORS
    ):
        return False
    try:
        return viewed.untyped_storage() is result.untyped_storage()
    except NotImplementedError:  # a tensor wrapper without storage, as in torch.func
        return False


def out_of_place(target: Any) -> Any:
    """Returns the ATen overload that computes what a call in place writes: add for add_.

    Raises InputError if there is none, as for __iand__.
    """
    name = _name(target).rstrip("_") if not _name(target).startswith("__") else None
    packet = getattr(A, name, None) if name else None
    overload = target._schema.overload_name or "default"
    if name == "pow":
        overload = {"Scalar": "Tensor_Scalar", "Tensor": "Tensor_Tensor"}[overload]
    elif (name, overload) == ("bernoulli", "float"):
        overload = "p"
    elif name == "normal":
        packet = A.normal_functional
    functional = getattr(packet, overload, None) if packet is not None else None
    if functional is None:
        raise InputError(
            f"the model writes in place with '{_name(target)}', which cannot be captured: "
            "write the result to a new tensor instead."
        )
    return functional
