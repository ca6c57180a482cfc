"""A trainer gives the results of a plain training loop, for any plan."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from ranks import on_threads
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.runtime.actions import Forward
from raddle.runtime.trainer import Trainer, parallelize
from raddle.searches.baselines import BASELINES
from raddle.searches.planning import plan_for
from raddle.transport.thread_transport import Hub


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # No bias: before a batch norm its gradient is zero; optimizers that divide by it amplify noise.
        self.conv = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.0)
        self.fc1, self.fc2 = nn.Linear(8 * 6 * 6, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.fc2(self.drop(torch.relu(self.fc1(x))))


@cache
def net() -> Net:
    torch.manual_seed(1)
    return Net().double()


@cache
def graph() -> Graph:
    x, y = torch.zeros(8, 2, 6, 6).double(), torch.zeros(8, dtype=torch.int64)
    return capture(net(), (x, y), supervised(F.cross_entropy))


def plan(method: str, ranks: int, **more: Any) -> Plan:
    chosen_plan = plan_for(graph(), cluster(f"local:{ranks}"), method, bn="global")
    return Plan(**{**vars(chosen_plan), **more})


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(8, 2, 6, 6, generator=generator, dtype=torch.float64),
            torch.randint(4, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train_plain(
    count: int, make: Any = sgd, clip: float | None = None
) -> tuple[list[float], nn.Module, Any]:
    model = copy.deepcopy(net())
    optimizer = make(model.parameters())
    losses = []
    for x, y in batches(count):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, model, optimizer


def train(trainer: Trainer, count: int) -> tuple[list[float], dict[str, Tensor]]:
    return [float(trainer.step(b)) for b in batches(count)], trainer.state_dict()


def assert_equal(state: dict[str, Tensor], model: nn.Module) -> None:
    plain = model.state_dict()
    assert state.keys() == plain.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_trains_as_plain_pytorch_does(method: str, ranks: int) -> None:
    losses, model, _ = train_plain(3)
    for rank_losses, state in on_threads(
        ranks,
        lambda t: train(t, 3),
        net(),
        sgd,
        plan=plan(method, ranks),
        loss=supervised(F.cross_entropy),
        graph=graph(),
    ):
        assert rank_losses == pytest.approx(losses, rel=1e-9)  # on every rank
        assert_equal(state, model)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, nesterov=True, momentum=0.9, weight_decay=0.1),
    ],
)
def test_any_elementwise_optimizer(make: Any) -> None:
    losses, model, _ = train_plain(3, make)
    (rank_losses, state), *_ = on_threads(
        2, lambda t: train(t, 3), net(), make, plan=plan("owt", 2), graph=graph()
    )
    assert rank_losses == pytest.approx(losses, rel=1e-9)
    assert_equal(state, model)


def test_optimizers_of_whole_tensors_are_refused() -> None:
    with pytest.raises(InputError, match=r"Adafactor looks at whole tensors, but the plan splits"):
        on_threads(
            2, lambda t: None, net(), torch.optim.Adafactor, plan=plan("model", 2), graph=graph()
        )


@pytest.mark.parametrize("method", ["data", "owt", "layerwise", "filter-horizontal"])
@pytest.mark.parametrize("limit", [0.1, 1e6])
def test_clips_by_the_global_norm(method: str, limit: float) -> None:
    losses, model, _ = train_plain(3, clip=limit)
    for rank_losses, state in on_threads(
        3, lambda t: train(t, 3), net(), sgd, plan=plan(method, 3), graph=graph(), clip_norm=limit
    ):
        assert rank_losses == pytest.approx(losses, rel=1e-7)
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-6, atol=1e-8)


def test_accumulates_gradients() -> None:
    """Two batches per update give the mean of their gradients, as one batch of both (no batch norm)."""
    model, optimizer = copy.deepcopy(net()), None
    optimizer = sgd(model.parameters())
    for number, (x, y) in enumerate(batches(4)):
        (F.cross_entropy(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    for method in ("data", "owt", "layerwise"):
        for sync in ("allreduce", "server"):
            (_, state), *_ = on_threads(
                2,
                lambda t: train(t, 4),
                net(),
                sgd,
                plan=plan(method, 2, sync=sync),
                graph=graph(),
                accumulate=2,
            )
            assert_equal(state, model)


def test_schedulers_work_on_every_rank() -> None:
    def scheduled(trainer: Trainer) -> dict[str, Tensor]:
        schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, step_size=1, gamma=0.5)
        for batch in batches(3):
            trainer.step(batch)
            schedule.step()
        return trainer.state_dict()

    model = copy.deepcopy(net())
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for x, y in batches(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    for method in ("layerwise", "owt"):
        for state in on_threads(3, scheduled, net(), sgd, plan=plan(method, 3), graph=graph()):
            assert_equal(state, model)


@pytest.mark.parametrize("method", BASELINES)
def test_evaluates_as_the_module_does(method: str) -> None:
    _, model, _ = train_plain(2)
    x, y = batches(3)[2]
    model.eval()
    wanted = model(x)

    def work(trainer: Trainer) -> Any:
        train(trainer, 2)
        before = trainer.evaluate((x, y))
        small = trainer.evaluate((x[:4], y[:4]))
        loss, output = trainer.evaluate((x, y)).loss, trainer.predict((x, y))
        again = trainer.step((x, y))  # training continues
        return float(before), float(small), float(loss), output, float(again)

    for before, small, loss, output, again in on_threads(
        2, work, net(), sgd, plan=plan(method, 2), loss=supervised(F.cross_entropy), graph=graph()
    ):
        assert before == loss == pytest.approx(F.cross_entropy(wanted, y).item(), rel=1e-9)
        assert small == pytest.approx(F.cross_entropy(wanted[:4], y[:4]).item(), rel=1e-9)
        torch.testing.assert_close(output, wanted.detach(), rtol=1e-9, atol=1e-9)
        assert again == pytest.approx(train_plain(3)[0][2], rel=1e-9)
    assert net().training


def test_any_plan_loads_any_plans_state() -> None:
    def first(trainer: Trainer) -> Any:
        train(trainer, 2)
        return trainer.state_dict(), trainer.optimizer_state_dict()

    state, optimizer_state = on_threads(2, first, net(), sgd, plan=plan("owt", 2), graph=graph())[0]

    def then(trainer: Trainer) -> Any:
        trainer.load_state_dict(state)
        trainer.load_optimizer_state_dict(optimizer_state)
        for batch in batches(3)[2:]:
            trainer.step(batch)
        return trainer.state_dict()

    for method in ("layerwise", "data", "filter-incremental"):
        for loaded_state in on_threads(3, then, net(), sgd, plan=plan(method, 3), graph=graph()):
            assert_equal(loaded_state, train_plain(3)[1])
    plain = net().__class__().double()
    plain.load_state_dict(state)  # the plain module can load it too


def test_a_rank_reads_its_own_part_of_the_batch() -> None:
    def work(trainer: Trainer) -> Any:
        whole = batches(2)
        parts = [trainer.part(b) for b in whole]
        assert parts[0][0].shape[0] == 4
        return [float(trainer.step(p)) for p in parts]

    for losses in on_threads(2, work, net(), sgd, plan=plan("data", 2), graph=graph()):
        assert losses == pytest.approx(train_plain(2)[0], rel=1e-9)


def test_microbatches_are_cut_from_the_batch() -> None:
    half = capture(
        net(),
        (torch.zeros(4, 2, 6, 6).double(), torch.zeros(4).long()),
        supervised(F.cross_entropy),
    )
    chosen_plan = plan_for(half, cluster("local:2"), "data", bn="global")
    chosen_plan = Plan(**{**vars(chosen_plan), "microbatches": 2, "batch": 8, "bn": "microbatch"})
    model = copy.deepcopy(net())
    optimizer = sgd(model.parameters())
    for x, y in batches(2):
        optimizer.zero_grad()
        for i in (0, 4):
            (F.cross_entropy(model(x[i : i + 4]), y[i : i + 4]) / 2).backward()
        optimizer.step()

    def parts(trainer: Trainer) -> Any:
        for b in batches(2):
            trainer.step(trainer.part(b))
        return trainer.state_dict()

    for work in (parts, lambda t: train(t, 2)[1]):
        for state in on_threads(2, work, net(), sgd, plan=chosen_plan, graph=half):
            assert_equal(state, model)


def test_initialises_a_model_on_meta_tile_by_tile() -> None:
    from raddle.runtime.materialize import materialize

    with torch.device("meta"):
        empty = Net().double()
    whole = materialize(copy.deepcopy(empty), seed=3)

    def work(trainer: Trainer) -> Any:
        elements = sum(p.numel() for _, p in trainer.executor.parameters())
        return trainer.state_dict(), elements

    results = on_threads(3, work, empty, sgd, plan=plan("model", 3), graph=graph(), seed=3)
    total = sum(p.numel() for p in whole.parameters())
    for state, rank_elements in results:
        assert_equal(state, whole)
        assert rank_elements < total / 2


def test_bfloat16_is_close() -> None:
    losses, _, _ = train_plain(3)
    float32 = copy.deepcopy(net()).float()
    single = capture(
        float32, (torch.zeros(8, 2, 6, 6), torch.zeros(8).long()), supervised(F.cross_entropy)
    )

    def work(trainer: Trainer) -> list[float]:
        assert all(p.dtype == torch.float32 for _, p in trainer.executor.parameters())
        return [float(trainer.step((x.float(), y))) for x, y in batches(3)]

    for method in ("data", "owt"):
        chosen_plan = plan_for(single, cluster("local:2"), method, bn="global")
        for rank_losses in on_threads(
            2, work, float32, sgd, plan=chosen_plan, graph=single, precision="bf16"
        ):
            assert rank_losses == pytest.approx(losses, rel=0.05)
            assert rank_losses != pytest.approx(losses, rel=1e-6)


class Partly(nn.Module):
    """A parameter that is frozen, one that is not used, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.unused, self.frozen = nn.Linear(6, 6), nn.Linear(2, 3), nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.full((6,), 2.0), persistent=False)

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        return self.fc(self.frozen(x) * self.scale) * k


