"""Plans with sliced parameters train as the plain module does, with all options of a trainer."""

from __future__ import annotations

import copy
import dataclasses
import logging
import re
import threading
import time
from typing import Any

import pytest
import torch
from ranks import on_threads
from test_trainer import Net, assert_equal, batches, graph, net, plan, sgd, train, train_plain
from timeouts import HANG
from torch import Tensor
from torch.nn import functional as F

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.plans.sync import read_sync
from raddle.program.lower import lower
from raddle.runtime.actions import Forward
from raddle.runtime.builders.slot_table import SlotSource
from raddle.runtime.trainer import Trainer, parallelize
from raddle.searches.planning import plan_for
from raddle.sync.collective_synchroniser import CollectiveSynchroniser
from raddle.transport.thread_transport import Hub

SYNCS = (
    "sharded", "sharded:parameters", "ps", "ps:one", "ps:2,sliced", "ps:sliced,greedy",
    "ps:slice=7,round-robin", "p3", "p3:slice=7", "p3:one,slice=50", "p3:greedy,slice=100",
    "p3:collective,slice=7",
)  # fmt: skip


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("method", ["data", "owt", "layerwise", "filter-horizontal"])
def test_trains_as_plain_pytorch_does(method: str, sync: str) -> None:
    losses, model, _ = train_plain(4)
    for rank_losses, state in on_threads(
        3, lambda t: train(t, 4), net(), sgd, plan=plan(method, 3, sync=sync), graph=graph()
    ):
        assert rank_losses == pytest.approx(losses, rel=1e-9)
        assert_equal(state, model)


@pytest.mark.parametrize(
    "sync", ["sharded", "sharded:parameters", "ps:sliced", "p3:slice=7", "p3:collective,slice=7"]
)
def test_adam_with_pipelines_and_microbatches(sync: str) -> None:
    """Gradients of several micro-batches are added before they are submitted."""

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    inputs = [torch.zeros(4, 12).double()]
    torch.manual_seed(2)
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4)
    ).double()
    model_graph = capture_of(model, inputs)
    chosen_plan = plan_for(model_graph, cluster("local:2"), "data", sync=sync)
    chosen_plan = type(chosen_plan)(**{**vars(chosen_plan), "microbatches": 2, "batch": 8})
    generator = torch.Generator().manual_seed(1)
    batch_list = [torch.randn(8, 12, generator=generator).double() for _ in range(5)]
    plain = copy.deepcopy(model)
    optimizer = adam(plain.parameters())
    for x in batch_list:
        optimizer.zero_grad()
        plain(x).square().mean().backward()
        optimizer.step()

    def work(trainer: Trainer) -> dict[str, Tensor]:
        for x in batch_list:
            trainer.step((x,))
        return trainer.state_dict()

    for state in on_threads(
        2, work, model, adam, plan=chosen_plan, loss=supervised(square), graph=model_graph
    ):
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, plain.state_dict()[name], rtol=1e-9, atol=1e-9)


def square(y: Tensor) -> Tensor:
    return y.square().mean()


def capture_of(model: Any, inputs: list[Tensor]) -> Any:
    from raddle.graph.capture import capture

    return capture(model, inputs, supervised(square, targets=0))


@pytest.mark.parametrize(
    "sync", ["sharded", "sharded:parameters", "ps:one", "p3:slice=7", "p3:collective,slice=7"]
)
def test_clipping_waits_for_all_gradients_and_says_so(
    sync: str, caplog: pytest.LogCaptureFixture
) -> None:
    losses, model, _ = train_plain(3, clip=0.1)
    caplog.set_level(logging.INFO, logger="raddle.sync")
    for rank_losses, state in on_threads(
        2,
        lambda t: train(t, 3),
        net(),
        sgd,
        plan=plan("owt", 2, sync=sync),
        graph=graph(),
        clip_norm=0.1,
    ):
        assert rank_losses == pytest.approx(losses, rel=1e-7)
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-6, atol=1e-8)
    said = (
        "updates wait for all gradients: gradients are clipped by their global norm" in caplog.text
    )
    assert said == read_sync(sync).sliced  # shards are updated at the end of a step in any case


