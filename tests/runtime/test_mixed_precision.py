"""Training in the plan's precision: as precise as plain PyTorch's mixed precision, for every sync kind."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from equality import program_bytes
from ranks import on_threads
from torch import Tensor, nn

import raddle
from raddle.errors import InputError
from raddle.graph.supervised import supervised
from raddle.plans.notation import read_tiles
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.program.program import Gather, Reduce, buffer_bytes
from raddle.runtime.execution.tf32 import tf32_products
from raddle.runtime.trainer import Trainer

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
STEPS, SEEDS = 2, range(3)
MOST = 1.1  # by which the error may exceed plain PyTorch's
SYNCS = [
    "allreduce",
    "server:0",
    "sharded",
    "sharded:parameters",
    "sharded,group=2",
    "ps",
    "ps:one",
    "p3",
    "p3:collective",
]
WHOLE = [s for s in SYNCS if s.startswith(("allreduce", "sharded", "server"))]  # without slices
criterion = nn.functional.cross_entropy
loss = supervised(criterion)


def model_and_batches() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    model = nn.Sequential(
        nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )  # fmt: skip
    return model, [(torch.randn(16, 12), torch.randint(4, (16,))) for _ in range(STEPS)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def plain(model: nn.Module, batches: Iterable[Sequence[Tensor]], precision: str) -> nn.Module:
    """Trains as people write it: under autocast, or with a bfloat16 copy of float32 master weights."""
    model = copy.deepcopy(model)
    low = LOW.get(precision)
    compute = copy.deepcopy(model).bfloat16() if precision == "bf16:pure" else model
    optimizer = sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=low, enabled=low is not None):
            value = criterion(compute(x.to(next(compute.parameters()).dtype)), y)
        pairs = list(zip(model.parameters(), compute.parameters(), strict=True))
        for _, p in pairs:
            p.grad = None
        scaler.scale(value).backward()
        for master, p in pairs:
            master.grad = None if p.grad is None else p.grad.to(master.dtype)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for master, p in pairs:
                p.copy_(master)
    return model


def plan_of(graph: Any, ranks: int, **more: Any) -> Plan:
    """Data parallelism."""
    return replace(
        raddle.plan(graph, cluster=f"local:{ranks}", method="data", sync="allreduce").plan, **more
    )


def train(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], ranks: int, **more: Any
) -> tuple[dict[str, Tensor], list[Trainer]]:
    """Trains on threads; returns the state of the module, and the closed trainers."""
    x, y = batches[0]
    graph = raddle.capture(model, (x, y), loss)
    trainers = []

    def work(trainer: Trainer) -> dict[str, Tensor]:
        trainers.append(trainer)
        for batch in batches:
            trainer.step(batch)
        return trainer.state_dict()

    states = on_threads(
        ranks, work, model, sgd, plan=plan_of(graph, ranks, **more), graph=graph, loss=loss
    )
    for state in states[1:]:
        for name, tensor in state.items():
            assert torch.equal(tensor, states[0][name])
    return states[0], trainers


def doubled(batches: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(x.double(), y) for x, y in batches]


def error(state: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    return sum(
        float((state[name].detach().double() - t.detach()).square().sum())
        for name, t in exact.items()
    )


def check(ranks: int, precision: str, sync: str) -> None:
    """Compares the squares of the errors, summed over seeds: one run's error is partly luck."""
    ours = theirs = 0.0
    for seed in SEEDS:
        torch.manual_seed(seed)
        model, batches = model_and_batches()
        exact = dict(
            plain(copy.deepcopy(model).double(), doubled(batches), "float64").named_parameters()
        )
        state, _ = train(model, batches, ranks, precision=precision, sync=sync)
        assert all(t.dtype == torch.float32 for t in state.values())
        ours += error(state, exact)
        theirs += error(
            dict(plain(model, batches, precision.split(",")[0]).named_parameters()), exact
        )
    assert 0 < ours <= MOST**2 * theirs


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_is_as_precise_as_plain(precision: str, sync: str) -> None:
    check(2, precision, sync)