@pytest.mark.parametrize("method", ["data", "layerwise", "model"])
def test_what_is_not_trained_is_kept(method: str) -> None:
    model = Partly()
    x, k = torch.randn(4, 6), torch.tensor(2.0)
    model_graph = capture(model, (x, k), supervised(lambda y: y.square().mean(), targets=0))
    chosen_plan = plan_for(model_graph, cluster("local:2"), method)

    def work(trainer: Trainer) -> Any:
        trainer.step(trainer.part((x, k)))
        state = trainer.state_dict()
        trainer.load_state_dict({**state, "frozen.bias": state["frozen.bias"] + 1})
        return state, trainer.state_dict()

    for state, again in on_threads(2, work, model, sgd, plan=chosen_plan, graph=model_graph):
        assert state.keys() == model.state_dict().keys()
        for name in ("unused.weight", "frozen.weight"):
            torch.testing.assert_close(state[name], model.state_dict()[name])
        assert not torch.equal(state["fc.weight"], model.fc.weight)
        torch.testing.assert_close(again["frozen.bias"], state["frozen.bias"] + 1)


class TiedFrozen(nn.Module):
    """A frozen parameter with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(6, 6), nn.Linear(6, 6)
        self.first.requires_grad_(False)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.second(x))


def test_a_tied_frozen_parameter_is_loaded_by_either_name() -> None:
    model, x = TiedFrozen(), torch.randn(4, 6)
    graph = capture(model, (x,), supervised(lambda y: y.square().mean(), targets=0))
    names = dict(model.named_parameters(remove_duplicate=False))

    def work(trainer: Trainer) -> Any:
        loaded = []
        for gone in ("first.", "second."):
            state = {n: p.detach() + 1 for n, p in names.items() if not n.startswith(gone)}
            trainer.load_state_dict(state)
            loaded.append(trainer.state_dict()["first.weight"])
        return loaded

    for loaded in on_threads(
        2, work, model, sgd, plan=plan_for(graph, cluster("local:2"), "data"), graph=graph
    ):
        for weight in loaded:
            torch.testing.assert_close(weight, model.first.weight + 1)


@pytest.mark.parametrize(
    "sync",
    [
        "allreduce",
        "server",
        "sharded",
        "sharded:parameters",
        "ps:one",
        "ps:sliced",
        "p3:slice=5",
        "p3:collective",
    ],
)
def test_local_statistics_are_those_of_a_rank(sync: str) -> None:
    """As in DistributedDataParallel: the state contains rank 0's statistics, of its own samples only."""
    x, y = batches(1)[0]
    chosen_plan = plan_for(graph(), cluster("local:2"), "data", bn="local", sync=sync)

    def work(trainer: Trainer) -> dict[str, Tensor]:
        trainer.step((x, y))
        return trainer.state_dict()

    plain = copy.deepcopy(net())
    plain(x[:4])
    for state in on_threads(2, work, net(), sgd, plan=chosen_plan, graph=graph()):
        for name in ("norm.running_mean", "norm.running_var"):
            torch.testing.assert_close(state[name], plain.state_dict()[name], rtol=1e-9, atol=1e-9)