@pytest.mark.parametrize(
    "sync", ["sharded:parameters", "ps:sliced", "p3:slice=7", "p3:collective,slice=7"]
)
def test_a_loss_that_is_not_finite_updates_nothing(sync: str) -> None:
    def work(trainer: Trainer) -> dict[SlotSource, Tensor]:
        x, y = batches(1)[0]
        with pytest.raises((FloatingPointError, RuntimeError), match="nothing was updated"):
            trainer.step((x * float("nan"), y))
        return {s: p.detach().clone() for s, p in trainer.executor.parameters()}

    for state in on_threads(
        2, work, net(), sgd, plan=plan("data", 2, sync=sync), graph=graph(), check_finite=True
    ):
        for source, tensor in state.items():
            whole = net().state_dict()[source.name]
            assert torch.equal(tensor, whole[source.box.slices_within(Box.full(whole.shape))])


@pytest.mark.parametrize(
    "sync", ["sharded", "sharded:parameters", "ps:sliced", "p3:slice=7", "p3:collective,slice=7"]
)
def test_accumulates_gradients(sync: str) -> None:
    model = copy.deepcopy(net())
    optimizer = sgd(model.parameters())
    for number, (x, y) in enumerate(batches(4)):
        (F.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    (_, state), *_ = on_threads(
        2,
        lambda t: train(t, 4),
        net(),
        sgd,
        plan=plan("data", 2, sync=sync),
        graph=graph(),
        accumulate=2,
    )
    assert_equal(state, model)


@pytest.mark.parametrize(
    "sync", ["sharded", "sharded:parameters", "p3:slice=7", "p3:collective,slice=7"]
)
def test_a_scheduler_reaches_no_update_of_the_step_before(sync: str) -> None:
    def scheduled(trainer: Trainer) -> dict[str, Tensor]:
        schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, step_size=1, gamma=0.1)
        for batch in batches(4):
            if trainer.rank == 1:
                time.sleep(0.02)  # its updates come late
            trainer.step(batch)
            schedule.step()
        return trainer.state_dict()

    model = copy.deepcopy(net())
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    for x, y in batches(4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    for state in on_threads(
        2, scheduled, net(), sgd, plan=plan("data", 2, sync=sync), graph=graph()
    ):
        assert_equal(state, model)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("p3:slice=7", "allreduce"), ("allreduce", "sharded"), ("sharded", "p3:one"),
        ("sharded:parameters", "sharded"), ("p3:slice=7", "sharded:parameters"),
        ("p3:collective,slice=7", "sharded"), ("p3", "p3:collective,slice=9"),
    ],
)  # fmt: skip
def test_any_plan_goes_on_from_any_plans_state(first: str, then: str) -> None:
    _, model, _ = train_plain(4)

    def start(trainer: Trainer) -> Any:
        for batch in batches(4)[:2]:
            trainer.step(batch)
        return trainer.optimizer_state_dict(), trainer.state_dict()

    optimizer_state, state = on_threads(
        3, start, net(), sgd, plan=plan("data", 3, sync=first), graph=graph()
    )[0]

    def go_on(trainer: Trainer) -> dict[str, Tensor]:
        trainer.load_state_dict(state)
        trainer.load_optimizer_state_dict(optimizer_state)
        for batch in batches(4)[2:]:
            trainer.step(batch)
        return trainer.state_dict()

    for resumed_state in on_threads(
        2, go_on, Net().double(), sgd, plan=plan("owt", 2, sync=then), graph=graph()
    ):
        assert_equal(resumed_state, model)


