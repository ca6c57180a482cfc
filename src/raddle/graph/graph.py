"""The graph of one training step: values (tensors) and operators in execution order, with a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from raddle.errors import InputError
from raddle.graph.arguments import BatchTemplate
from raddle.graph.dtypes import carries_gradient
from raddle.graph.graph_copies import GraphCopies
from raddle.graph.space import Space
from raddle.graph.traits import TRAITS, Traits


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph. `letters` has one letter for each dimension; `n` is the sample dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    letters: str
    # op (output of an operator) | input (a tensor of the batch) | parameter | frozen (parameter)
    # | buffer | constant | seed (of the random numbers of dropout)
    role: str = "op"

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class Op:
    """One operator. Its operands and outputs are names of values in `Graph.values`."""

    name: str
    kind: str  # key of OPERATOR_KINDS (operator_kind.py)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]  # what its kernel needs besides tensors, such as a stride
    notation: str  # its index notation (space.py), attributes as numbers
    space: Space  # the iteration space that the notation describes
    # For each input, its position among the arguments of the kernel (the function that computes the
    # operator). Positions are missing where an optional argument is absent.
    argument_slots: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]  # the dtype of each output
    module: str = ""  # the dotted name of the nn.Module that it comes from
    layer: str = ""  # the name of its composite (an LSTM, a batch norm), else its own name
    composite_kind: str = ""  # "batch_norm", "lstm", ...; "" outside of composites

    @property
    def opaque(self) -> bool:
        return self.kind == "opaque"

    @property
    def traits(self) -> Traits:
        """The properties of the operator's kind (traits.py)."""
        return TRAITS[self.kind]

    @property
    def stops_gradient(self) -> bool:
        """Whether no gradient flows from the operator's outputs to its inputs."""
        return self.traits.updates_buffer or self.label == "detach"

    @property
    def label(self) -> str:
        """A name for people: the ATen function (of pointwise and opaque operators), else the kind."""
        call = self.attrs.get("call")
        return call.split("::")[-1].split(".")[0] if call else self.kind


@dataclass(frozen=True, slots=True)
class FusedCall:
    """A composite: operators that one native PyTorch call can replace if one device runs all of them.

    The native call takes `inputs`, computes `outputs` and is made by FUSED_KERNELS[kind] (ops/fused.py).
    """

    kind: str
    ops: tuple[str, ...]  # names of the operators
    inputs: tuple[str | None, ...]  # names of values; None: absent
    outputs: tuple[str | None, ...]  # names of values; None: unused
    attrs: Mapping[str, Any]  # of the native call, such as eps