def test_nothing_stays_alive_that_nobody_keeps() -> None:
    """The code generated for conv → relu → conv deletes the first result, as no backward needs it."""
    alive = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x)))

    watched_graph = capture(
        Watched(), (torch.randn(4, 4),), supervised(lambda y: y.sum(), targets=0)
    )
    chosen_plan = plan_for(watched_graph, cluster("local:1"), "data")

    def work(trainer: Trainer) -> None:
        call = next(a for a in trainer.executor.rank_actions.actions if isinstance(a, Forward)).call
        alive.append(call.code.source)

    on_threads(1, work, Watched(), sgd, plan=chosen_plan, graph=watched_graph)
    lines = [line.strip() for line in alive[0].splitlines()]
    first = lines[1].partition(",")[0]  # the result of the first layer
    assert lines[2].endswith(f"({first})"), "the activation reads it"
    assert lines[3] == f"del {first}"


# -- bad use ---------------------------------------------------------------------------------------


def test_says_what_is_wrong_with_a_batch() -> None:
    x, y = batches(1)[0]

    def work(trainer: Trainer) -> None:
        for bad, words in [
            ((x,), r"takes 2 tensors \(x, target\), not 1"),
            ((x[..., :5], y), r"'x' has shape \(8, 2, 6, 5\), but the plan is for \(8, 2, 6, 6\)"),
            ((x.float(), y), "'x' is torch.float32, but was captured as torch.float64"),
            ((x, [1] * 8), "'target' is a list"),
        ]:
            with pytest.raises(InputError, match=words):
                trainer.step(bad)
        trainer.step((x, y))  # nothing is lost

    on_threads(2, work, net(), sgd, plan=plan("data", 2), graph=graph())


