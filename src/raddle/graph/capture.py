"""From an unmodified nn.Module to a graph, through torch.export.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
>>> graph = capture(model, [torch.randn(2, 8)], loss=lambda y: y.square().mean())
>>> [op.name for op in graph.ops]
['0', '1', 'pow', 'mean']
"""

from __future__ import annotations

import inspect
import operator
import os
import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

import raddle.graph.ops  # noqa: F401  (declares the operators)
from raddle.errors import InputError
from raddle.graph import letters
from raddle.graph.builder import Builder
from raddle.graph.graph import Graph, Value
from raddle.graph.mutation import Memory, View, is_view, out_of_place, writes


def capture(
    model: nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    targets: Sequence[Tensor] = (),
    loss: Callable[..., Tensor] | None = None,
    name: str = "",
    dims: Mapping[str, str] | None = None,
) -> Graph:
    """Captures one training step of a module as a graph of operators.

    `inputs` are the arguments of the module (a mapping: its keyword arguments); `loss(output, *targets)`
    becomes part of the graph. Without it, a module that returns a scalar returns its loss. The first
    dimension of every input holds the samples; `dims={"x": "tnc"}` says otherwise. The module is
    captured in its present mode (`train()` or `eval()`) and is not changed; meta tensors will do.
    """
    step = _Step(model, list(inputs) if isinstance(inputs, Mapping) else None, len(inputs), loss)
    given = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
    program = _export(step, [*given, *targets], model)
    return _Translation(program, model, _input_names(model, inputs, targets), dims or {}).graph(
        name or type(model).__name__, has_loss=loss is not None
    )


class _Step(nn.Module):
    """The module and its loss; returns the loss first, then every tensor that the module returns."""

    def __init__(
        self,
        model: nn.Module,
        keys: list[str] | None,
        count: int,
        loss: Callable[..., Tensor] | None,
    ) -> None:
        super().__init__()
        self.model, self.keys, self.count, self.loss = model, keys, count, loss
        self.training = model.training

    def forward(self, *tensors: Any) -> Any:
        given, targets = tensors[: self.count], tensors[self.count :]
        if self.keys is None:
            output = self.model(*given)
        else:
            output = self.model(**dict(zip(self.keys, given, strict=True)))
        loss = [] if self.loss is None else [self.loss(output, *targets)]
        return tuple(loss + _tensors(output))


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = output.values()
    elif not isinstance(output, (list, tuple)):
        return []
    return [t for part in output for t in _tensors(part)]


def _export(step: _Step, inputs: Sequence[Any], model: nn.Module) -> torch.export.ExportedProgram:
    on_meta = any(t.is_meta for t in [*model.parameters(), *model.buffers()])
    try:
        with warnings.catch_warnings(), torch.device("meta") if on_meta else nullcontext():
            warnings.simplefilter("ignore")  # on attributes that the modules of torch itself assign
            return torch.export.export(step, tuple(inputs), strict=False)
    except Exception as error:
        message = str(error).strip().splitlines()
        reason = message[0].rstrip(".") if message else type(error).__name__
        raise InputError(
            f"{type(model).__name__} cannot be captured{_place(error)}: {reason}. "
            "Rewrite that line so that it does not depend on the values of tensors, or try "
            "torch.export.export(model, inputs) on its own."
        ) from error


def _place(error: BaseException) -> str:
    """Where in the user's code an export failed: the innermost frame outside of torch and raddle."""
    own = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith((*own, "<")) and "contextlib" not in frame.filename:
            return f" at {frame.filename}:{frame.lineno} in {frame.name} ({frame.line})"
    return ""


def _origin(node: Node) -> str:
    """Where in the user's code a node comes from, as export recorded it."""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    places = [i for i, line in enumerate(lines) if line.strip().startswith("File ")]
    if not places:
        return ""
    found = re.search(r'File "(.*)", line (\d+), in (\w+)', lines[places[-1]])
    code = lines[places[-1] + 1].strip() if places[-1] + 1 < len(lines) else ""
    return f" ({found[1]}:{found[2]} in {found[3]}: {code})" if found else ""


