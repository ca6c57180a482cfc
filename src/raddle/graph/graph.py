"""The graph: values and operators in the order in which they run, and a fingerprint of both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from raddle.errors import InputError
from raddle.graph.dtypes import carries_gradient
from raddle.graph.space import Space
from raddle.graph.traits import TRAITS, Traits


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph. `letters` names its dimensions; `n` is the sample dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    letters: str
    role: str = "op"  # op | input | parameter | frozen | buffer | constant | seed

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: its kind, its operands and outputs by name, and its iteration space."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    notation: str  # its index notation
    space: Space
    argument_slots: tuple[
        int, ...
    ]  # the kernel's argument that each input is (optional ones may be absent)
    dtypes: tuple[torch.dtype, ...]  # of the outputs
    module: str = ""  # the nn.Module that it comes from
    layer: str = ""  # the composite that it is a part of (an LSTM, a batch norm), else its own name
    composite_kind: str = ""  # what that composite is

    @property
    def opaque(self) -> bool:
        return self.kind == "opaque"

    @property
    def traits(self) -> Traits:
        """What its kind says of itself."""
        return TRAITS[self.kind]

    @property
    def stops_gradient(self) -> bool:
        """Whether no gradient flows through it."""
        return self.traits.updates_buffer or self.label == "detach"

    @property
    def label(self) -> str:
        """What it does, for people: of a pointwise operator the function, else the kind."""
        call = self.attrs.get("call")
        return call.split("::")[-1].split(".")[0] if call else self.kind


@dataclass(frozen=True, slots=True)
class FusedCall:
    """Operators that one native call can replace where a device holds all of them."""

    kind: str
    ops: tuple[str, ...]
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]  # None: used by nobody
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class Graph:
    """What a module computes in one training step; see `raddle.capture`."""

    name: str
    values: Mapping[str, Value]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]  # of the module, then the targets of the loss
    outputs: tuple[str, ...]
    loss: str | None
    updates: Mapping[str, str]  # buffer -> the value that it holds after the step
    aliases: Mapping[str, str]  # further names of shared parameters -> the name used here
    fused_calls: tuple[FusedCall, ...] = ()
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    target_count: int = 0  # how many of the inputs, the last ones, are the loss's
    takes_keywords: bool = False  # whether the module takes its inputs by name
    recapture: Callable[[int], Graph] | None = field(default=None, compare=False, repr=False)

    def for_batch(self, batch: int) -> Graph:
        """The same module captured for another batch: a last, smaller micro-batch, say."""
        if batch == self.batch:
            return self
        if self.recapture is None:
            raise InputError(
                f"'{self.name}' was captured for {self.batch} samples and cannot be captured again for "
                f"{batch}: use a batch that all micro-batches share evenly."
            )
        return self.recapture(batch)

    def op(self, name: str) -> Op:
        return self._ops_by_name[name]

    @cached_property
    def _ops_by_name(self) -> Mapping[str, Op]:
        return {op.name: op for op in self.ops}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Op]]:
        """By value, the operators that have it among their inputs, each once, in their order."""
        readers: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                readers.setdefault(name, []).append(op)
        return readers

    @cached_property
    def buffers_by_value(self) -> Mapping[str, Sequence[str]]:
        """By value, the buffers that hold it after the step."""
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
        """The global batch: the extent of the sample dimension of the first input that has one."""
        for name in self.inputs:
            value = self.values[name]
            if "n" in value.letters:
                return value.shape[value.letters.index("n")]
        return 1

    @property
    def opaque_ops(self) -> list[Op]:
        return [op for op in self.ops if op.opaque]

    def differentiable(self) -> set[str]:
        """Values that a gradient flows through: parameters, and what depends on them."""
        names = {p.name for p in self.parameters}
        for op in self.ops:
            if not op.stops_gradient and any(i in names for i in op.inputs):
                names.update(o for o in op.outputs if carries_gradient(self.values[o].dtype))
        return names

    def dim_kinds(self, op: Op) -> str:
        """A letter for each dimension of an operator's iteration space: S, A, P, R or `-`."""
        return op.space.dim_kinds(
            [self.values[i].role in ("parameter", "frozen") for i in op.inputs]
        )

    def fingerprint(self) -> str:
        """Structure, shapes and names in 16 hex digits; the same under every version of torch."""
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
        return hashlib.sha256(digest.digest() + results.encode(errors="surrogatepass")).hexdigest()[
            :16
        ]
