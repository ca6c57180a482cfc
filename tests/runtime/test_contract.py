"""Trainers follow the plain loop with any loss, batch and optimizer: on 1 rank, on 2, saved and resumed."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import UserDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import on_threads
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.clusters import cluster
from raddle.errors import InputError
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans.plan import Plan
from raddle.runtime.trainer import Trainer, parallelize
from raddle.searches.planning import plan_for

STEPS = 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 6), nn.LayerNorm(6)
        self.hidden, self.out = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, ids: Tensor, scale: Tensor) -> dict[str, Any]:
        x = self.norm(self.table(ids)).mean(1) * scale[:, None]
        return {"scores": self.out(torch.relu(self.hidden(x))), "extra": [x, 3]}


@dataclasses.dataclass
class Batch:
    ids: Tensor
    scale: Tensor
    labels: Any


def loss_of(scores: Tensor, labels: Tensor) -> Any:
    right = (scores.argmax(1) == labels).double().mean()
    return F.cross_entropy(scores, labels), {"accuracy": right}


# Kinds of batches -> (makes one of the tensors ids, scale, labels; its loss)
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "tuple": (
        lambda *tensors: tensors,
        lambda model, batch: loss_of(model(*batch[:2])["scores"], batch[2]),
    ),
    "nested": (
        lambda ids, scale, labels: ({"ids": ids, "scale": scale}, [labels, 2.0]),
        lambda model, batch: loss_of(model(**batch[0])["scores"], batch[1][0]),
    ),
    "dict": (
        lambda ids, scale, labels: {"ids": ids, "scale": scale, "labels": labels},
        lambda model, b: loss_of(model(b["ids"], scale=b["scale"])["scores"], b["labels"]),
    ),
    "mapping": (
        lambda ids, scale, labels: UserDict({"ids": ids, "scale": scale, "labels": labels}),
        lambda model, b: loss_of(model(b["ids"], scale=b["scale"])["scores"], b["labels"]),
    ),
    "dataclass": (
        Batch,
        lambda model, b: loss_of(model(b.ids, b.scale)["scores"], b.labels),
    ),
}


@cache
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def batch(kind: str, step: int, size: int = 8, *, labels: bool = True) -> Any:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(7, (size, 3), generator=generator)
    scale = torch.rand(size, generator=generator, dtype=torch.float64)
    target = torch.randint(5, (size,), generator=generator)
    return KINDS[kind][0](ids, scale, target if labels else None)


@cache
def graph(kind: str = "tuple") -> Graph:
    return capture(net(), batch(kind, 0), KINDS[kind][1])


@cache
def plan(method: str, ranks: int, kind: str = "tuple", sync: str = "allreduce") -> Plan:
    return plan_for(graph(kind), cluster(f"local:{ranks}"), method, sync=sync)


def groups(pairs: Any) -> list[dict[str, Any]]:
    """Weight decay by name, with another learning rate for the table."""
    pairs = list(pairs)
    kinds = [
        ([p for p in pairs if p[0].startswith("table")], {"lr": 0.03}),
        ([p for p in pairs if "bias" in p[0] or "norm" in p[0]], {"weight_decay": 0.0}),
    ]
    chosen = [id(p) for given_pairs, _ in kinds for p in given_pairs]
    others = [p for p in pairs if id(p) not in chosen]
    return [{"params": given, **options} for given, options in (*kinds, (others, {}))]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda pairs: torch.optim.AdamW(groups(pairs), lr=0.01, weight_decay=0.1),
    "momentum": lambda pairs: torch.optim.SGD(groups(pairs), lr=0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda pairs: torch.optim.Adagrad(groups(pairs), lr=0.05),
    "rmsprop": lambda pairs: torch.optim.RMSprop(pairs, lr=0.01, momentum=0.5),
}


def plain(
    optimizer: str, steps: int = STEPS, kind: str = "tuple", clip: float | None = None
) -> tuple[nn.Module, torch.optim.Optimizer, list[list[float]]]:
    """The plain loop; returns loss, accuracy and norm of the gradients of every step."""
    model = copy.deepcopy(net())
    made, rows = OPTIMIZERS[optimizer](model.named_parameters()), []
    for step in range(steps):
        made.zero_grad()
        loss, metrics = KINDS[kind][1](model, batch(kind, step))
        loss.backward()
        row = [loss.item(), metrics["accuracy"].item()]
        if clip is not None:
            row.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        made.step()
        rows.append(row)
    return model, made, rows


def row_of(result: Any) -> list[float]:
    norm = [] if result.grad_norm is None else [float(result.grad_norm)]
    return [float(result), float(result.metrics["accuracy"]), *norm]


def train(trainer: Trainer, kind: str, first: int, last: int) -> list[list[float]]:
    return [row_of(trainer.step(batch(kind, step))) for step in range(first, last)]


def assert_state(state: dict[str, Tensor], model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-9, msg=name)


def assert_rows(actual: Any, expected: Any) -> None:
    double = torch.float64
    actual, expected = torch.tensor(actual, dtype=double), torch.tensor(expected, dtype=double)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


# -- batches and losses --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["data", "layerwise", "model"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_batch_trains_evaluates_and_predicts_as_the_plain_module(
    kind: str, method: str
) -> None:
    model, _, rows = plain("adamw", kind=kind, clip=0.1)

    def work(trainer: Trainer) -> Any:
        trained = train(trainer, kind, 0, STEPS)
        evaluated = [row_of(trainer.evaluate(batch(kind, 9, size))) for size in (8, 3)]
        predicted = [trainer.predict(batch(kind, 9, labels=labels)) for labels in (True, False)]
        return trained, evaluated, predicted, trainer.module()

    make, loss = OPTIMIZERS["adamw"], KINDS[kind][1]
    results = on_threads(
        2,
        work,
        net(),
        make,
        plan=plan(method, 2, kind),
        graph=graph(kind),
        loss=loss,
        clip_norm=0.1,
    )
    model.eval()
    with torch.no_grad():
        first = batch("tuple", 9)
        expected = model(*first[:2])
        losses = [loss_of(model(*b[:2])["scores"], b[2]) for b in (first, batch("tuple", 9, 3))]
    for trained, evaluated, predicted, module in results:
        assert_rows(trained, rows)
        assert_rows(evaluated, [[float(v), float(m["accuracy"])] for v, m in losses])
        for output in predicted:
            assert (list(output), output["extra"][1]) == (["scores", "extra"], 3)
            torch.testing.assert_close(output["scores"], expected["scores"])
            torch.testing.assert_close(output["extra"][0], expected["extra"][0])
        assert_state(module.state_dict(), model)
        assert module.training


def test_parts_of_a_batch_keep_its_form() -> None:
    def work(trainer: Trainer) -> Any:
        part = trainer.part(batch("dataclass", 0))
        return type(part), len(part.ids), row_of(trainer.step(part))

    results = on_threads(
        2,
        work,
        net(),
        OPTIMIZERS["adamw"],
        plan=plan("data", 2, "dataclass"),
        graph=graph("dataclass"),
    )
    (row,) = plain("adamw", 1)[2]
    for kind, samples, trained in results:
        assert (kind, samples) == (Batch, 4)
        assert_rows(trained, row)


def test_metrics_of_micro_batches_and_of_smaller_batches() -> None:
    half = capture(net(), batch("tuple", 0, 4), KINDS["tuple"][1])
    chosen = plan_for(half, cluster("local:2"), "data")
    chosen = dataclasses.replace(chosen, microbatches=2, batch=8)
    (row,) = plain("adamw", 1)[2]

    def work(trainer: Trainer) -> Any:
        return row_of(trainer.step(batch("tuple", 0))), row_of(trainer.step(batch("tuple", 5, 6)))

    for whole, smaller in on_threads(2, work, net(), OPTIMIZERS["adamw"], plan=chosen, graph=half):
        assert_rows(whole, row)
        assert smaller[1] in (k / 6 for k in range(7))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            lambda b: {"ids": b["ids"], "labels": b["labels"]},
            "the batch has no 'scale': give ids, scale",
        ),
        (
            lambda b: {**b, "ids": b["labels"]},
            r"'ids' has shape \(8,\), but the plan is for \(8, 3\)",
        ),
        (
            lambda b: {**b, "scale": b["labels"], "labels": b["scale"]},
            "'scale' is torch.int64, but was",
        ),
        (lambda b: {**b, "more": b["ids"]}, "has 'more', which the example had not"),
        (lambda b: tuple(b.values()), "the batch has no 'ids'"),
    ],
)
def test_a_wrong_batch_is_one_sentence_and_nothing_is_lost(wrong: Any, sentence: str) -> None:
    def work(trainer: Trainer) -> Any:
        with pytest.raises(InputError, match=sentence):
            trainer.step(wrong(batch("dict", 0)))
        exchanged = dict(reversed(batch("dict", 0).items()))  # names count, not the order
        return row_of(trainer.step(exchanged))

    rows = on_threads(
        2, work, net(), OPTIMIZERS["adamw"], plan=plan("data", 2, "dict"), graph=graph("dict")
    )
    assert_rows(rows, [plain("adamw", 1)[2][0]] * 2)


class Returns(nn.Module):
    """Returns an input, a parameter and a computed tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, self.linear.bias, self.linear(x)


