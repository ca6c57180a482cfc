"""Tests of each part of a trainer on its own, with one rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.step_module import OutputModule, StepModule
from raddle.graph.supervised import supervised
from raddle.plans.notation import read_tiling
from raddle.plans.plan import Plan, describe_inputs
from raddle.program.lower import lower
from raddle.runtime.capture_batch import capture_batch, capture_evaluation
from raddle.runtime.evaluation import Evaluation
from raddle.runtime.optimizer_step import OptimizerStep
from raddle.runtime.resized_step import ResizedStep
from raddle.runtime.setup import Setup
from raddle.runtime.state import TrainingState, initialise_slots, owners_of
from raddle.runtime.step_runner import StepRunner
from raddle.runtime.tile_optimizer import make_optimizer
from raddle.transport.thread_transport import Hub

CPU = torch.device("cpu")
X, Y = torch.ones(4, 3), torch.zeros(4, 2)


def mean(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(y, target)


def setup() -> Setup:
    """The setup of one rank: a model with batch norm and dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    graph = capture(model, (X, Y), supervised(mean))
    tiles = {op.name: read_tiling(op, "@0") for op in graph.ops}
    plan = Plan(tiles, 1, inputs=describe_inputs(graph), fingerprint=graph.fingerprint())
    return Setup(model, lower(graph, plan), Hub(1).transport(0), CPU, loss=supervised(mean))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_a_setup_makes_executors_and_exchanges() -> None:
    rank_setup = setup()
    assert rank_setup.exchange({"a": 1}) == [{"a": 1}]
    assert rank_setup.make_executor(rank_setup.program, seed=3).input_feeder.seed == 3
    assert (rank_setup.rank, rank_setup.plan, rank_setup.graph) == (
        0,
        rank_setup.program.plan,
        rank_setup.program.graph,
    )


def test_a_module_is_captured_again_for_a_batch() -> None:
    rank_setup = setup()
    again = capture_batch(rank_setup.model, (X, Y), rank_setup.loss)
    assert again.fingerprint() == rank_setup.graph.fingerprint()
    step = StepModule(rank_setup.model, (X, Y), rank_setup.loss)
    evaluated = capture_evaluation(step, {"input": "nc", "target": "nc"})
    assert not evaluated.updates
    assert rank_setup.model.training


def test_a_state_goes_out_and_comes_back() -> None:
    rank_setup = setup()
    executor = rank_setup.make_executor(rank_setup.program)
    initialise_slots(rank_setup, executor, 0)
    optimizer = make_optimizer(rank_setup, executor, sgd)
    state = TrainingState(rank_setup, executor, optimizer)
    saved, expected = state.module_state(), rank_setup.model.state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())
    assert saved.keys() == expected.keys()
    state.load_module_state({name: tensor + 1 for name, tensor in saved.items()})
    assert all(
        torch.equal(state.module_state()[name], tensor + 1) for name, tensor in saved.items()
    )
    optimizer_state = state.optimizer_state()
    optimizer_state["param_groups"][0]["lr"] = 7.0
    state.load_optimizer_state(optimizer_state)
    assert optimizer.param_groups[0]["lr"] == 7.0
    assert set(owners_of(rank_setup.program).values()) == {0}


def test_steps_of_any_size_train_the_same_parameters() -> None:
    rank_setup = setup()
    executor = rank_setup.make_executor(rank_setup.program)
    initialise_slots(rank_setup, executor, 0)
    executor.optimizer_step = make_optimizer(rank_setup, executor, sgd).step  # type: ignore[assignment]
    stepping = StepRunner(rank_setup, executor)
    before = [p.detach().clone() for _, p in executor.parameters()]
    for step, size in enumerate((4, 2)):
        assert torch.isfinite(stepping.run_step([X[:size], Y[:size]], step))
        after = [p.detach().clone() for _, p in executor.parameters()]
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        before = after
    stepping.set_seed(9)
    assert executor.input_feeder.seed == 9


def test_a_resized_plan_lends_and_returns() -> None:
    rank_setup = setup()
    executor = rank_setup.make_executor(rank_setup.program)
    initialise_slots(rank_setup, executor, 0)
    updates = []
    executor.optimizer_step = lambda: updates.append(1)
    resized = ResizedStep(rank_setup, executor, 3)
    resized.run({"input": X[:3], "target": Y[:3]}, 0)
    assert updates == [1]
    for source in resized.executor.rank_actions.sources_with_role("buffer"):
        theirs = next(
            s for s in executor.rank_actions.sources_with_role("buffer") if s.name == source.name
        )
        assert resized.executor.slots[source.slot] is executor.slots[theirs.slot]


def test_an_evaluation_reads_what_training_has() -> None:
    rank_setup = setup()
    executor = rank_setup.make_executor(rank_setup.program)
    initialise_slots(rank_setup, executor, 0)
    state = TrainingState(rank_setup, executor, make_optimizer(rank_setup, executor, sgd))
    step = StepModule(rank_setup.model, (X, Y), rank_setup.loss)
    evaluation = Evaluation(rank_setup, executor, state, step)
    assert evaluation.fits(step)
    assert not evaluation.fits(step.with_batch((X[:2], Y[:2])))
    alone = OutputModule(rank_setup.model, {"x": X}, 1)
    assert not evaluation.fits(alone)
    loss = evaluation.run((X, Y), 0).loss
    output = Evaluation(rank_setup, executor, state, alone).output_of({"x": X}, 0)
    expected = rank_setup.model.eval()(X)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(loss, mean(expected, Y))


def test_an_update_refuses_and_clips() -> None:
    rank_setup = setup()
    executor = rank_setup.make_executor(rank_setup.program)
    initialise_slots(rank_setup, executor, 0)
    optimizer = make_optimizer(rank_setup, executor, sgd)
    stepping = StepRunner(rank_setup, executor)
    updating = OptimizerStep(
        rank_setup, executor, optimizer, lambda: 5, stepping.current_loss, clip_norm=0.5
    )
    assert "norm" in updating.barrier_reason
    parameters = [p for _, p in executor.parameters()]
    for p in parameters:
        p.grad = torch.ones_like(p)
    updating()
    norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
    assert float(norm) == pytest.approx(0.5, rel=1e-4)
    executor.optimizer_step = OptimizerStep(
        rank_setup, executor, optimizer, lambda: 5, stepping.current_loss, check_finite=True
    )
    stepping.run_step([X, Y], 0)
    for size in (4, 2):  # the planned size, and another one
        with pytest.raises(FloatingPointError, match="is nan in step 5: nothing was updated"):
            stepping.run_step([X[:size] * float("nan"), Y[:size]], 1)
    assert all(p.isfinite().all() for p in parameters)


def test_an_optimizer_of_whole_tensors_is_refused_where_they_are_split() -> None:
    rank_setup = setup()
    op = next(op for op in rank_setup.graph.ops if op.kind == "linear")
    tiles = {**rank_setup.plan.tiles, op.name: read_tiling(op, "c/2 @0,1")}
    program = lower(rank_setup.graph, Plan(tiles, 2))
    split = Setup(rank_setup.model, program, Hub(2).transport(0), CPU, loss=supervised(mean))
    executor = split.make_executor(program)
    initialise_slots(split, executor, 0)
    with pytest.raises(InputError, match="LBFGS looks at whole tensors, but the plan splits"):
        make_optimizer(split, executor, torch.optim.LBFGS)
