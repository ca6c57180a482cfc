"""Native dropout of attention: its masks, its gradients, and that a plan and a seed fix its bits."""

from __future__ import annotations

import pathlib
import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import on_threads
from small_models import make_plan
from torch import Tensor, nn

from raddle import zoo
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph, Op
from raddle.graph.supervised import supervised
from raddle.plans import plan_file
from raddle.plans.native_dropout import has_native_dropout
from raddle.plans.notation import read_tiling
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.segments import segments
from raddle.runtime.execution.compiled_functions import NotCompiled
from raddle.runtime.job import load_job
from raddle.runtime.trainer import Trainer
from raddle.searches.planning import plan_for

P = 0.25  # probability of dropout
N, H, T = 2, 4, 24  # samples, heads, queries and keys

# Tilings of attention [samples heads queries features]: whole, split, and with a copy on each device
SPLITS = [
    "@0", "x2 @0,1",
    "{samples}/2 @0,1", "{heads}/2 @0,1", "{queries}/2 @0,1", "{queries}/(2,{others}) @1,0",
]  # fmt: skip


def sgd(rate: float) -> Any:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def loss(y: Tensor) -> Tensor:
    return y.sum()


def tiling(op: Op, split: str) -> str:
    """A tiling of attention in plan notation. split: the tiling with the names of SPLITS."""
    dims = [op.space.dims[d] for d in op.space.outputs[0]]
    names = ("samples", "heads", "queries", "features")
    letters = {name: dim.name for name, dim in zip(names, dims, strict=True)}
    return split.format(**letters, others=dims[2].size - 2)


def attention_plan(graph: Graph, split: str = "@0", **more: Any) -> Plan:
    """A plan that splits all attention; other operators are whole on device 0."""
    tiles = {op.name: tiling(op, split) for op in graph.ops if op.kind == "attention"}
    return make_plan(graph, tiles, 1 if split == "@0" else 2, **more)


def train(
    model: nn.Module, graph: Graph, plan: Plan, x: Tensor, steps: int = 1, **more: Any
) -> Any:
    """Trains; returns the state of the module after each step."""

    def work(trainer: Trainer) -> list[dict[str, Tensor]]:
        states = []
        for _ in range(steps):
            trainer.step((x,))
            states.append(trainer.state_dict())
        return states

    return on_threads(
        plan.devices,
        work,
        model,
        more.pop("optimizer", sgd(1.0)),
        plan=plan,
        graph=graph,
        loss=supervised(loss, targets=0),
        **more,
    )[0]


def same(states: list[dict[str, Tensor]], others: list[dict[str, Tensor]]) -> bool:
    """Whether all states are equal, bit for bit."""
    return all(
        torch.equal(state[name], other[name])
        for state, other in zip(states, others, strict=True)
        for name in state
    )


# -- masks --------------------------------------------------------------------------------------------


class Masks(nn.Module):
    """The gradient of `w` is the result of attention, which shows its mask: scores are 0, values the unit
    matrix. So each result is 0, or one over the number of visible keys and over the share that is kept."""

    def __init__(self, *shape: int, causal: bool = False) -> None:
        super().__init__()
        self.w, self.causal = nn.Parameter(torch.zeros(*shape, dtype=torch.float64)), causal

    def forward(self, x: Tensor) -> Tensor:
        q = x[..., :2] * 0.0
        y = F.scaled_dot_product_attention(q, q, x, dropout_p=P, is_causal=self.causal)
        return y * self.w


def masks(split: str, *, causal: bool = False, steps: int = 1, seed: int = 3) -> list[Tensor]:
    """By step, which weights were kept, as numbers 0 and 1."""
    model, x = (
        Masks(N, H, T, T, causal=causal),
        torch.eye(T, dtype=torch.float64).expand(N, H, T, T),
    )
    graph = capture(model, (x,), supervised(loss, targets=0))
    plan = attention_plan(graph, split)
    states = train(model, graph, plan, x, steps, seed=seed)
    totals = [torch.zeros_like(model.w), *(state["w"] for state in states)]
    visible = torch.arange(1, T + 1) if causal else torch.full((T,), T)
    kept = [(a - b) * visible[:, None] * (1 - P) for a, b in pairwise(totals)]
    for mask in kept:
        assert torch.all((mask.abs() < 1e-9) | ((mask - 1).abs() < 1e-9))
    return [mask.round() for mask in kept]