@pytest.mark.parametrize("sync", WHOLE)
def test_master_weights_are_as_precise_as_plain(sync: str) -> None:
    check(2, "bf16:pure", sync)


@pytest.mark.parametrize("sync", [s for s in SYNCS if s not in WHOLE])
def test_slices_without_master_weights_are_refused(sync: str) -> None:
    with pytest.raises(InputError, match="for which no master weights are kept: use allreduce"):
        check(2, "bf16:pure", sync)


@pytest.mark.parametrize("sync", [s for s in SYNCS if s.startswith("sharded")])
@pytest.mark.parametrize("options", ["gather=bf16", "gather=bf16,reduce=float32", "reduce=bf16"])
def test_shards_are_cast_before_they_are_gathered(options: str, sync: str) -> None:
    """As precise as FSDP2's mixed precision, which rounds weights and gradients in the same places."""
    check(2, f"bf16,{options}", sync)


def test_bytes_of_collectives_have_the_dtypes_of_the_options() -> None:
    torch.manual_seed(0)
    model, batches = model_and_batches()
    total = {}
    for options in ("", ",gather=bf16", ",gather=bf16,reduce=float32"):
        precision, sync = f"bf16{options}", "sharded:parameters"
        _, trainers = train(model, batches, 2, precision=precision, sync=sync)
        program = trainers[0].program
        for trainer in trainers:
            sent = trainer.transport.collective_bytes
            expected: dict[tuple[str, tuple[int, ...]], int] = {}
            for i in program.instructions:
                if isinstance(i, Reduce | Gather):
                    kind = "all_gather" if isinstance(i, Gather) else "reduce_scatter"
                    for ring, nbytes in buffer_bytes(program, i).items():
                        expected[kind, ring] = expected.get((kind, ring), 0) + STEPS * nbytes
            assert {k: n for k, n in sent.items() if k[0] != "all_reduce"} == expected
        total[options] = {kind: n for (kind, _), n in expected.items()}
    plain, narrow, mixed = total.values()
    assert narrow == {kind: n // 2 for kind, n in plain.items()}
    assert mixed == {**plain, "all_gather": plain["all_gather"] // 2}


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16:pure"])
def test_what_crosses_ranks_has_the_dtype_in_which_it_was_computed(precision: str) -> None:
    """Layers on alternating ranks: every activation and its gradient is sent."""
    torch.manual_seed(0)
    model, batches = model_and_batches()
    x, y = batches[0]
    graph = raddle.capture(model, (x, y), loss)
    lines = [f"{op.name}: @{number % 2}\n" for number, op in enumerate(graph.ops)]
    plan = Plan(read_tiles(graph, "".join(lines)), 2, precision=precision)
    wide = program_bytes(lower(graph, replace(plan, precision="float32")))
    trainers = []

    def work(trainer: Trainer) -> dict[str, Tensor]:
        trainers.append(trainer)
        for batch in batches:
            trainer.step(batch)
        return trainer.state_dict()

    state = on_threads(2, work, model, sgd, plan=plan, graph=graph, loss=loss)[0]
    sent = {
        (t.rank, peer): n for t in trainers for peer, n in t.transport.total_sent().items() if n
    }
    narrow = program_bytes(trainers[0].program)
    assert sent == {pair: STEPS * nbytes for pair, nbytes in narrow.items()}
    assert sum(narrow.values()) < 0.8 * sum(wide.values())
    exact = dict(
        plain(copy.deepcopy(model).double(), doubled(batches), "float64").named_parameters()
    )
    reference = dict(plain(model, batches, precision).named_parameters())
    assert error(state, exact) <= MOST**2 * error(reference, exact)


def test_a_checkpoint_has_the_master_weights() -> None:
    """A run that is saved and resumed under another plan has the bits of one that was not stopped."""
    torch.manual_seed(0)
    model, batches = model_and_batches()
    graph = raddle.capture(model, batches[0], loss)

    def run(ranks: int, sync: str, work: Any) -> Any:
        plan = plan_of(graph, ranks, precision="bf16:pure", sync=sync)
        return on_threads(ranks, work, model, sgd, plan=plan, graph=graph, loss=loss)[0]

    def save(trainer: Trainer) -> Any:
        trainer.step(batches[0])
        return trainer.state_dict(), trainer.optimizer_state_dict()

    def resume(trainer: Trainer) -> Any:
        trainer.load_state_dict(saved[0])
        trainer.load_optimizer_state_dict(saved[1])
        trainer.step(batches[1])
        return trainer.state_dict()

    def whole(trainer: Trainer) -> Any:
        return trainer.step(batches[0]), trainer.step(batches[1]), trainer.state_dict()

    for sync in WHOLE:
        saved = run(2, sync, save)
        assert any(not torch.equal(t, t.bfloat16().float()) for t in saved[0].values())
        resumed, uninterrupted = run(2, sync, resume), run(2, sync, whole)[-1]
        assert all(torch.equal(resumed[name], t) for name, t in uninterrupted.items())


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16:pure"])
@pytest.mark.parametrize("frozen", [False, True])
def test_one_rank_has_the_bits_of_plain(precision: str, frozen: bool) -> None:
    torch.manual_seed(0)
    model, batches = model_and_batches()
    for parameter in next(model.children()).parameters():
        parameter.requires_grad_(not frozen)
    state, _ = train(model, batches, 1, precision=precision)
    for name, parameter in plain(model, batches, precision).named_parameters():
        assert torch.equal(state[name], parameter), name


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_with_infinite_gradients_is_skipped_by_all(ranks: int, fused: bool) -> None:
    """The scale begins so high that the first steps overflow; it falls until one does not."""
    torch.manual_seed(0)
    model, (batch, _) = model_and_batches()
    graph = raddle.capture(model, batch, loss)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3, fused=fused)

    def work(trainer: Trainer) -> list[Any]:
        scaler = trainer.setup.scaler
        assert scaler is not None
        scaler.scale.fill_(2.0**30)
        log = []
        for _ in range(24):
            trainer.step(batch)
            state = trainer.state_dict()
            log.append(
                (scaler.scale.item(), all(torch.equal(state[n], t) for n, t in before.items()))
            )
        return [log, trainer.optimizer_state_dict()]

    plan = plan_of(graph, ranks, precision="fp16")
    results = on_threads(ranks, work, model, make, plan=plan, graph=graph, loss=loss)
    log, saved = results[0]
    assert all(result[0] == log for result in results)
    skipped = sum(unchanged for _, unchanged in log)
    assert 0 < skipped < len(log)
    assert log[skipped - 1][0] == 2.0 ** (30 - skipped)
    assert saved["scaler"] == {"scale": 2.0 ** (30 - skipped), "good_steps": 24 - skipped}
    steps = {float(entries["step"]) for entries in saved["state"].values()}
    assert steps == {24.0 - skipped}  # the optimizer has counted no skipped step

    def resume(trainer: Trainer) -> float:
        trainer.load_optimizer_state_dict(saved)
        assert trainer.setup.scaler is not None
        return trainer.setup.scaler.scale.item()

    assert (
        on_threads(ranks, resume, model, make, plan=plan, graph=graph, loss=loss)
        == [2.0 ** (30 - skipped)] * ranks
    )


def test_the_scale_grows_as_torchs() -> None:
    """The factor after every step is GradScaler's, with steps that overflow and steps that do not."""
    torch.manual_seed(0)
    model, batches = model_and_batches()
    x, y = batches[0]
    graph = raddle.capture(model, (x, y), loss)
    reference, optimizer = (
        torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2000),
        None,
    )
    plain_model = copy.deepcopy(model)
    optimizer = sgd(plain_model.parameters())

    def work(trainer: Trainer) -> None:
        scaler = trainer.setup.scaler
        assert scaler is not None
        scaler.good_steps.fill_(1998)
        reference.load_state_dict({**reference.state_dict(), "_growth_tracker": 1998})
        for number in range(6):
            inputs = x * (3e38 if number == 1 else 1.0)
            trainer.step((inputs, y))
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                value = criterion(plain_model(inputs), y)
            reference.scale(value).backward()
            reference.step(optimizer)
            reference.update()
            assert scaler.scale.item() == reference.get_scale()
            if number == 1:
                scaler.good_steps.fill_(1998)
                reference.load_state_dict({**reference.state_dict(), "_growth_tracker": 1998})

    on_threads(
        1, work, model, sgd, plan=plan_of(graph, 1, precision="fp16"), graph=graph, loss=loss
    )