@dataclass(frozen=True, repr=False)
class Graph(GraphCopies):
    """The computation of a module and its loss in one training step; made by `raddle.capture`."""

    name: str
    values: Mapping[str, Value]  # by name
    ops: tuple[Op, ...]  # in execution order
    inputs: tuple[str, ...]  # the tensors of the batch
    outputs: tuple[str, ...]  # names of values, without the loss
    loss: str | None  # name of a value
    updates: Mapping[str, str]  # name of a buffer -> the value that it has after the step
    aliases: Mapping[str, str]  # further names of shared parameters -> the name used here
    fused_calls: tuple[FusedCall, ...] = ()
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)  # by name of the value
    metrics: Mapping[str, str] = field(default_factory=dict)  # name -> name of a scalar value
    # where the inputs are in a batch; None: in a graph that `capture` did not make
    template: BatchTemplate | None = field(default=None, compare=False, repr=False)
    # what the module returns, with TensorMark (step_module.py) in place of each tensor
    output_tree: Any = field(default=None, compare=False, repr=False)
    # By operator, the dtype to which autocast casts its operands (plans/value_dtypes.py)
    casts: Mapping[str, torch.dtype] = field(default_factory=dict)
    tf32_products: bool = False  # float32 products, not only convolutions, may use TF32
    # The graph as it was captured, if this one has the dtypes of another precision
    captured: Graph | None = field(default=None, compare=False, repr=False)
    # captures the same module for another number of samples
    recapture: Callable[[int], Graph] | None = field(default=None, compare=False, repr=False)

    def for_batch(self, batch: int) -> Graph:
        """Returns the graph of the same module for another number of samples, as in a last micro-batch."""
        if batch == self.batch:
            return self
        if self.recapture is None:
            raise InputError(
                f"'{self.name}' was captured for {self.batch} samples and cannot be captured again for "
                f"{batch}: use a batch that all micro-batches share evenly."
            )
        return self.recapture(batch)

    def op(self, name: str) -> Op:
        """Returns the operator of this name."""
        return self._ops_by_name[name]

    @cached_property
    def _ops_by_name(self) -> Mapping[str, Op]:
        return {op.name: op for op in self.ops}

    @cached_property
    def fused_operators(self) -> dict[str, Any]:
        """What `fused_ops` (fusion.py) has derived; it fills this."""
        return {}

    @cached_property
    def in_precisions(self) -> dict[Hashable, Graph]:
        """Derived graphs with other dtypes, remembered by plans/value_dtypes.py."""
        return {}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Op]]:
        """For each value, the operators that read it, each once, in execution order."""
        readers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                readers.setdefault(name, []).append(op)
        return readers

    @cached_property
    def buffers_by_value(self) -> Mapping[str, Sequence[str]]:
        """For each value, the buffers that have it after the step."""
        buffers: dict[str, list[str]] = {}
        for buffer, value in self.updates.items():
            buffers.setdefault(value, []).append(buffer)
        return buffers

    @property
    def parameters(self) -> list[Value]:
        return [v for v in self.values.values() if v.role == "parameter"]

    @property
    def buffers(self) -> list[Value]:
        return [v for v in self.values.values() if v.role == "buffer"]

    @property
    def batch(self) -> int:
        """The number of samples: the size of the sample dimension of the first input that has one."""
        for name in self.inputs:
            value = self.values[name]
            if "n" in value.letters:
                return value.shape[value.letters.index("n")]
        return 1

    @property
    def opaque_ops(self) -> list[Op]:
        return [op for op in self.ops if op.opaque]

    def differentiable(self) -> set[str]:
        """Returns the names of the parameters, and of the values through which gradients reach them."""
        names = {p.name for p in self.parameters}
        for op in self.ops:
            if not op.stops_gradient and any(i in names for i in op.inputs):
                names.update(o for o in op.outputs if carries_gradient(self.values[o].dtype))
        return names

    def dim_kinds(self, op: Op) -> str:
        """Returns a letter for each dimension of an operator: how it can be split (`Space.dim_kinds`)."""
        return op.space.dim_kinds(
            [self.values[i].role in ("parameter", "frozen") for i in op.inputs]
        )

    def fingerprint(self) -> str:
        """Returns a hash of structure, shapes and names: 16 hex digits, equal in all versions of torch.

        A precision does not change it: it identifies the captured graph.
        """
        if self.captured is not None:
            return self.captured.fingerprint()
        digest = hashlib.sha256()
        for value in self.values.values():
            if value.role != "op":
                description = f"{value.role} {value.name} {value.shape} {value.dtype}\n"
                digest.update(description.encode(errors="surrogatepass"))
        for op in self.ops:
            attrs = ",".join(f"{k}={v!r}" for k, v in sorted(op.attrs.items()))
            text = (
                f"{op.name}|{op.kind}|{op.inputs}|{op.outputs}|{op.notation}|{op.dtypes}|{attrs}\n"
            )
            digest.update(text.encode(errors="surrogatepass"))
        results = f"{self.outputs}|{self.loss}|{sorted(self.updates.items())}"
        results += f"|{sorted(self.metrics.items())}" if self.metrics else ""
        return hashlib.sha256(digest.digest() + results.encode(errors="surrogatepass")).hexdigest()[
            :16
        ]