def test_predicts_what_is_returned_as_it_was() -> None:
    model, x = Returns(), torch.randn(4, 3)
    loss = lambda model, batch: model(batch[0])[2].square().mean()  # noqa: E731
    returning = capture(model, (x, None), loss)
    chosen = plan_for(returning, cluster("local:2"), "data")

    def work(trainer: Trainer) -> Any:
        return trainer.predict((x, None))

    for same, bias, computed in on_threads(
        2, work, model, OPTIMIZERS["rmsprop"], plan=chosen, graph=returning, loss=loss
    ):
        assert torch.equal(same, x)
        assert torch.equal(bias, model.linear.bias)
        torch.testing.assert_close(computed, model(x)[2])


def test_a_batch_is_predicted_only_if_the_loss_calls_the_model() -> None:
    x = torch.randn(4, 3)
    for loss, sentence in [
        (lambda model, batch: model.linear(batch).mean(), "the loss never calls the model itself"),
        (
            lambda model, batch: model(batch["x"])[2].mean(),
            r"fails before it calls the model .TypeError",
        ),
    ]:
        model = Returns()
        example = {"x": x} if "fails" in sentence else x
        calling = capture(model, example, loss)
        with parallelize(
            model, OPTIMIZERS["rmsprop"], graph=calling, loss=loss, device="cpu",
            plan=plan_for(calling, cluster("local:1"), "data"),
        ) as trainer, pytest.raises(InputError, match=sentence):  # fmt: skip
            trainer.predict(x)