def test_overlapping_steps_in_fp16_are_refused() -> None:
    torch.manual_seed(0)
    model, batches = model_and_batches()
    with pytest.raises(InputError, match="with fp16 an update needs all gradients of a step"):
        train(model, batches, 2, precision="fp16", schedule="threaded:2", steps=4)


def test_precision_of_parallelize_replaces_the_plans() -> None:
    torch.manual_seed(0)
    model, batches = model_and_batches()
    x, y = batches[0]
    graph = raddle.capture(model, (x, y), loss)

    def planned(trainer: Trainer) -> str:
        return trainer.plan.precision

    def run(**more: Any) -> Any:
        return on_threads(
            1, planned, model, sgd, plan=plan_of(graph, 1), graph=graph, loss=loss, **more
        )

    assert run(precision="bf16") == ["bf16"]
    assert run() == ["float32"]
    with pytest.raises(InputError, match="precision is 'int4': choose"):
        run(precision="int4")


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16:pure"])
@pytest.mark.parametrize("sync", WHOLE)
def test_smaller_batches_and_evaluations_have_the_plans_precision(
    precision: str, sync: str
) -> None:
    """A last, smaller batch updates the same master weights; an evaluation computes with them."""
    torch.manual_seed(0)
    model, ((x, y), *_) = model_and_batches()
    batches = [(x, y), (x[:10], y[:10]), (x, y)]
    graph = raddle.capture(model, (x, y), loss)

    def work(trainer: Trainer) -> tuple[float, dict[str, Tensor]]:
        for batch in batches:
            trainer.step(batch)
        return float(trainer.evaluate((x, y)).loss), trainer.state_dict()

    plan = plan_of(graph, 2, precision=precision, sync=sync)
    results = on_threads(2, work, model, sgd, plan=plan, graph=graph, loss=loss)
    trained, exact = (
        dict(plain(m, b, p).named_parameters())
        for m, b, p in (
            (model, batches, precision),
            (copy.deepcopy(model).double(), doubled(batches), "float64"),
        )
    )
    assert error(results[0][1], exact) <= 2 * MOST**2 * error(trained, exact)
    evaluated = copy.deepcopy(model)
    evaluated.load_state_dict(results[0][1])
    with torch.no_grad():
        assert results[0][0] == pytest.approx(float(criterion(evaluated(x), y)), rel=0.02)