def test_says_how_many_ranks_it_needs() -> None:
    with pytest.raises(InputError, match="the plan needs 3 ranks, 2 were started: re-plan with"):
        on_threads(2, lambda t: None, net(), sgd, plan=plan("data", 3), graph=graph())


def test_says_which_parameter_differs() -> None:
    class Other(Net):
        def __init__(self) -> None:
            super().__init__()
            self.fc2 = nn.Linear(12, 5)

    hub = Hub(1)
    with pytest.raises(InputError, match=r"parameter 'fc2.weight' is \[5, 12\], not \[4, 12\]"):
        parallelize(
            Other().double(),
            sgd,
            plan=plan("data", 1),
            loss=supervised(F.cross_entropy),
            example=batches(1)[0],
            device="cpu",
            transport=hub.transport(0),
        )


def test_stops_before_an_update_that_is_not_a_number() -> None:
    x, y = batches(1)[0]
    bad = x.clone()
    bad[0, 0, 0, 0] = float("nan")

    def work(trainer: Trainer) -> Any:
        before = trainer.state_dict()
        with pytest.raises(
            FloatingPointError, match="the loss is nan in step 0: nothing was updated"
        ):
            trainer.step((bad, y))
        return before, [p.detach().clone() for _, p in trainer.executor.parameters()]

    for before, after in on_threads(
        2, work, net(), sgd, plan=plan("data", 2), graph=graph(), check_finite=True
    ):
        for tensor, name in zip(after, dict(net().named_parameters()), strict=True):
            torch.testing.assert_close(tensor, before[name])


def test_a_rank_that_fails_stops_all() -> None:
    x, y = batches(1)[0]

    def work(trainer: Trainer) -> str:
        if trainer.rank == 1:
            trainer.executor.optimizer_step = lambda: 1 / 0  # type: ignore[assignment]
        try:
            for _ in range(3):
                trainer.step((x, y))
        except (ZeroDivisionError, RuntimeError) as error:
            return str(error)
        return "no error"

    errors = on_threads(3, work, net(), sgd, plan=plan("owt", 3), graph=graph())
    assert "division" in errors[1]
    assert all("rank 1 failed" in text for text in (errors[0], errors[2]))