# -- optimizers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["allreduce", "sharded", "ps:sliced", "p3"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ready", [False, True])
def test_groups_by_name(optimizer: str, ready: bool, sync: str) -> None:
    model, _, rows = plain(optimizer)
    make: Any = OPTIMIZERS[optimizer]
    make = make(net().named_parameters()) if ready else make
    for trained, state in on_threads(
        2, lambda t: (train(t, "tuple", 0, STEPS), t.state_dict()), net(), make,
        plan=plan("data", 2, sync=sync), graph=graph(),
    ):  # fmt: skip
        assert_rows(trained, rows)
        assert_state(state, model)
    # Adagrad makes its state at once; the user's optimizer stays as it was.
    assert not ready or all(float(s["step"]) == 0 for s in make.state.values())


@settings(max_examples=8)
@given(
    st.sampled_from(list(OPTIMIZERS)),
    st.sampled_from(["data", "layerwise", "model"]),
    st.booleans(),
)
def test_state_goes_to_plain_pytorch_and_comes_back(
    optimizer: str, method: str, named: bool
) -> None:
    """Two steps by a plan, then two plain ones, then two by a plan again: as six plain steps."""
    make = OPTIMIZERS[optimizer]
    _, _, rows = plain(optimizer, 6)

    def first(trainer: Trainer) -> Any:
        trained = train(trainer, "tuple", 0, 2)
        return trained, trainer.module(), trainer.optimizer_state_dict(plain=True)

    trained, model, state = on_threads(2, first, net(), make, plan=plan(method, 2), graph=graph())[
        0
    ]
    pairs = list(model.named_parameters())
    between = make(pairs)
    if not named:  # the same groups, without names
        for group in between.param_groups:
            del group["param_names"]
    between.load_state_dict(state)
    for step in (2, 3):
        between.zero_grad()
        loss, metrics = KINDS["tuple"][1](model, batch("tuple", step))
        loss.backward()
        between.step()
        trained.append([loss.item(), metrics["accuracy"].item()])

    def last(trainer: Trainer) -> Any:
        trainer.load_optimizer_state_dict(between.state_dict())
        return train(trainer, "tuple", 4, 6)

    for more in on_threads(3, last, model, make, plan=plan("data", 3), graph=graph()):
        assert_rows(trained + more, rows)
    for more in on_threads(
        2, lambda t: train(t, "tuple", 4, 6), model, between, plan=plan(method, 2), graph=graph()
    ):
        assert_rows(trained + more, rows)  # a ready one with its state


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda pairs: 3, "the function for the optimizer returned a int"),
        (
            torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1),
            "of the SGD is not in the model: make",
        ),
        (
            torch.optim.SGD(net().out.parameters(), lr=0.1),
            "'table.weight' is trained, but in no group",
        ),
    ],
)
def test_a_wrong_optimizer_is_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        on_threads(1, lambda t: None, net(), make, plan=plan("data", 1), graph=graph())