def _depends_on_data(meta: Any) -> bool:
    """Whether an output's shape is known only at run time."""
    if isinstance(meta, Tensor):
        return any(not isinstance(size, int) for size in meta.shape)
    if isinstance(meta, (list, tuple)):
        return any(_depends_on_data(m) for m in meta)
    return isinstance(meta, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _input_names(
    model: nn.Module, inputs: Sequence[Any] | Mapping[str, Any], targets: Sequence[Tensor]
) -> list[str]:
    if isinstance(inputs, Mapping):
        names = list(inputs)
    else:
        parameters = inspect.signature(model.forward).parameters.values()
        known = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
        names = [known[i] if i < len(known) else f"input{i}" for i in range(len(inputs))]
    return names + ["target" if not i else f"target{i}" for i in range(len(targets))]


class _Translation:
    """Walks through an exported program and rebuilds it as operators."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        model: nn.Module,
        input_names: Sequence[str],
        dims: Mapping[str, str],
    ) -> None:
        self.program, self.model, self.dims = program, model, dims
        self.input_names = list(input_names)
        self.builder = Builder()
        self.memory = Memory(self.builder)
        self.constants: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.aliases: dict[str, str] = {}
        self.leaves = {n for n, m in model.named_modules() if not any(True for _ in m.children())}

    def graph(self, name: str, *, has_loss: bool) -> Graph:
        self._placeholders()
        self._walk(self.program.graph_module)
        outputs = self._outputs()
        first = self.builder.values[outputs[0]] if outputs else None
        if (
            not has_loss
            and first is not None
            and first.shape == ()
            and first.dtype.is_floating_point
        ):
            has_loss = True
        b = self.builder
        return Graph(
            name,
            b.values,
            tuple(b.ops),
            tuple(self.inputs),
            tuple(outputs[1:] if has_loss else outputs),
            outputs[0] if has_loss else None,
            {buffer: value.name for buffer, value in b.updates.items()},
            self.aliases,
            tuple(b.fused),
            self.constants,
        )

    # -- placeholders ------------------------------------------------------------------

    def _placeholders(self) -> None:
        nodes = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        owners = self._owners()
        for node, spec in zip(nodes, self.program.graph_signature.input_specs, strict=True):
            meta = node.meta["val"]
            if spec.kind == InputKind.USER_INPUT:
                self._input(node, meta)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                self._state(node, spec, owners)
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                constant = self.program.constants[spec.target]
                self.memory.put(node, self._constant(spec.target, constant))

    def _input(self, node: Node, meta: Any) -> None:
        name = self.input_names.pop(0)
        if not isinstance(meta, Tensor):
            self.memory.put(node, meta)  # a number or None, which the capture has fixed
            return
        named = self.dims.get(name) or letters.of_input(meta.dim(), meta.is_floating_point())
        value = Value(self.builder.reserve(name), tuple(meta.shape), meta.dtype, named, "input")
        self.memory.put(node, self.builder.add(value))
        self.inputs.append(value.name)

    def _owners(self) -> dict[str, str]:
        """Every name of a parameter or buffer -> the first name of the same tensor."""
        first: dict[int, str] = {}
        names: dict[str, str] = {}
        for group in (self.model.named_parameters, self.model.named_buffers):
            for name, tensor in group(remove_duplicate=False):
                names[name] = first.setdefault(id(tensor), name)
        return names

    def _state(self, node: Node, spec: Any, owners: Mapping[str, str]) -> None:
        own = spec.target.removeprefix("model.")
        name = owners.get(own, own)
        if name != own:
            self.aliases[own] = name
        if name not in self.builder.values:
            meta, shape = node.meta["val"], tuple(node.meta["val"].shape)
            role = "buffer" if spec.kind == InputKind.BUFFER else "parameter"
            if role == "parameter" and not self.model.get_parameter(name).requires_grad:
                role = "frozen"
            self.builder.reserve(name)
            self.builder.add(Value(name, shape, meta.dtype, letters.POOL[: len(shape)], role))
        self.memory.put(node, self.builder.values[name])

    def _constant(self, target: str, tensor: Tensor) -> Value:
        name = self.builder.reserve(f"constant.{target.removeprefix('model.')}")
        self.constants[name] = tensor.detach()
        shape = tuple(tensor.shape)
        named = letters.POOL[: len(shape)]
        return self.builder.add(Value(name, shape, tensor.dtype, named, "constant"))

    # -- nodes -------------------------------------------------------------------------------

    def _walk(self, module: torch.fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "get_attr":
                held = getattr(module, node.target)
                value = self._constant(node.target, held) if isinstance(held, Tensor) else held
                self.memory.put(node, value)
            elif node.op == "call_function":
                try:
                    self._call(node)
                except InputError as error:
                    raise InputError(f"{error}{_origin(node)}") from error

    def _region(self, node: Node) -> None:
        """A block under `no_grad` or `autocast`, which export keeps as a graph of its own."""
        kind = getattr(node.target, "__name__", "")
        count = next(i for i, a in enumerate(node.args) if isinstance(a, Node))
        setting, given = node.args[:count], node.args[count + 1 :]
        region = self._read(node.args[count])
        if kind == "wrap_with_autocast" and setting[2]:
            raise InputError(
                "the model uses torch.autocast inside its forward, which cannot be captured: "
                "take it out and ask for mixed precision where the model is run."
            )
        stops = kind == "wrap_with_set_grad_enabled" and not setting[0]
        placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
        for placeholder, outer in zip(placeholders, given, strict=True):
            view = View(outer, None, (), {}) if isinstance(outer, Node) else None
            self.memory.put(placeholder, self._read(outer), view)
        self._walk(region)
        (end,) = (n for n in region.graph.nodes if n.op == "output")
        results = self._read(end.args[0])
        if stops:  # no gradient flows out of the block
            detach = torch.ops.aten.detach.default
            results = [self.builder.call(detach, v) if isinstance(v, Value) else v for v in results]
        self.memory.put(node, tuple(results))

    # -- calls -------------------------------------------------------------------------

    def _call(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._item(node)
            return
        target: Any = node.target
        if getattr(target, "__name__", "") in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            self._region(node)
            return
        if not hasattr(target, "_schema"):
            raise InputError(
                f"the model uses '{target}', which is no operator: "
                "rewrite that control flow in plain Python."
            )
        if not target._schema.returns:
            return  # an assertion
        self._locate(node)
        if _depends_on_data(node.meta.get("val")):
            raise InputError(
                f"the shape of what '{target}' returns depends on the data, which cannot be captured: "
                "use a mask, or sizes that are fixed."
            )
        args, kwargs = self._read((node.args, node.kwargs))
        if writes(target):
            self._write(node, target, args, kwargs)
            return
        value = self.builder.call(target, *args, _result=node.meta["val"], **kwargs)
        view = None
        if is_view(node):
            source: Any = node.args[0]
            view = View(source, target, tuple(args[1:]), dict(kwargs))
        self.memory.put(node, value, view)

    def _item(self, node: Node) -> None:
        source: Any = node.args[0]
        item: Any = node.args[1]
        view = self.memory.views.get(source)
        value = self.memory.read(source)[item]
        self.memory.put(node, value, view._replace(item=item) if view is not None else None)

    def _write(self, node: Node, target: Any, args: Any, kwargs: Any) -> None:
        written = node.args[0]
        assert isinstance(written, Node)
        before = args[0]
        if before.role == "buffer" or not before.dtype.is_floating_point:
            self.builder.leaf = False  # a counter is not what the module is named for
        value = self.builder.call(out_of_place(target), *args, **kwargs)
        value = self.builder.call(torch.ops.aten.to.dtype, value, before.dtype)
        if value.shape != before.shape:
            value = self.builder.call(torch.ops.aten.expand.default, value, list(before.shape))
        self.memory.write(written, value)
        self.memory.put(node, value, View(written, None, (), {}))

    def _read(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self.memory.read(argument)
        if isinstance(argument, (list, tuple)):
            return type(argument)(self._read(a) for a in argument)
        if isinstance(argument, Mapping):
            return {k: self._read(a) for k, a in argument.items()}
        return argument

    def _locate(self, node: Node) -> None:
        """Tells the builder which module the next operators belong to."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = re.sub(r"@\d+", "", stack[-1][0]) if stack else ""
        inside = path == "model" or path.startswith("model.")
        self.builder.module = path.removeprefix("model").removeprefix(".") if inside else ""
        self.builder.leaf = (
            inside and self.builder.module != "" and self.builder.module in self.leaves
        )
        used: set[Any] = {u.args[1] for u in node.users if u.target is operator.getitem}
        self.builder.wanted = used or {0}

    def _outputs(self) -> list[str]:
        (node,) = (n for n in self.program.graph.nodes if n.op == "output")
        found = []
        specs = self.program.graph_signature.output_specs
        for spec, argument in zip(specs, node.args[0], strict=True):
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT) and isinstance(
                argument, Node
            ):
                value = self.memory.read(argument)
                if isinstance(value, Value):
                    found.append(value.name)
        return found
