"""Translates the placeholders of an exported program to values: inputs, parameters, buffers, constants.

A placeholder is a node of a torch.fx graph that stands for an argument. An exported program has one for
each tensor that comes from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from raddle.errors import InputError
from raddle.graph import letters
from raddle.graph.builder import Builder
from raddle.graph.dtypes import carries_gradient
from raddle.graph.graph import Value
from raddle.graph.mutation import Memory


class Placeholders:
    """Adds a value for every placeholder to the builder and to the memory.

    The memory has the current value of every node (mutation.py). A *state* is a parameter or a buffer; in
    the memory, constants are states too.

    dims: letters of the dimensions of some inputs, by name; see `capture`.

    The program is that of a StepModule (torch_export.py), which has the user's module as its attribute
    `model`; so the names of parameters begin with "model." there.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        model: nn.Module,
        input_names: Sequence[str],
        dims: Mapping[str, str],
        memory: Memory,
        builder: Builder,
    ) -> None:
        self.program, self.model, self.dims = program, model, dims
        self.memory, self.builder = memory, builder
        self.input_names = list(input_names)
        self.constants: dict[str, Tensor] = {}  # copies of the constants, by name
        # (name, the user's tensor): tensors that the code uses directly, which torch.export makes
        # ("lifts") to inputs of the program
        self.lifted_constants: list[tuple[str, Tensor]] = []
        self.inputs: list[str] = []  # names of the inputs that are tensors
        self.aliases: dict[str, str] = {}  # further names of shared tensors -> the first name

    def read(self) -> None:
        """Translates every placeholder of the program."""
        nodes = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        canonical_names = self._canonical_names()
        for node, spec in zip(nodes, self.program.graph_signature.input_specs, strict=True):
            meta = node.meta["val"]
            if spec.kind == InputKind.USER_INPUT:
                self._add_input(node, meta)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                self._add_state(node, spec, canonical_names)
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                constant = self.program.constants[spec.target]
                self.memory.put_state(node, self.add_constant(spec.target, constant))

    def _add_input(self, node: Node, meta: Any) -> None:
        """Adds a tensor of the batch; meta: a tensor of its shape and type."""
        name = self.input_names.pop(0)
        dim_letters = self.dims.get(name) or letters.input_letters(
            meta.dim(), carries_gradient(meta.dtype)
        )
        if (
            len(dim_letters) != meta.dim()
            or len(set(dim_letters)) < len(dim_letters)
            or not (dim_letters + "a").islower()  # "a": islower() is False for an empty text
        ):
            raise InputError(
                f"dims of '{name}' are '{dim_letters}': "
                f"one small letter for each of {meta.dim()} dimensions."
            )
        value = Value(
            self.builder.reserve(name), tuple(meta.shape), meta.dtype, dim_letters, "input"
        )
        self.memory.put(node, self.builder.add(value))
        self.inputs.append(value.name)

    def _canonical_names(self) -> dict[str, str]:
        """Returns, for every name of a parameter or buffer, the first name of the same tensor."""
        first: dict[int, str] = {}
        names: dict[str, str] = {}
        for group in (self.model.named_parameters, self.model.named_buffers):
            for name, tensor in group(remove_duplicate=False):
                names[name] = first.setdefault(id(tensor), name)
        return names

    def _add_state(self, node: Node, spec: Any, canonical_names: Mapping[str, str]) -> None:
        """Adds a parameter or buffer; spec: the InputSpec that torch.export gives for the placeholder."""
        full_name = spec.target.removeprefix("model.")
        name = canonical_names.get(full_name, full_name)
        if name != full_name:
            self.aliases[full_name] = name
        if name not in self.builder.values:
            meta, shape = node.meta["val"], tuple(node.meta["val"].shape)
            role = "buffer" if spec.kind == InputKind.BUFFER else "parameter"
            if role == "parameter" and not self.model.get_parameter(name).requires_grad:
                role = "frozen"
            self.builder.reserve(name)
            self.builder.add(Value(name, shape, meta.dtype, letters.ALPHABET[: len(shape)], role))
        self.memory.put_state(node, self.builder.values[name])

    def add_constant(self, target: str, tensor: Tensor) -> Value:
        """Adds a copy of a tensor that the module uses, but has not registered as a parameter or buffer.

        target: its name in the program.
        """
        name = self.builder.reserve(f"constant.{target.removeprefix('model.')}")
        self.constants[name] = tensor.detach().clone()
        self.lifted_constants.append((name, tensor))
        shape = tuple(tensor.shape)
        dim_letters = letters.ALPHABET[: len(shape)]
        return self.builder.add(Value(name, shape, tensor.dtype, dim_letters, "constant"))