# -- saving --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["allreduce", "sharded:parameters", "p3"])
def test_a_run_that_is_saved_goes_on_bit_for_bit(sync: str, tmp_path: Path) -> None:
    def scheduled(trainer: Trainer, first: int, last: int) -> list[list[float]]:
        rows = []
        for step in range(first, last):
            rows += train(trainer, "tuple", step, step + 1)
            for group in trainer.optimizer.param_groups:
                group["lr"] *= 0.9
        return rows

    def whole(trainer: Trainer) -> Any:
        scheduled(trainer, 0, 2)
        trainer.save(tmp_path / "new" / "folder")
        return scheduled(trainer, 2, 4), trainer.state_dict()

    def resumed(trainer: Trainer) -> Any:
        trainer.load(tmp_path / "new" / "folder")
        assert trainer.steps == 2
        return scheduled(trainer, 2, 4), trainer.state_dict()

    chosen = plan("data", 2, sync=sync)
    make = OPTIMIZERS["adamw"]
    expected = on_threads(2, whole, net(), make, plan=chosen, graph=graph())
    again = on_threads(2, resumed, net(), make, plan=chosen, graph=graph(), seed=9)
    for (rows, state), (other_rows, other_state) in zip(expected, again, strict=True):
        assert rows == other_rows
        assert all(torch.equal(state[name], other_state[name]) for name in state)
    other = on_threads(3, resumed, net(), make, plan=plan("model", 3), graph=graph())
    assert_rows(other[0][0], expected[0][0])


def test_a_folder_without_a_checkpoint_fails_on_all_ranks(tmp_path: Path) -> None:
    sentences = []

    def work(trainer: Trainer) -> None:
        with pytest.raises(
            InputError, match=r"there is no checkpoint '.*': name the folder"
        ) as caught:
            trainer.load(tmp_path)
        sentences.append(str(caught.value))

    on_threads(2, work, net(), OPTIMIZERS["adamw"], plan=plan("data", 2), graph=graph())
    assert len(set(sentences)) == 1


def test_generators_go_on(tmp_path: Path) -> None:
    def draws(trainer: Trainer) -> Tensor:
        torch.manual_seed(3)
        trainer.save(tmp_path)
        expected = torch.rand(3)
        torch.manual_seed(4)
        trainer.load(tmp_path)
        assert torch.equal(torch.rand(3), expected)
        return expected

    with torch.random.fork_rng():
        on_threads(1, draws, net(), OPTIMIZERS["adamw"], plan=plan("data", 1), graph=graph())


def test_a_trainer_is_a_context_and_refuses_to_be_copied() -> None:
    with parallelize(
        net(),
        OPTIMIZERS["adamw"],
        plan=plan("data", 1),
        loss=KINDS["tuple"][1],
        example=batch("tuple", 0),
    ) as trainer:
        assert_rows(train(trainer, "tuple", 0, STEPS), plain("adamw")[2])
        for copy_it in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InputError, match=r"cannot be copied or pickled: use trainer\.save"):
                copy_it(trainer)
        assert repr(trainer.step(batch("tuple", 0))).startswith("StepResult(loss=")


def test_a_module_on_meta_comes_back_with_tied_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.relu(self.first(x)) * self.scale).square().mean()

    x = torch.randn(4, 4)
    tied = capture(Tied(), (x,))
    chosen = plan_for(tied, cluster("local:2"), "data")

    def work(trainer: Trainer) -> Any:
        trainer.step((x,))
        return trainer.module(), trainer.state_dict()

    for module, state in on_threads(
        2, work, Tied(), lambda p: torch.optim.SGD(p, lr=0.1), plan=chosen, graph=tied
    ):
        assert module.second.weight is module.first.weight
        assert all(torch.equal(t, state[name]) for name, t in module.state_dict().items())
        assert torch.equal(module.scale, torch.full((4,), 2.0))