def test_tf32_is_switched_on_for_a_while_and_restored() -> None:
    before = switches()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.allow_tf32 = False
        for enabled, inside in ((True, ("high", True)), (False, ("medium", False))):
            with tf32_products(enabled=enabled):
                with tf32_products(enabled=enabled):  # another rank of this process
                    pass
                assert switches() == inside
            assert switches() == ("medium", False)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def switches() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("bn", ["local", "global"])
def test_batch_norm_keeps_its_statistics_in_float32(ranks: int, bn: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
    )
    x, y = torch.randn(8, 3, 8, 8), torch.randint(4, (8,))
    graph = raddle.capture(model, (x, y), loss)

    def work(trainer: Trainer) -> tuple[float, dict[str, Tensor]]:
        trainer.step((x, y))
        return float(trainer.step((x, y))), trainer.state_dict()

    plan = plan_of(graph, ranks, precision="bf16:pure", bn=bn)
    value, state = on_threads(ranks, work, model, sgd, plan=plan, graph=graph, loss=loss)[0]
    optimizer = sgd(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        expected = criterion(model(x), y)
        expected.backward()
        optimizer.step()
    if ranks == 1 or bn == "global":
        assert value == pytest.approx(float(expected), rel=0.1)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(state[name], buffer, rtol=0.05, atol=0.02)
