"""The layers of random graphs form no cycle, and every cut between them trains as the plain module does.

The random graphs have values that depend on no sample ("fixed" values). These have every role that a value
can have, form chains and diamonds, and are read by early layers, late layers and several layers.
"""

# v: a layer (a node of the partitioner's graph), k: number of a source or step

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_plans import PipelineTask, pipeline
from pipeline_reference import ideals
from torch import Tensor, nn

from raddle.graph.capture import capture
from raddle.graph.supervised import supervised
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.searches.grids import batch_independent
from raddle.searches.pipeline.layer_graph import LayerGraph, build_layer_graph, stage_op_names
from raddle.searches.pipeline.layers import topological_order

WIDTH, SAMPLES = 6, 4

# The kinds of sources that fixed values are computed from, named by their role in the graph.
SOURCES = (
    "parameter", "frozen", "buffer", "written buffer", "buffer written later", "constant", "input", "op"
)  # fmt: skip

FUNCTIONS = {
    "add 1": lambda a, _: a + 1,
    "double": lambda a, _: a * 2,
    "cosine": lambda a, _: a.cos(),
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
}


class Fixed(NamedTuple):
    """A fixed value: a function of two earlier fixed values."""

    function: str  # a key of FUNCTIONS
    a: int  # number of a fixed value, modulo how many there are
    b: int  # as a


class Step(NamedTuple):
    """A step of the module: applies a linear layer, multiplies by a fixed value, or adds another value."""

    kind: str  # linear | fixed | join
    a: int  # number of the value of samples it reads, modulo how many there are
    b: int  # number of the fixed value (fixed), or of the other value of samples (join)


class Recipe(NamedTuple):
    """Describes a random module."""

    sources: tuple[str, ...]
    fixed: tuple[Fixed, ...]
    steps: tuple[Step, ...]


NUMBERS = st.integers(0, 20)
RECIPES = st.builds(
    Recipe,
    st.lists(st.sampled_from(SOURCES), min_size=1, max_size=4).map(tuple),
    st.lists(st.builds(Fixed, st.sampled_from(list(FUNCTIONS)), NUMBERS, NUMBERS), max_size=6).map(
        tuple
    ),
    st.lists(
        st.builds(Step, st.sampled_from(["linear", "linear", "fixed", "join"]), NUMBERS, NUMBERS),
        min_size=2,
        max_size=8,
    ).map(tuple),
)


class Random(nn.Module):
    """The module of a recipe; its linear layers are named by the numbers of their steps."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recipe = recipe
        self.layers = nn.ModuleDict(
            {
                str(k): nn.Linear(WIDTH, WIDTH)
                for k, s in enumerate(recipe.steps)
                if s.kind == "linear"
            }
        )
        for k, role in enumerate(recipe.sources):
            value = torch.linspace(0.5, 1.5, WIDTH) + 0.1 * k
            if role in ("parameter", "frozen"):
                setattr(self, f"fixed{k}", nn.Parameter(value, requires_grad=role == "parameter"))
            elif "buffer" in role:
                self.register_buffer(f"fixed{k}", value)
        self.double()

    def source(self, k: int, given: Tensor) -> Tensor:
        role = self.recipe.sources[k]
        if role == "op":
            return torch.arange(WIDTH, dtype=torch.float64) / WIDTH
        if role == "constant":
            return torch.tensor([0.1 * i for i in range(WIDTH)], dtype=torch.float64)
        if role == "input":
            return given.expand(WIDTH)
        value: Tensor = getattr(self, f"fixed{k}")
        if role == "buffer written later":
            before = value * 2
            value.mul_(0.9)
            return before
        return value.mul_(0.9) if role == "written buffer" else value

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        fixed = [self.source(k, given) for k in range(len(self.recipe.sources))]
        for function, a, b in self.recipe.fixed:
            fixed.append(FUNCTIONS[function](fixed[a % len(fixed)], fixed[b % len(fixed)]))
        values = [x]
        for k, (kind, a, b) in enumerate(self.recipe.steps):
            value = values[-1 - a % len(values)]
            if kind == "linear":
                value = self.layers[str(k)](value)
            elif kind == "fixed":
                value = value * fixed[b % len(fixed)]
            else:
                value = value + values[b % len(values)]
            values.append(value)
        return torch.stack([v.tanh().sum() for v in values[1:]]).sum()


INPUTS = (
    torch.linspace(-1, 1, SAMPLES * WIDTH, dtype=torch.float64).view(SAMPLES, WIDTH),
    torch.tensor(0.7, dtype=torch.float64),  # an input without dimensions has no samples
)


def is_acyclic(layer_graph: LayerGraph) -> bool:
    """Whether every layer is read only by layers with higher numbers."""
    assert sorted(n for names in layer_graph.op_names for n in names) == sorted(
        op.name for op in layer_graph.graph.ops
    )
    topological_order(layer_graph.successors)
    return all(v < min(readers, default=v + 1) for v, readers in enumerate(layer_graph.successors))


@settings(max_examples=max(5, settings().max_examples // 3))
@given(RECIPES, st.randoms(use_true_random=False))
def test_every_convex_cut_of_a_random_graph_trains_as_the_module(
    recipe: Recipe, rng: random.Random
) -> None:
    model = Random(recipe)
    if not any(True for _ in model.parameters()):
        return
    piped = PipelineTask(model, INPUTS, steps=2)
    layer_graph = build_layer_graph(piped.graph)
    assert is_acyclic(layer_graph)
    every = ideals(layer_graph.successors)[1:-1][:24]
    run = rng.choice([*every, None])
    for first in every:
        last = set(range(len(layer_graph.op_names))) - first
        stages = stage_op_names(layer_graph, [sorted(first), sorted(last)])
        plan = pipeline(piped, 2, 2, "1f1b", stages=stages)
        check(lower(piped.graph, plan))
        if first is run:
            piped.verify(plan)


class Late(nn.Module):
    """`late` is computed before `early`, but read after it: the smallest module that once gave a cycle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(float(WIDTH))
        late, early = positions + 1, positions * 2
        result: Tensor = self.b(self.a(x) * early) * late
        return result


def test_what_depends_on_no_sample_is_with_the_earliest_layer_that_reads_it() -> None:
    layer_graph = build_layer_graph(
        capture(Late(), (torch.zeros(SAMPLES, WIDTH),), supervised(torch.sum, targets=0))
    )
    assert layer_graph.op_names == (("arange", "mul", "a", "mul_1"), ("add", "b", "mul_2", "sum"))
    assert layer_graph.successors == ((1,), ())


class Samples(nn.Module):
    """A module whose loss depends on no sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.cos().sum()


def test_a_graph_without_samples_is_one_layer() -> None:
    graph = capture(Samples(), [torch.zeros(SAMPLES, WIDTH)])
    assert build_layer_graph(graph).op_names == (tuple(op.name for op in graph.ops),)


def test_the_sources_of_random_graphs_have_all_roles() -> None:
    """If values get a new role that depends on no sample, SOURCES must have it too."""
    every = Recipe(SOURCES, (), tuple(Step("fixed", 0, k) for k in range(len(SOURCES))))
    graph = capture(Random(every), INPUTS)
    fixed = batch_independent(graph)
    read = {i for op in graph.ops if op.name not in fixed for i in op.inputs}
    made = {i for op in graph.ops if op.name in fixed for i in op.inputs}
    roles = {graph.values[name].role for name in read | made} - {"op"}
    assert roles == {"input", "parameter", "frozen", "buffer", "constant"}