@pytest.mark.parametrize(
    "sync", ["sharded", "sharded:parameters", "ps:sliced", "p3:slice=7", "p3:collective,slice=7"]
)
def test_a_smaller_batch_and_an_evaluation_in_between(sync: str) -> None:
    """Both happen while updated parameters may still be in transit."""
    model = copy.deepcopy(net())
    optimizer = sgd(model.parameters())
    batch_list = [(x[:n], y[:n]) for (x, y), n in zip(batches(4), (8, 6, 8, 8), strict=True)]
    losses, between = [], []
    for x, y in batch_list:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        between.append(F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]).item())
        model.train()

    def work(trainer: Trainer) -> tuple[list[float], list[float]]:
        step_losses, seen = [], []
        for x, y in batch_list:
            step_losses.append(float(trainer.step((x, y))))
            seen.append(float(trainer.evaluate(batches(1)[0])))
        return step_losses, seen

    for rank_losses, seen in on_threads(
        2,
        work,
        net(),
        sgd,
        plan=plan("data", 2, sync=sync),
        graph=graph(),
        loss=supervised(F.cross_entropy),
    ):
        assert rank_losses == pytest.approx(losses, rel=1e-9)
        assert seen == pytest.approx(between, rel=1e-9)


def test_a_forward_waits_for_its_own_parameters_alone() -> None:
    """In the program with p3, the first layer's forward does not depend on the last layer's update."""
    for sync, waits in (
        ("p3:slice=7", False),
        ("p3:collective,slice=7", False),
        ("ps:slice=7", True),
    ):
        program = lower(graph(), plan("data", 2, sync=sync, steps=2))
        last = {
            n
            for n, i in enumerate(program.instructions)
            if getattr(i, "parameter", getattr(i, "value", "")) == "fc2.weight"
        }
        forward = next(
            i
            for i in program.instructions
            if getattr(i, "op", "") == "conv" and i.key.step == 1 and i.phase == "F"  # type: ignore[union-attr]
        )
        assert bool(last & set(forward.deps)) == waits


@pytest.mark.parametrize("clip", [None, 1e9])
def test_all_sums_are_under_way_at_the_end_of_a_step(clip: float | None) -> None:
    """Without a barrier, a step waits for no all-reduce; the next forward waits for its own parameters."""

    def work(trainer: Trainer) -> tuple[int, list[list[str]]]:
        parameter_sync = trainer.executor.parameter_sync
        assert parameter_sync is not None
        assert isinstance(parameter_sync.synchroniser, CollectiveSynchroniser)
        trainer.step(batches(1)[0])
        left, summing = parameter_sync.synchroniser.unapplied, parameter_sync.synchroniser
        waited: list[list[str]] = []
        forward = trainer.executor._handlers[Forward]

        def listen(action: Forward) -> None:
            before = {n for n, held in summing._entries.items() if held.gradient is not None}
            forward(action)
            after = {n for n, held in summing._entries.items() if held.gradient is not None}
            waited.append(
                sorted({parameter_sync.rank_slices.slices[n].name for n in before - after})
            )

        trainer.executor._handlers[Forward] = listen
        trainer.step(batches(1)[0])
        return left, waited

    chosen_plan = ordered(plan("data", 2, sync="p3:collective,slice=7"))
    for left, waited in on_threads(
        2, work, net(), sgd, plan=chosen_plan, graph=graph(), clip_norm=clip
    ):
        assert left == (len(chosen_plan.order) if clip is None else 0)
        awaited = [names for names in waited if names]
        assert (len(awaited) > 1) == (clip is None)
        assert clip is not None or awaited[0][0].startswith("conv")
        assert clip is not None or not any("fc" in name for name in awaited[0])


def ordered(plan: Plan, by: int = 1) -> Plan:
    """The plan with slices ordered by number; by=-1: in reverse."""
    count = len(lower(graph(), plan).bundles)
    return dataclasses.replace(plan, order=tuple(range(count))[::by])


