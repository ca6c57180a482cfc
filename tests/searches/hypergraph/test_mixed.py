"""Mixed partitions: the reported bytes are sent, the balance holds, and baselines send no less."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor

from raddle import zoo
from raddle.api.loading import capture_model
from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.runtime.threads import run_threads
from raddle.searches.baselines import BASELINES
from raddle.searches.hypergraph.mixed import MixedSolution, solve
from raddle.searches.hypergraph.mixed_step_time import improve_step_time
from raddle.searches.predict import simulate_steps
from raddle.searches.purposes import bytes_by_purpose
from raddle.simulation.timeline import simulate
from raddle.zoo.workload import Workload

pytestmark = pytest.mark.usefixtures("thread_clock")
BATCH = 8
MODELS = ("vgg16-tiny", "resnet50-tiny", "unet-tiny", "inception_v3-tiny")


@cache
def graph_of(name: str) -> Graph:
    return capture_model(name, BATCH)


@cache
def solved(name: str, parts: int) -> MixedSolution:
    return solve(graph_of(name), parts, budget=0.5)


def volume(graph: Graph, tiles: object, parts: int) -> int:
    return sum(bytes_by_purpose(lower(graph, Plan(tiles, parts, bn="local"))).values())  # type: ignore[arg-type]


@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("name", [*MODELS, "nmt-tiny", "rnnlm-tiny", "gpt-tiny"])
def test_what_is_reported_is_what_the_program_sends(name: str, parts: int) -> None:
    graph, solution = graph_of(name), solved(name, parts)
    program = lower(graph, Plan(solution.tiles, parts, bn="local"))
    check(program)
    assert solution.volume_bytes == sum(bytes_by_purpose(program).values())
    assert solution.volume_bytes == simulate(program, cluster(f"p100:1x{parts}")).comm_bytes
    assert solution.volume_bytes == sum(solution.bytes.values())


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_in_balance_and_sends_no_more_than_others(name: str, parts: int) -> None:
    graph, solution = graph_of(name), solved(name, parts)
    average = sum(solution.work) / parts
    assert max(solution.work) <= 1.1 * average * (1 + 1e-6)
    assert solution.imbalance == pytest.approx(max(solution.work) / average)
    for method in ("data", "owt", "model"):  # all of them in balance
        tiles = BASELINES[method](graph, cluster(f"p100:1x{parts}"))
        assert solution.volume_bytes <= volume(graph, tiles, parts)


def test_vgg16_at_two_and_four_parts() -> None:
    """50 and 119 MiB a step, against 1056 and 3167 of data parallelism."""
    graph = capture_model("vgg16", 32)
    assert solve(graph, 2, budget=2).volume_bytes <= 1.05 * 50 * 2**20
    assert solve(graph, 4, budget=4).volume_bytes <= 1.15 * 119 * 2**20  # 1.05 with ten seconds


def test_shares_of_the_work_follow_the_speed_of_devices() -> None:
    solution = solve(graph_of("vgg16-tiny"), 2, shares=(3, 1), budget=0.5)
    total = sum(solution.work)
    assert solution.work[0] <= 1.1 * 0.75 * total * (1 + 1e-6)
    assert solution.work[1] <= 1.1 * 0.25 * total * (1 + 1e-6)
    with pytest.raises(InputError, match="give 2 numbers"):
        solve(graph_of("vgg16-tiny"), 2, shares=(1,))


def test_no_start_that_is_given_is_better() -> None:
    graph, given_solution = graph_of("vgg16-tiny"), solved("vgg16-tiny", 4)
    again = solve(graph, 4, budget=0.01, seed=5, starts={"known": given_solution.tiles})
    assert again.volume_bytes <= given_solution.volume_bytes


def test_one_part_sends_nothing() -> None:
    assert solve(graph_of("vgg16-tiny"), 1, budget=0.1).volume_bytes == 0


# -- it runs ---------------------------------------------------------------------------------------


@cache
def workload() -> tuple[Workload, Graph]:
    """vgg16-tiny in float64 and without dropout, and its graph."""
    work = zoo.load("vgg16-tiny", batch=BATCH, device="cpu", dtype=torch.float64)
    for module in work.model.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return work, capture(work.model, work.batch, work.loss)


def optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_run_equals_the_plain_module_and_sends_what_was_predicted(parts: int) -> None:
    work, graph = workload()
    solution = solve(graph, parts, budget=0.5)
    program = lower(graph, Plan(solution.tiles, parts, bn="local"))
    batch = dict(zip(graph.inputs, work.batch, strict=True))
    result = run_threads(program, dict(work.model.named_parameters()), optimizer, lambda key: batch)

    plain = copy.deepcopy(work.model)
    step = optimizer(list(plain.parameters()))
    loss = work.loss(plain, work.batch)
    loss.backward()
    step.step()
    assert result.losses == pytest.approx([loss.item()], rel=1e-9)
    for name, tensor in plain.named_parameters():
        torch.testing.assert_close(result.state[name], tensor.detach(), rtol=1e-9, atol=1e-9)
    # The transport makes the all-reduces of parameters; all other bytes are counted where they are sent.
    sent_bytes = solution.volume_bytes - solution.bytes["parameters"]
    assert sum(result.sent.values()) == sent_bytes
    assert solution.choices


# -- by time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vgg16-tiny", "resnet50-tiny"])
def test_the_second_stage_is_never_slower(name: str) -> None:
    graph, machine = graph_of(name), cluster("p100:2x2")
    before = simulate_steps(graph, Plan(solved(name, 4).tiles, 4, bn="local"), machine)
    # A second of the budget may be needed for the starts.
    improved = improve_step_time(graph, machine, solved(name, 4), budget=4.0)
    after = simulate_steps(graph, Plan(improved.tiles, 4, bn="local"), machine)
    assert improved.before_seconds == before.step_seconds
    assert improved.step_seconds == after.step_seconds <= before.step_seconds
    assert improved.volume_bytes == after.comm_bytes
    assert improved.proposals > 0
