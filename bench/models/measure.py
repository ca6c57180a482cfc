"""What the sweep does with one model: a plain step, torch.export, capture, and the comparison of a step."""

from __future__ import annotations

import copy
import random
import time
import traceback
import warnings
from typing import Any

import torch
from rows import MAX_PARAMETERS, Example, Row
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.arguments import leaves
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.interpret import interpret
from raddle.graph.torch_export import StepModule
from raddle.verification.precision import DoublePrecisionMode, module_to_double, to_double
from raddle.verification.substitutes import Substitutes
from raddle.zoo.loading import default_dtype

TOLERANCE = 1e-9
SEED = 7  # of dropout
Result = dict[str, Any]


def measure(row: Row, is_exported: bool, *, strict: bool, compared: bool) -> Result:
    """Returns the results of one architecture as JSON.

    is_exported: the row has an outcome of torch.export. strict: whether to try strict export too. compared:
    whether to compare a step with that of the plain module.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result: Result = {"library": row.library, "name": row.name}
    try:
        example = row.build()
    except Exception as error:
        return {**result, "outcome": "not built", "reason": sentence(error)}
    parameters = sum(p.numel() for p in example.model.parameters())
    result |= {"configuration": example.configuration, "parameters": parameters}
    if parameters > MAX_PARAMETERS:
        return {
            **result,
            "outcome": "not built",
            "reason": f"{parameters} parameters: sizes not reduced",
        }
    try:
        loss, _ = plain_step(copy.deepcopy(example), None)
        assert loss.shape == (), "the loss is no scalar"
    except Exception as error:
        return {**result, "outcome": "not trained", "reason": sentence(error)}
    if not is_exported or strict:
        result |= export_outcomes(example, strict=strict)
    return result | capture_outcome(example, compared)


def sentence(error: BaseException) -> str:
    """The first line of an error, with its type and the last line of the code that raised it."""
    lines = str(error).strip().splitlines() or [""]
    frames = traceback.extract_tb(error.__traceback__)
    where = (
        f" [{frames[-1].filename.split('site-packages/')[-1]}:{frames[-1].lineno}]"
        if frames
        else ""
    )
    return f"{type(error).__name__}: {lines[0][:300]}" + (
        "" if isinstance(error, InputError) else where
    )


def plain_step(example: Example, graph: Graph | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Runs a step of the module; graph: gives its random numbers, None: torch draws them."""
    model, batch = example.model, example.batch
    if graph is None:
        loss = example.loss(model, batch)
    else:
        with Substitutes(graph, SEED) as substitutes:
            loss = example.loss(model, batch)
        substitutes.finish()
    return loss, gradients(loss, model)


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(
        loss, list(trained.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(trained, grads, strict=True))


def export_outcomes(example: Example, *, strict: bool) -> Result:
    """Whether torch.export exports the module with its loss, strict and not, and in how many seconds."""
    result: Result = {}
    for key, is_strict in (("export", False), ("strict_export", True))[: 2 if strict else 1]:
        copied = copy.deepcopy(example)
        step = StepModule(copied.model, copied.batch, copied.loss)
        tensors = tuple(leaf for _, leaf in leaves(copied.batch) if isinstance(leaf, Tensor))
        start = time.perf_counter()
        try:
            torch.export.export(step, tensors, strict=is_strict)
            result[key] = "ok"
        except Exception as error:
            result[key] = sentence(error)
        result[f"{key}_s"] = round(time.perf_counter() - start, 2)
    return result


def capture_outcome(example: Example, compared: bool) -> Result:
    """Captures the model and compares a step in float64, whole and with random tiles."""
    start = time.perf_counter()
    try:
        graph = capture(example.model, example.batch, example.loss)
    except Exception as error:
        outcome = "refused" if isinstance(error, InputError) else "raddle failed"
        return {
            "outcome": outcome,
            "reason": str(error)[:2000] if outcome == "refused" else sentence(error),
        }
    result: Result = {
        "capture_s": round(time.perf_counter() - start, 2), "ops": len(graph.ops),
        "opaque": [{"op": op.name, "kind": op.label} for op in graph.opaque_ops],
        "kinds": sorted({op.kind for op in graph.ops}),
    }  # fmt: skip
    if not compared:
        return {**result, "outcome": "captured"}
    try:
        return {**result, **compare(example)}
    except Exception as error:
        return {**result, "outcome": "not compared", "reason": sentence(error)}


def compare(example: Example) -> Result:
    """Compares loss and gradients of the graph and of the plain module in float64."""
    double = to_float64(example)
    with default_dtype(torch.float64), DoublePrecisionMode():
        graph = capture(double.model, double.batch, double.loss)
        expected_loss, expected = plain_step(
            double._replace(model=copy.deepcopy(double.model)), graph
        )
    errors: dict[str, float] = {}
    for how, options in (("whole", {"fuse": False}), ("tiles", {"tiles": random_tiles(graph)})):
        loss, actual = graph_step(graph, double, options)
        scale = torch.stack([g.abs().square().sum() for g in expected.values()]).sum().sqrt()
        worst = (
            max((actual[n] - g).abs().square().sum().sqrt() for n, g in expected.items()) / scale
        )
        errors[how] = max(float(worst), abs(float((loss - expected_loss) / expected_loss)))
    unequal = [
        f"{how} differs by {error:.1e}" for how, error in errors.items() if not error <= TOLERANCE
    ]
    if unequal:
        return {"outcome": "unequal", "reason": ", ".join(unequal), "errors": errors}
    return {"outcome": "captured", "errors": errors}


def to_float64(example: Example) -> Example:
    model, inputs, targets, loss, name = copy.deepcopy(example)
    module_to_double(model)
    if isinstance(loss, nn.Module):
        module_to_double(loss)
    return Example(model, to_double(inputs), to_double(targets), loss, name)


def graph_step(
    graph: Graph, example: Example, options: dict[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Runs a step of the graph, in one process."""
    model = example.model
    tensors = [leaf for _, leaf in leaves(example.batch) if isinstance(leaf, Tensor)]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given = {**state, **dict(zip(graph.inputs, tensors, strict=True))}
    values = interpret(graph, given, seed=SEED, **options)
    assert graph.loss is not None
    loss = values[graph.loss]
    return loss.detach(), gradients(loss, model)


def random_tiles(graph: Graph) -> dict[str, Any]:
    """One cut of a random dimension for most operators that have one."""
    from raddle.graph.box import Box

    rng, tiles = random.Random(SEED), {}
    for op in graph.ops:
        full = op.space.full
        able = [d for d, dim in enumerate(op.space.dims) if not dim.unsplittable and dim.size > 1]
        if able and rng.random() < 0.8:
            d = rng.choice(able)
            at = rng.randrange(1, op.space.dims[d].size)
            low = Box(full.lo, (*full.hi[:d], at, *full.hi[d + 1 :]))
            high = Box((*full.lo[:d], at, *full.lo[d + 1 :]), full.hi)
            tiles[op.name] = [low, high]
    return tiles