@pytest.mark.parametrize("debug", ["", "1"])
def test_sums_leave_in_the_plans_order(debug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks, also a slow one, use this order; any order trains as plain PyTorch does."""
    monkeypatch.setenv("RADDLE_SYNC_DEBUG", debug)
    losses, model, _ = train_plain(3)
    chosen_plan = ordered(plan("owt", 3, sync="p3:collective,slice=30"), -1)
    summed: list[list[int]] = [[], [], []]

    def work(trainer: Trainer) -> tuple[list[float], dict[str, Tensor]]:
        all_reduce, step_losses = trainer.transport.all_reduce, []

        def listen(ranks: Any, tag: int, buffer: Tensor, what: str = "") -> Any:
            summed[trainer.rank].append(tag)
            return all_reduce(ranks, tag, buffer, what)

        trainer.transport.all_reduce = listen  # type: ignore[method-assign]
        for batch in batches(3):
            time.sleep(0.01 * trainer.rank)
            step_losses.append(float(trainer.step(batch)))
        return step_losses, trainer.state_dict()

    for rank_losses, state in on_threads(3, work, net(), sgd, plan=chosen_plan, graph=graph()):
        assert rank_losses == pytest.approx(losses, rel=1e-9)
        assert_equal(state, model)
    bundles = lower(graph(), chosen_plan).bundles
    for rank, tags in enumerate(summed):
        of_rank = [n for n in chosen_plan.order if rank in bundles[n].devices]
        assert tags == 3 * [n for n in of_rank if len(bundles[n].devices) > 1]
        assert tags


def test_ranks_with_other_orders_are_refused_before_the_first_step() -> None:
    chosen_plan = plan("data", 2, sync="p3:collective,slice=30,unbundled")
    hub = Hub(2, timeout=HANG)
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        rank_plan = ordered(chosen_plan, 1 - 2 * number)
        try:
            parallelize(
                net(),
                sgd,
                plan=rank_plan,
                graph=graph(),
                transport=hub.transport(number),
                device="cpu",
            )
        except ValueError as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    for error in errors:
        words = r"sum 0 is 'conv.weight.* on rank 0, and on rank 1 sum 0 is 'fc2.bias.*: give all"
        assert re.search(words, str(error))


@pytest.mark.parametrize(
    ("sync", "bound"), [("ps:ssp=2", 2), ("ps:ssp=1,sliced", 1), ("ps:one,ssp=3", 3)]
)
def test_no_worker_is_more_than_s_steps_ahead(sync: str, bound: int) -> None:
    """All workers need the common loss of a step, so they are at most one step apart."""
    begun: list[list[float]] = [[], []]  # by rank, when each step began

    def work(trainer: Trainer) -> list[Any]:
        for batch in 8 * batches(2):
            if trainer.rank == 1:
                time.sleep(0.03)
            begun[trainer.rank].append(time.perf_counter())
            trainer.step(batch)
        trainer.synchronize()
        parameter_sync = trainer.executor.parameter_sync
        assert parameter_sync is not None
        assert parameter_sync.synchroniser is not None
        return parameter_sync.synchroniser.log

    chosen_plan = plan_for(graph(), cluster("local:2"), "data", bn="local", sync=sync)
    logs = on_threads(2, work, net(), sgd, plan=chosen_plan, graph=graph())
    slow = begun[1]
    ahead = [sum(b <= at for b in begun[0]) - sum(b <= at for b in slow) for at in begun[0]]
    # Here a step counts when it begins; the bound counts steps whose gradients are sent, hence one more.
    assert max(ahead) <= bound + 1
    applied = [(e.item, e.worker, e.clock) for log in logs for e in log]
    items = {item for item, *_ in applied}
    assert sorted(applied) == sorted((i, w, c) for i in items for w in (0, 1) for c in range(1, 17))


def test_an_asynchronous_server_clips_nothing() -> None:
    with pytest.raises(
        InputError, match=r"an asynchronous server cannot wait .*by their global norm"
    ):
        on_threads(
            2,
            lambda t: None,
            net(),
            sgd,
            plan=plan("data", 2, sync="ps:async"),
            graph=graph(),
            clip_norm=1.0,
        )


@pytest.mark.parametrize("sync", ["sharded:parameters", "p3:slice=7"])
def test_a_rank_that_fails_ends_the_others(sync: str) -> None:
    def work(trainer: Trainer) -> None:
        for batch in batches(3):
            if trainer.rank == 1:
                raise RuntimeError("no more data")
            trainer.step(batch)

    with pytest.raises(RuntimeError, match="no more data"):
        on_threads(2, work, net(), sgd, plan=plan("data", 2, sync=sync), graph=graph())
