"""Captures an unmodified nn.Module as a graph, through torch.export.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
>>> graph = capture(model, torch.randn(2, 8), lambda model, x: model(x).square().mean())
>>> [op.name for op in graph.ops]
['0', '1', 'square', 'mean']
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import OutputKind
from torch.fx import Node

import raddle.graph.ops  # noqa: F401  (declares the operators)
from raddle.errors import InputError
from raddle.graph.aliasing import refuse_parameters_as_inputs, refuse_shared_memory
from raddle.graph.arguments import leaves
from raddle.graph.builder import Builder
from raddle.graph.dtypes import carries_gradient
from raddle.graph.graph import Graph, Value
from raddle.graph.live_part import live_part
from raddle.graph.mutation import Memory, View, is_view, out_of_place, writes_in_place
from raddle.graph.placeholders import Placeholders
from raddle.graph.recapture import CAPTURE_LOCK, capture_once_per_size, resize_batch
from raddle.graph.step_module import StepModule, batch_template
from raddle.graph.supervised import Loss
from raddle.graph.torch_export import export, source_location

# Calls in place that change the shape of their argument.
SHAPE_CHANGES = {
    f"aten::{n}_" for n in ("squeeze", "unsqueeze", "t", "transpose", "swapaxes", "resize")
}


def capture(
    model: nn.Module,
    batch: Any,
    loss: Loss | None = None,
    *,
    name: str = "",
    dims: Mapping[str, str] | None = None,
) -> Graph:
    """Captures one training step of a module as a graph of operators.

    `loss(model, batch)` calls the model and returns a floating-point scalar, or the scalar and a dict of
    metrics (supervised.py). `batch` is what a data loader gives: a tensor, or lists, tuples, mappings and
    dataclasses of tensors; what is no tensor becomes part of the graph. Without a loss the model is called
    with the batch (a mapping: its keyword arguments; a list or tuple: its arguments), and its output is
    the loss if it is a scalar.

    The inputs of the graph are called as the keys of the batch; in a list or tuple as the arguments of the
    model where the loss is None or made by `supervised`, else by their positions, `batch.0`. The first
    dimension of every input is the sample dimension, unless `dims={"x": "tnc"}` names another one `n`. The
    module is captured in its present mode (`train()` or `eval()`) and is not changed. Meta tensors are
    enough. Several threads may call it: they capture one after the other.

    In the notation below, +0 is the first row of the weight that the operator reads (ops/contraction.py).

    >>> from raddle.graph.supervised import supervised
    >>> batch = torch.randn(8, 4), torch.randn(8, 2)
    >>> graph = capture(nn.Linear(4, 2), batch, supervised(nn.functional.mse_loss))
    >>> graph.ops[0].notation, graph.inputs, graph.batch
    ('y[n c] += x[n k] * w[c+0 k] + b[c+0]', ('input', 'target'), 8)
    """
    with CAPTURE_LOCK:
        return capture_step(StepModule(model, batch, loss), name=name, dims=dims)


def capture_step(
    step: StepModule, *, name: str = "", dims: Mapping[str, str] | None = None
) -> Graph:
    """Captures a module with its batch and its loss; the arguments are those of `capture`."""
    model, batch = step.model, step.batch
    template = batch_template(model, batch, step.loss)
    names = list(template.names.values())
    tensors = [leaf for _, leaf in leaves(batch) if isinstance(leaf, Tensor)]
    refuse_parameters_as_inputs(zip(names, tensors, strict=True), model.named_parameters())
    unknown = set(dims or {}) - set(names)
    if unknown:
        raise InputError(f"dims names {sorted(unknown)}, but the inputs are {', '.join(names)}.")
    program, traced = export(step, tensors)
    translation = _Translation(program, model, names, dims or {})
    graph = translation.build_graph(name or type(model).__name__, step, traced.metrics)
    # A name may have been taken, as by a parameter; the graph has it with a number then.
    template = dataclasses.replace(
        template, names=dict(zip(template.names, graph.inputs, strict=True))
    )
    letters = {path: graph.values[n].letters for path, n in template.names.items()}

    def recapture(samples: int) -> Graph:
        again = step.with_batch(resize_batch(batch, letters, samples))
        return capture_step(again, name=name, dims=dims)

    return dataclasses.replace(
        graph,
        template=template,
        output_tree=traced.output,
        recapture=capture_once_per_size(model, recapture),
    )


def _depends_on_data(meta: Any) -> bool:
    """Returns whether the shape or value of an output is known only at run time."""
    if isinstance(meta, Tensor):
        return any(not isinstance(size, int) for size in meta.shape)
    if isinstance(meta, (list, tuple)):
        return any(_depends_on_data(m) for m in meta)
    return isinstance(meta, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_only_checked(node: Node) -> bool:
    """Returns whether a node is a number that nothing but assertions depend on (`torch._check`)."""
    if isinstance(node.meta.get("val"), (Tensor, list, tuple)):
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is not None and not schema.returns:
        return not schema.name.endswith("_")  # else it writes to a list of tensors
    return bool(node.users) and all(map(_is_only_checked, node.users))


class _Translation:
    """Translates an exported program, node by node, into a graph."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        model: nn.Module,
        input_names: Sequence[str],
        dims: Mapping[str, str],
    ) -> None:
        self.program, self.model = program, model
        self.builder = Builder()
        self.memory = Memory(self.builder)  # the current value of every node (mutation.py)
        self.placeholders = Placeholders(
            program, model, input_names, dims, self.memory, self.builder
        )
        # For each node that calls a subgraph, and each of its outputs: the node inside, if the output is a
        # tensor that came in from outside; else None.
        self.aliased_outputs: dict[Node, list[Node | None]] = {}
        self.leaf_modules = {
            n for n, m in model.named_modules() if not any(True for _ in m.children())
        }

    def build_graph(self, name: str, step: StepModule, metric_names: Sequence[str]) -> Graph:
        """Translates the program, which returns the loss if there is one, then metrics, then outputs."""
        self.placeholders.read()
        self._translate_nodes(self.program.graph_module)
        results = self._results()
        loss = results.pop(0).name if step.first_is_loss(results) else None
        metrics = {m: self._as_op_output(results.pop(0)).name for m in metric_names}
        if step.copies_outputs:
            results = [self._as_op_output(value) for value in results]
        outputs = [value.name for value in results]
        updates = {b: self._as_op_output(value).name for b, value in self.memory.updates.items()}
        states = [*self.model.named_parameters(), *self.model.named_buffers()]
        # lifted_constants, below: tensors that the module uses, but has not registered (placeholders.py)
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        refuse_shared_memory(states, self.placeholders.lifted_constants, trained | set(updates))
        wanted = {*outputs, *metrics.values(), *updates.values(), *([loss] if loss else [])}
        values, ops, fused = live_part(self.builder, wanted)
        for value in values.values():
            if 0 in value.shape:
                raise InputError(
                    f"'{value.name}' of shape {value.shape} has no elements and cannot be captured: "
                    "give example inputs that leave something to compute."
                )
        return Graph(
            name,
            values,
            ops,
            tuple(self.placeholders.inputs),
            tuple(outputs),
            loss,
            updates,
            self.placeholders.aliases,
            fused,
            {n: t for n, t in self.placeholders.constants.items() if n in values},
            metrics,
        )

    def _as_op_output(self, value: Value) -> Value:
        """Returns the value if an operator computes it; else (a buffer is set to an input) a copy of it."""
        if value.role == "op":
            return value
        self.builder.module, self.builder.is_leaf_module = "", False
        meta = torch.empty(value.shape, dtype=value.dtype, device="meta")
        copied: Value = self.builder.pointwise(
            torch.ops.aten.clone.default, (value,), {}, meta, flops_per_point=0
        )
        return copied

    # -- nodes -------------------------------------------------------------------------------

    def _translate_nodes(self, module: torch.fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "get_attr":
                attribute = getattr(module, node.target)
                if isinstance(attribute, Tensor):
                    self.memory.put_state(
                        node, self.placeholders.add_constant(node.target, attribute)
                    )
                else:
                    self.memory.put(node, attribute)
            elif node.op == "call_function":
                try:
                    self._translate_call(node)
                except InputError as error:
                    raise InputError(f"{error}{source_location(node)}") from error

    def _translate_subgraph(self, node: Node) -> None:
        """Translates a block under `no_grad` or `autocast`, which torch.export keeps as a subgraph."""
        kind = getattr(node.target, "__name__", "")
        graph_position = next(i for i, a in enumerate(node.args) if isinstance(a, Node))
        # setting: (enabled,) of set_grad_enabled, or (device, dtype, enabled, ...) of autocast
        setting, arguments = node.args[:graph_position], node.args[graph_position + 1 :]
        subgraph = self._current_value(node.args[graph_position])
        if kind == "wrap_with_autocast" and setting[2]:
            raise InputError(
                "the model uses torch.autocast inside its forward, which cannot be captured: "
                "take it out and ask for mixed precision where the model is run."
            )
        sets_grad = kind == "wrap_with_set_grad_enabled"
        without_gradient = sets_grad and not setting[0]
        placeholders = [n for n in subgraph.graph.nodes if n.op == "placeholder"]
        for placeholder, outer in zip(placeholders, arguments, strict=True):
            # None: no call makes this view, the placeholder is the same tensor as `outer` (mutation.py)
            view = View(outer, None, (), {}) if isinstance(outer, Node) else None
            self.memory.put(placeholder, self._current_value(outer), view)
        outer_no_grad = self.memory.no_grad
        if sets_grad:  # a block under autocast keeps the setting around it
            self.memory.no_grad = without_gradient
        self._translate_nodes(subgraph)
        self.memory.no_grad = outer_no_grad
        (output_node,) = (n for n in subgraph.graph.nodes if n.op == "output")
        returned: Any = output_node.args[0]
        results = list(self._current_value(returned))
        # For each output of the block, whether it is a tensor from outside (the block may have written it).
        is_outer = [
            isinstance(r, Node) and self.memory.is_same_tensor(r, placeholders) for r in returned
        ]
        self.aliased_outputs[node] = [
            r if outer else None for r, outer in zip(returned, is_outer, strict=True)
        ]
        if without_gradient:
            # Only tensors from outside, which the block may write to, keep their gradient.
            detach = torch.ops.aten.detach.default
            for position, value in enumerate(results):
                if isinstance(value, Value) and not is_outer[position]:
                    results[position] = self.builder.call(detach, value)
        self.memory.put(node, tuple(results))

    # -- calls -------------------------------------------------------------------------

    def _translate_call(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._translate_getitem(node)
            return
        target: Any = node.target
        if _is_only_checked(node):
            return
        if getattr(target, "__name__", "") in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            self._translate_subgraph(node)
            return
        if not hasattr(target, "_schema"):
            raise InputError(
                f"the model uses '{target}', which is no operator: "
                "rewrite that control flow in plain Python."
            )
        written = writes_in_place(target)
        if not target._schema.returns:
            raise InputError(
                f"the model calls '{target}', which writes in place and cannot be captured: "
                "write the results to new tensors instead."
            )
        self._set_module(node)
        if _depends_on_data(node.meta.get("val")):
            raise InputError(
                f"the shape of what '{target}' returns depends on the data, which cannot be captured: "
                "use a mask, or sizes that are fixed."
            )
        args, kwargs = self._current_value((node.args, node.kwargs))
        if written:
            self._translate_write(node, target, args, kwargs)
            return
        value = self.builder.call(target, *args, _meta=node.meta["val"], **kwargs)
        self._hidden_writes(node, args)
        view = None
        if is_view(node):
            source: Any = node.args[0]
            view = View(source, target, tuple(args[1:]), dict(kwargs))
        self.memory.put(node, value, view)

    def _hidden_writes(self, node: Node, args: Sequence[Any]) -> None:
        """Applies the writes to arguments that the schema of the call does not declare."""
        for before, after in self.builder.hidden_writes:
            for argument, value in zip(node.args, args, strict=False):
                if value is before and isinstance(argument, Node):
                    self.memory.write(argument, after)
        self.builder.hidden_writes.clear()

    def _translate_getitem(self, node: Node) -> None:
        """Translates the access to one result of a call or subgraph that returns several."""
        source: Any = node.args[0]
        item: Any = node.args[1]
        # inner: the node inside a subgraph, if this item is a tensor that came in from outside
        if (inner := self.aliased_outputs.get(source, {item: None})[item]) is not None:
            self.memory.put(node, self.memory.read(inner), View(inner, None, (), {}))
            return
        view = self.memory.views.get(source)
        value = self.memory.read(source)[item]
        self.memory.put(node, value, view._replace(item=item) if view is not None else None)

    def _translate_write(self, node: Node, target: Any, args: Any, kwargs: Any) -> None:
        """Translates a call that writes to its first argument, by the call that returns a new tensor."""
        written, before = node.args[0], args[0]
        assert isinstance(written, Node)
        if target._schema.name == "aten::detach_":  # changes the gradient, not the values
            self.memory.put(node, self.builder.call(torch.ops.aten.detach.default, before))
            return
        if before.role == "buffer" or not carries_gradient(before.dtype):
            # The module's name is for its main operator, not for a counter such as num_batches_tracked.
            self.builder.is_leaf_module = False
        value = self.builder.call(out_of_place(target), *args, **kwargs)
        value = self.builder.call(torch.ops.aten.to.dtype, value, before.dtype)
        if len(value.shape) > len(before.shape) or target._schema.name in SHAPE_CHANGES:
            raise InputError(
                f"the model changes a tensor's shape in place with '{target}', which cannot be captured: "
                "give the result a name of its own."
            )
        if value.shape != before.shape:
            value = self.builder.call(torch.ops.aten.expand.default, value, list(before.shape))
        self.memory.write(written, value)
        self.memory.put(node, self.memory.read(written), View(written, None, (), {}))

    def _current_value(self, argument: Any) -> Any:
        """Returns an argument of a node, with the current values in place of nodes."""
        if isinstance(argument, Node):
            return self.memory.read(argument)
        if isinstance(argument, (list, tuple)):
            return type(argument)(self._current_value(a) for a in argument)
        if isinstance(argument, Mapping):
            return {k: self._current_value(a) for k, a in argument.items()}
        return argument

    def _set_module(self, node: Node) -> None:
        """Tells the builder the module of the next operators and the outputs that are used."""
        # A path is such as "model.features.0" (StepModule keeps the user's module as `model`); torch.export
        # adds @1 and so on if a module is called again.
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = re.sub(r"@\d+", "", stack[-1][0]) if stack else ""
        inside = path == "model" or path.startswith("model.")
        self.builder.module = path.removeprefix("model").removeprefix(".") if inside else ""
        self.builder.is_leaf_module = (
            inside and self.builder.module != "" and self.builder.module in self.leaf_modules
        )
        used: set[Any] = {u.args[1] for u in node.users if u.target is operator.getitem}
        self.builder.used_outputs = used or {0}

    def _results(self) -> list[Value]:
        """Returns the values that the program returns."""
        (node,) = (n for n in self.program.graph.nodes if n.op == "output")
        values = []
        specs = self.program.graph_signature.output_specs
        for spec, argument in zip(specs, node.args[0], strict=True):
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT) and isinstance(
                argument, Node
            ):
                value = self.memory.read(argument)
                if isinstance(value, Value):
                    values.append(value)
        return values