@pytest.mark.parametrize("split", SPLITS)
def test_masks_have_the_right_mean_and_variance(split: str) -> None:
    first, second = masks(split, steps=2)
    deviation = (P * (1 - P)) ** 0.5
    for mask in (first, second):
        assert mask.mean().item() == pytest.approx(1 - P, abs=5 * deviation / mask.numel() ** 0.5)
        for dim in (-1, -2):  # means over rows and columns vary as those of independent elements
            spread = mask.mean(dim).std().item()
            assert spread == pytest.approx(deviation / T**0.5, rel=0.3)
    # steps, samples, heads, and the halves of the queries have masks of their own
    pairs = [(first, second), (first[0], first[1]), (first[:, :2], first[:, 2:])]
    pairs += [(first[..., : T // 2, :], first[..., T // 2 :, :])]
    for one, other in pairs:
        together = (one * other).mean().item()
        assert together == pytest.approx((1 - P) ** 2, abs=0.05)


@pytest.mark.parametrize("split", SPLITS)
def test_hidden_keys_stay_hidden(split: str) -> None:
    (mask,) = masks(split, causal=True)
    assert not mask.triu(1).any()
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    assert mask[..., visible].mean().item() == pytest.approx(1 - P, abs=0.04)


def test_micro_batches_have_their_own_masks() -> None:
    model, x = Masks(H, T, T), torch.eye(T, dtype=torch.float64).expand(N, H, T, T)
    graph = capture(model, (x[:1],), supervised(loss, targets=0))
    plan = attention_plan(graph, microbatches=N, batch=N)
    (state,) = train(model, graph, plan, x)
    # micro-batches have equal weights in the loss: the gradient is the mean of their masks
    kept = (-state["w"] * N * T * (1 - P)).round()
    assert set(kept.unique().tolist()) == {0.0, 1.0, 2.0}
    assert (kept == 2).double().mean().item() == pytest.approx((1 - P) ** 2, abs=0.05)


# -- a network of two layers -----------------------------------------------------------------------------


class Layers(nn.Module):
    """Two layers of causal attention with dropout: [n t c] -> [n t c], with two heads."""

    def __init__(self, layers: int = 2, p: float = P, heads: int = 2, width: int = 8) -> None:
        super().__init__()
        self.heads, self.p = heads, p
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (
                y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv(x).chunk(3, -1)
            )
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
            x = x + out(y.transpose(1, 2).flatten(2))
        return x


def network() -> tuple[nn.Module, Graph, Tensor]:
    torch.manual_seed(0)
    model, x = Layers().double(), torch.randn(4, 6, 8, dtype=torch.float64)
    return model, capture(model, (x,), supervised(loss, targets=0)), x


@pytest.mark.parametrize("split", SPLITS)
def test_a_plan_and_a_seed_fix_the_bits(split: str) -> None:
    model, graph, x = network()
    plan = attention_plan(graph, split)
    torch.manual_seed(1)
    states = train(model, graph, plan, x, 3, seed=5, optimizer=sgd(0.01))
    torch.manual_seed(2)
    again = train(model, graph, plan, x, 3, seed=5, optimizer=sgd(0.01))
    assert same(states, again)
    assert not same(states, train(model, graph, plan, x, 3, seed=6, optimizer=sgd(0.01)))
    recomputed = replace(plan, recompute=(tuple(op.name for op in graph.ops[:-1]),))
    assert same(states, train(model, graph, recomputed, x, 3, seed=5, optimizer=sgd(0.01)))
    blocks = tuple((op.name,) for op in graph.ops[:-1])
    recomputed = replace(plan, recompute=blocks)
    assert same(states, train(model, graph, recomputed, x, 3, seed=5, optimizer=sgd(0.01)))


@pytest.mark.parametrize("sync", ["allreduce", "sharded:parameters"])
def test_recomputing_changes_no_bit_of_data_parallelism(sync: str) -> None:
    model, graph, x = network()
    plan, recomputed = (
        plan_for(graph, cluster("local:2"), "data", sync=sync, recompute=count)
        for count in (None, 2)
    )
    assert recomputed.recompute != plan.recompute == ()
    states = train(model, graph, plan, x, 3, optimizer=sgd(0.01))
    assert same(states, train(model, graph, recomputed, x, 3, optimizer=sgd(0.01)))
    exact = train(model, graph, replace(plan, dropout="exact"), x, 3, optimizer=sgd(0.01))
    assert not same(states, exact)


def test_copies_have_equal_masks() -> None:
    model, graph, x = network()
    one, copies = (attention_plan(graph, split) for split in ("@0", "x2 @0,1"))
    assert same(train(model, graph, one, x, 2), train(model, graph, copies, x, 2))


def test_other_random_numbers_stay_as_they_are() -> None:
    model, graph, x = network()
    torch.manual_seed(7)
    state = torch.get_rng_state()
    train(model, graph, attention_plan(graph), x, 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_exact_masks_do_not_depend_on_the_plan() -> None:
    model, graph, x = network()
    plans = [attention_plan(graph, split) for split in SPLITS]
    results = [train(model, graph, plan, x, dropout="exact", optimizer=sgd(0.01)) for plan in plans]
    in_plan = train(model, graph, replace(plans[0], dropout="exact"), x, optimizer=sgd(0.01))
    assert same(results[0], in_plan)
    for (state,) in results[1:]:
        torch.testing.assert_close(state, results[0][0], rtol=1e-11, atol=1e-13)
    native = train(model, graph, plans[0], x, optimizer=sgd(0.01))
    assert not same(native, in_plan)


def test_gradients_are_right_in_the_mean() -> None:
    """The loss is linear in the weights of one attention: its mean gradient is that without dropout."""
    torch.manual_seed(0)
    model, x = Layers(layers=1).double(), torch.randn(4, 6, 8, dtype=torch.float64)
    graph = capture(model, (x,), supervised(loss, targets=0))
    steps, rate = 600, 1e-9  # so small that parameters stay where they are
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plan = attention_plan(graph, "{heads}/2 @0,1")
    states = [before, *train(model, graph, plan, x, steps, optimizer=sgd(rate))]
    reference = Layers(layers=1, p=0.0).double()
    reference.load_state_dict(before)
    reference(x).sum().backward()
    for name, parameter in reference.named_parameters():
        gradients = torch.stack([(a[name] - b[name]) / rate for a, b in pairwise(states)])
        error = gradients.std(0) / steps**0.5
        assert parameter.grad is not None
        deviations = (gradients.mean(0) - parameter.grad).abs() / (error + 1e-5)
        assert deviations.max() < 5, name
        if "qkv" in name:  # dropout changes single gradients much
            assert gradients.std(0).max() > 0.05 * parameter.grad.abs().max()


def test_compiled_functions_draw_what_the_seed_says() -> None:
    model, graph, x = network()
    plan = attention_plan(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiled)
        states, again, other = (
            train(model, graph, plan, x, 2, seed=s, compile=True, optimizer=sgd(0.01))
            for s in (5, 5, 6)
        )
    assert same(states, again)
    assert not same(states, other)


# -- rules ------------------------------------------------------------------------------------------------


def test_a_segment_draws_once() -> None:
    _, graph, _ = network()
    attention = {op.name for op in graph.ops if op.kind == "attention"}
    counts = [
        [sum(op.name in attention for op in ops) for ops in segments(lower(graph, plan), 0)]
        for plan in (attention_plan(graph), attention_plan(graph, dropout="exact"))
    ]
    assert counts == [[1, 1], [2]]


def test_a_compiled_segment_draws_once_where_devices_have_copies() -> None:
    """Copies need equal masks; a tile of one device shares a segment, which starts sooner, with others."""
    _, graph, _ = network()
    counts = {}
    for split, devices in (("@0", 1), ("x2 @0,1", 2)):
        plan = make_plan(graph, {op.name: split for op in graph.ops}, devices, bucket=1 << 24)
        device_segments = segments(lower(graph, plan), 0, compiled=True)
        counts[split] = [sum(op.kind == "attention" for op in ops) for ops in device_segments]
    assert {split: max(drawing) for split, drawing in counts.items()} == {"@0": 2, "x2 @0,1": 1}


def test_masks_are_exact_where_native_ones_would_differ() -> None:
    _, graph, _ = network()
    (op, _) = (op for op in graph.ops if op.kind == "attention")
    plan = attention_plan(graph)
    natively = {
        split: has_native_dropout(plan, op, read_tiling(op, tiling(op, split)))
        for split in (*SPLITS, "{samples}/2 @0,0", "{features}/2 @0,1")
    }
    # several tiles on a device, and tiles with other features of the same queries
    assert [split for split, native in natively.items() if not native] == [
        "{samples}/2 @0,0",
        "{features}/2 @0,1",
    ]
    assert not has_native_dropout(replace(plan, dropout="exact"), op, read_tiling(op, "@0"))


def test_a_job_may_take_another_kind_than_its_file_says(tmp_path: pathlib.Path) -> None:
    work = zoo.load("gpt-tiny", device="cpu")
    graph = capture(work.model, work.batch, work.loss, name=work.name)
    path = tmp_path / "plan.json"
    plan = plan_for(graph, cluster("local:1"), "data", model="gpt-tiny")
    plan_file.save(replace(plan, dropout="exact"), graph, path)
    kinds = [load_job(str(path), dropout=kind).plan.dropout for kind in ("", "native", "exact")]
    assert kinds == ["exact", "native", "exact"]


def test_refuses_another_kind_of_dropout() -> None:
    model, graph, x = network()
    with pytest.raises(InputError, match="dropout is 'none': choose one of native, exact"):
        train(model, graph, attention_plan(graph), x, dropout="none")
