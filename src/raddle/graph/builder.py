"""Builds a graph operator by operator: ATen calls come in, operators with their iteration spaces go out.

An ATen call is translated by the function registered for its name (`@aten("conv2d")` in ops/). A call that
ATen tags as pointwise needs no such function. Any other call becomes an *opaque* operator: it is executed
correctly but never split. A *composite* is a group of operators that one native call can replace; the graph
records it as a FusedCall. A *kernel* is the function that computes an operator; in this file, a *slot* is
the position of an operand among the arguments of its kernel.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from raddle.graph.decompose import DECOMPOSED, decompose
from raddle.graph.graph import FusedCall, Op, Value
from raddle.graph.index import Range
from raddle.graph.letters import unique
from raddle.graph.notation_text import drop_operands, substitute
from raddle.graph.opaque_flops import opaque_flops_per_point
from raddle.graph.operand_refs import OperandRef
from raddle.graph.operator_kind import OPERATOR_KINDS, Signature
from raddle.graph.overloads import base_name, call_name, is_pointwise
from raddle.graph.space import parse_space

AtenTranslator = Callable[..., Any]  # (builder, *arguments of the call) -> values
ATEN_TRANSLATORS: dict[str, AtenTranslator] = {}


def aten(*names: str) -> Callable[[AtenTranslator], AtenTranslator]:
    """Decorator: registers a function that translates ATen calls of these names (all overloads)."""

    def register(function: AtenTranslator) -> AtenTranslator:
        for name in names:
            assert name not in ATEN_TRANSLATORS, f"aten.{name} is translated twice"
            ATEN_TRANSLATORS[name] = function
        return function

    return register


class NotSplittable(Exception):
    """Raised by a translator for arguments that it does not support: the call becomes opaque."""


class Builder:
    """Collects values and operators; `call` translates one ATen call, whose tensors are Values."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.fused_calls: list[FusedCall] = []
        self.module = ""  # dotted name of the nn.Module that is being translated
        self.is_leaf_module = False  # whether `module` has no children: its operator has its name
        self.used_outputs = {0}  # positions of the outputs of the call that are used
        # Values before and after a write that the schema of the call does not declare.
        self.hidden_writes: list[tuple[Value, Value]] = []
        # For the names of boolean masks: whether attention needs the mask, and whether it is causal.
        self.constant_masks: dict[str, tuple[bool, bool]] = {}
        self._seed: Value | None = None  # made by `seed` at its first call
        self._names: dict[str, int] = {}  # how often each name was given, to make names unique
        self._composite_name: str | None = None  # of the composite that is being built
        self._composite_kind = ""

    # -- values ------------------------------------------------------------------------

    def add(self, value: Value) -> Value:
        assert value.name not in self.values, f"value '{value.name}' exists"
        self.values[value.name] = value
        return value

    def reserve(self, name: str) -> str:
        """Returns this name, or if it is taken the name with a number; no operator will get it."""
        return self._unique(name)

    def seed(self) -> Value:
        """Returns the value of the step's random seed, an input of dropout that every device has."""
        if self._seed is None:
            self._seed = self.add(Value(self.reserve("seed"), (), torch.int64, "", "seed"))
        return self._seed

    def record_hidden_write(self, before: Value, after: Value) -> None:
        """Records a write to an argument that the call's schema does not declare (running statistics)."""
        self.hidden_writes.append((before, after))

    # -- operators ---------------------------------------------------------------------

    def call(self, target: Any, *args: Any, _meta: Any = None, **kwargs: Any) -> Any:
        """Translates one ATen call; returns its values. _meta: tensors like its outputs, if known."""
        if target is operator.getitem:
            return args[0][args[1]]
        meta = _meta if _meta is not None else infer_meta(target, args, kwargs)
        name = base_name(target)
        translator = ATEN_TRANSLATORS.get(name)
        state_before = len(self.ops), len(self.fused_calls), dict(self._names)
        try:
            if translator is not None:
                return translator(self, *args, **_supported_kwargs(translator, kwargs))
            if is_pointwise(target):
                return self.pointwise(target, args, kwargs, meta)
        except NotSplittable:
            self._undo(*state_before)
        decomposed = _decomposed(self, target, args, kwargs) if name in DECOMPOSED else None
        return self.opaque(target, args, kwargs, meta) if decomposed is None else decomposed

    def emit(
        self,
        kind: str,
        operands: Sequence[Value | None],
        outputs: Sequence[tuple[Sequence[int], torch.dtype]],
        attrs: Mapping[str, Any] | None = None,
        *,
        integers: Mapping[str, int] | None = None,
        tables: Mapping[str, Sequence[Range]] | None = None,
        suffix: str | None = None,
        flops_per_point: int | None = None,
    ) -> Any:
        """Adds one operator; returns its output value, or a tuple of them.

        operands: by kernel argument; None: absent. outputs: shape and type of each. integers, tables: see
        `parse_space`. flops_per_point: FLOPs per point of the iteration space, if not those of the kind.
        The operator of a leaf module has the module's name, any other operator the module's
        name and `suffix` (by default the kind). In a composite, suffix "" gives the composite's name.
        """
        attrs, operator_kind = dict(attrs or {}), OPERATOR_KINDS[kind]
        present = [(slot, v) for slot, v in enumerate(operands) if v is not None]
        shapes = tuple(v.shape for _, v in present)
        signature = Signature(
            shapes,
            tuple(v.letters for _, v in present),
            tuple(tuple(shape) for shape, _ in outputs),
            attrs,
        )
        if isinstance(operator_kind.notation, str):
            notation = drop_operands(
                operator_kind.notation, [s for s, v in enumerate(operands) if v is None]
            )
        else:
            notation = operator_kind.notation(signature)
        space = parse_space(
            notation,
            shapes,
            signature.outputs,
            integers,
            tables,
            operator_kind.flops_per_point if flops_per_point is None else flops_per_point,
        )
        name = self._name(suffix, kind)
        values = self._add_outputs(name, signature.outputs, [d for _, d in outputs], space)
        op = Op(
            name,
            kind,
            tuple(v.name for _, v in present),
            tuple(v.name for v in values),
            attrs,
            substitute(notation, integers or {}),
            space,
            tuple(slot for slot, _ in present),
            tuple(v.dtype for v in values),
            self.module,
            self._composite_name or name,
            self._composite_kind,
        )
        self.ops.append(op)
        return values[0] if len(values) == 1 else tuple(values)

    def pointwise(
        self, target: Any, args: Any, kwargs: Any, result: Any, flops_per_point: int = 1
    ) -> Any:
        """Adds an elementwise operator with broadcasting; result: tensors like its outputs."""
        operands: list[Value] = []
        template = stored_arguments((args, kwargs), operands)
        meta = [result] if isinstance(result, Tensor) else list(result)
        attrs = {"call": call_name(target), "args": template[0], "kwargs": template[1]}
        outputs = [(m.shape, m.dtype) for m in meta]
        return self.emit(
            "pointwise", operands, outputs, attrs,
            flops_per_point=flops_per_point, suffix=base_name(target),
        )  # fmt: skip

    def opaque(self, target: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Adds an operator that is never split; result: tensors like its outputs."""
        operands: list[Value] = []
        template = stored_arguments((args, kwargs), operands)
        single = isinstance(result, Tensor)
        meta = [result] if single else list(result)
        tensor_outputs = [i for i, m in enumerate(meta) if isinstance(m, Tensor)]
        attrs = {
            "call": call_name(target),
            "args": template[0],
            "kwargs": template[1],
            "outputs": tuple(tensor_outputs),
            "single": single,  # whether the call returns one tensor, not a list
        }
        outputs = [(meta[i].shape, meta[i].dtype) for i in tensor_outputs]
        name = base_name(target)
        flops_per_point = opaque_flops_per_point(name, args)
        values = self.emit(
            "opaque", operands, outputs, attrs, flops_per_point=flops_per_point, suffix=name
        )
        if single:
            return values
        value_at = dict(
            zip(tensor_outputs, values if isinstance(values, tuple) else (values,), strict=True)
        )
        return tuple(value_at.get(i) for i in range(len(meta)))

    @contextmanager
    def composite(
        self, kind: str, inputs: Sequence[Value | None], attrs: Mapping[str, Any] | None = None, *,
        has_fused_call: bool = True,
    ) -> Iterator[list[Value]]:  # fmt: skip
        """Makes the operators that are added in the `with` block one composite.

        The block gets an empty list and appends the output values to it. kind: key of FUSED_KERNELS, if
        there is a native call (ops/fused.py); has_fused_call: False if there is none.
        """
        if self._composite_name is not None:  # only the outermost composite counts
            yield []
            return
        outputs: list[Value] = []
        first = len(self.ops)
        self._composite_name = self._unique(
            self.module if self.is_leaf_module else _join(self.module, kind)
        )
        self._composite_kind = kind
        try:
            yield outputs
        finally:
            self._composite_name, self._composite_kind = None, ""
        if has_fused_call:
            self.add_fused_call(kind, self.ops[first:], inputs, outputs, attrs)

    def add_fused_call(
        self, kind: str, ops: Sequence[Op], inputs: Sequence[Value | None], outputs: Sequence[Value],
        attrs: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Records that a native call can replace operators, which need not be consecutive."""
        names = tuple(v.name if v is not None else None for v in inputs)
        output_names = tuple(v.name for v in outputs)
        self.fused_calls.append(
            FusedCall(kind, tuple(op.name for op in ops), names, output_names, dict(attrs or {}))
        )

    # -- helpers -----------------------------------------------------------------------

    def _undo(self, ops: int, fused: int, names: dict[str, int]) -> None:
        """Removes what a failed translation added.

        ops, fused, names: the numbers of operators and fused calls, and the names, before the translation.
        """
        for op in self.ops[ops:]:
            for output in op.outputs:
                del self.values[output]
        del self.ops[ops:]
        del self.fused_calls[fused:]
        self._names = names

    def _name(self, suffix: str | None, kind: str) -> str:
        """Returns a name for the next operator; see `emit`."""
        if self._composite_name is not None and suffix == "":
            return self._composite_name
        # A constant gets the kind in its name: the plain name is for the module's main operator.
        if (
            self._composite_name is not None
            or not self.is_leaf_module
            or kind in ("full", "arange")
        ):
            module = self._composite_name if self._composite_name is not None else self.module
            return self._unique(_join(module, suffix or kind))
        return self._unique(self.module)

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if not count else self._unique(f"{name}_{count}")

    def _add_outputs(
        self,
        name: str,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[torch.dtype],
        space: Any,
    ) -> list[Value]:
        """Adds the values of an operator's outputs, with the letters that its iteration space has."""
        several = len(shapes) > 1
        return [
            self.add(
                Value(
                    f"{name}:{i}" if several else name,
                    shape,
                    dtype,
                    "".join(unique(space.dims[d].name.lower() for d in positions)),
                )
            )
            for i, (shape, dtype, positions) in enumerate(
                zip(shapes, dtypes, space.outputs, strict=True)
            )
        ]


def _decomposed(b: Builder, target: Any, args: Any, kwargs: Any) -> Any:
    """Translates the calls of which a composite call consists; None if one of them is opaque."""
    operands: list[Value] = []
    template = stored_arguments((args, kwargs), operands)
    state_before = len(b.ops), len(b.fused_calls), dict(b._names)
    try:
        values = decompose(b.call, target, template[0], template[1], operands)
    except RuntimeError:  # torch cannot trace it without data
        values = None
    if values is None or any(op.kind == "opaque" for op in b.ops[state_before[0] :]):
        b._undo(*state_before)
        return None
    return values


def infer_meta(target: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Returns the outputs of an ATen call on the meta device: their shapes and types, without data."""
    meta = _map_values(
        (args, dict(kwargs)), lambda v: torch.empty(v.shape, dtype=v.dtype, device="meta")
    )
    if "device" in meta[1]:
        meta[1]["device"] = torch.device("meta")
    return target(*meta[0], **meta[1])


def stored_arguments(arguments: Any, operands: list[Value]) -> Any:
    """Returns the arguments with every value replaced by an OperandRef.

    Appends the values to `operands`.
    """

    def reference(value: Value) -> OperandRef:
        operands.append(value)
        return OperandRef(len(operands) - 1)

    args, kwargs = _map_values(arguments, reference)
    # Placement and memory layout are no part of the graph: they depend on the device that runs it.
    dropped = {"device", "memory_format", "pin_memory", "layout"}
    return tuple(args), {k: v for k, v in kwargs.items() if k not in dropped}


def _map_values(arguments: Any, function: Callable[[Value], Any]) -> Any:
    """Returns nested arguments with the function applied to every Value in them."""
    if isinstance(arguments, Value):
        return function(arguments)
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(_map_values(a, function) for a in arguments)
    if isinstance(arguments, dict):
        return {k: _map_values(a, function) for k, a in arguments.items()}
    return arguments


def _supported_kwargs(translator: AtenTranslator, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments that the translator takes, without those of placement and layout."""
    ignored = {"device", "memory_format", "pin_memory", "layout", "non_blocking"}
    parameters = inspect.signature(translator).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return {k: v for k, v in kwargs.items() if k not in ignored}
    unknown = [k for k in kwargs if k not in parameters and k not in ignored]
    if unknown:
        raise NotSplittable
    return {k: v for k, v in kwargs.items() if k in parameters}


def _join(module: str, suffix: str) -> str:
    return f"{module}.{suffix}" if module and suffix else module or suffix
