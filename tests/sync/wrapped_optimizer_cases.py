"""Test cases of a wrapped optimizer for any number of ranks, with DistributedDataParallel as the oracle."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import logging
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from wrapped_optimizer_ranks import HANG, Case

from raddle import sync

STEPS = 20
SAID = multiprocessing.get_context("fork").Event()  # that somebody is late, on any rank
SERVERS = [
    f"ps:{where},{what},{how}"
    for where, what, how in product(
        ("one", "distributed"), ("whole", "slice=7"), ("round-robin", "greedy")
    )
]
COLLECTIVE = "p3:collective,slice=7"
KINDS = [
    "allreduce", "sharded", "p3", "p3:slice=7", "p3:greedy", "server:1", "p3:collective", COLLECTIVE,
    *SERVERS,
]  # fmt: skip
SOME = ["allreduce", "sharded", "p3:slice=7", "ps:slice=9,greedy", COLLECTIVE]

# -- models ------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """With batch norm, a scalar parameter, and tensors that do not divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 5, 3, bias=False), nn.BatchNorm2d(5)
        self.fc1, self.fc2 = nn.Linear(5 * 4 * 4, 11), nn.Linear(11, 3)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        x = F.relu(self.bn(self.conv(x.view(-1, 1, 6, 6))))
        return self.fc2(torch.tanh(self.fc1(x.flatten(1)))) * self.scale


class Shared(nn.Module):
    """A layer that is used twice, and a weight that belongs to two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.twice, self.leave = (
            nn.Linear(36, 7),
            nn.Linear(7, 7),
            nn.Linear(7, 36, bias=False),
        )
        self.leave.weight = nn.Parameter(self.enter.weight.detach().t().contiguous())
        self.again = nn.Linear(7, 36)
        self.again.weight = self.leave.weight

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        x = torch.tanh(self.twice(torch.tanh(self.twice(self.enter(x)))))
        return (self.leave(x) + self.again(x))[:, :3]


class Unused(nn.Module):
    """Has layers that no rank uses, that only rank 0 uses, and that all ranks use in every third step."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.never = nn.Linear(36, 3), nn.Linear(36, 3)
        self.first, self.sometimes = nn.Linear(36, 3), nn.Linear(36, 3)

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        y = self.always(x)
        if dist.get_rank() == 0 and step % 2:
            y = y + torch.tanh(self.first(x))
        return y + self.sometimes(x) if step % 3 == 1 else y


class Aliased(nn.Module):
    """Gradients of `a` and `b` are views of the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(9, 12)), nn.Parameter(torch.randn(9, 12))

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        return x @ (self.a.view(-1) + self.b.view(-1)).view(36, 3)


class Negative(nn.Module):
    """A gradient of negative zeros is a gradient: weight decay moves the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.z = nn.Linear(36, 3), nn.Parameter(torch.randn(5, 3))
        self.z.register_hook(lambda g: torch.full_like(g, -0.0))

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        return self.always(x) + self.z.sum(0)


def make(kind: type[nn.Module], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(1)
    return kind().to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randn(6, 36, generator=generator, dtype=dtype),
        torch.randint(3, (6,), generator=generator),
    )


def sgd(parameters: Any, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.01)


def adam(parameters: Any, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr, weight_decay=0.01)


OPTIMIZERS = {"SGD": sgd, "Adam": adam}


# -- the oracle, and ours ----------------------------------------------------------------------------


def train(
    net: nn.Module,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    *,
    steps: Sequence[int] = range(STEPS),
    passes: int = 1,
    zero: Callable[[torch.optim.Optimizer], None] = lambda o: o.zero_grad(),
    before: Callable[[], Any] = lambda: None,
    after: Callable[[], Any] = lambda: None,
) -> None:
    """Trains. net: the module that is called. before, after: called before and after each step."""
    dtype = next(model.parameters()).dtype
    for step in steps:
        for k in range(passes):
            x, y = batch(rank, passes * step + k, dtype)
            quiet = isinstance(net, DDP) and k < passes - 1
            with net.no_sync() if quiet else contextlib.nullcontext():
                F.cross_entropy(net(x, step), y).backward()
        before()
        optimizer.step()
        zero(optimizer)
        after()


def dtype_of(size: int) -> torch.dtype:
    """Two ranks give the same bits; with more ranks only rounding may differ."""
    return torch.float32 if size == 2 else torch.float64


@functools.cache
def oracle(kind: type[nn.Module], name: str, passes: int = 1) -> dict[str, Tensor]:
    model = make(kind, dtype_of(dist.get_world_size()))
    net = DDP(model, find_unused_parameters=kind is Unused, broadcast_buffers=False)
    train(net, model, OPTIMIZERS[name](model.parameters()), dist.get_rank(), passes=passes)
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def same(model: nn.Module, expected: dict[str, Tensor]) -> None:
    """Compares bit by bit for two ranks, else with a tolerance."""
    actual = model.state_dict()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype == torch.float64:
            torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-11)
        else:
            assert torch.equal(actual[name], value), f"{name}: {(actual[name] - value).abs().max()}"


def alike(
    rank: int, size: int, *, kind: type[nn.Module], name: str, text: str, passes: int = 1
) -> None:
    expected = oracle(kind, name, passes)
    model = make(kind, dtype_of(size))
    if rank:
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
    sync.broadcast(model)
    inner = OPTIMIZERS[name](model.parameters())
    optimizer = sync.Optimizer(inner, model, text, backward_passes=passes, bucket=600)
    train(model, model, optimizer, rank, passes=passes)
    same(model, expected)
    report = optimizer.report()
    assert report["steps"] == STEPS
    assert report["bytes"] > 0
    assert report["barrier"] == ""


# -- cases of their own ------------------------------------------------------------------------------


def against_ddp(
    rank: int, size: int, text: str, with_ours: Callable[[Any, nn.Module], dict[str, Any]],
    with_ddp: Callable[[Any, nn.Module], dict[str, Any]], make_optimizer: Any = sgd, **more: Any,
) -> Any:  # fmt: skip
    """Trains DDP and the wrapped optimizer, each with its callbacks, and compares them."""
    model = make(Plain, dtype_of(size))
    inner = make_optimizer(model.parameters())
    train(DDP(model, broadcast_buffers=False), model, inner, rank, **with_ddp(inner, model))
    synced = make(Plain, dtype_of(size))
    optimizer = sync.Optimizer(make_optimizer(synced.parameters()), synced, text, **more)
    train(synced, synced, optimizer, rank, **with_ours(optimizer, synced))
    same(synced, {n: t.detach().clone() for n, t in model.state_dict().items()})
    return optimizer


def scheduler(rank: int, size: int, *, text: str) -> None:
    """Every step has another learning rate and momentum; p3 may update after the next step has begun."""

    def scheduled(optimizer: Any, model: nn.Module) -> dict[str, Any]:
        one = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=STEPS + 1)
        return {"after": one.step}

    against_ddp(rank, size, text, scheduled, scheduled)


def clipping(rank: int, size: int, *, text: str) -> None:
    norms: list[Tensor] = []
    expected: list[Tensor] = []
    optimizer = against_ddp(
        rank, size, text,
        lambda o, m: {"before": lambda: norms.append(o.clip_grad_norm(0.1))},
        lambda o, m: {
            "before": lambda: expected.append(nn.utils.clip_grad_norm_(m.parameters(), 0.1))
        },
    )  # fmt: skip
    torch.testing.assert_close(norms, expected)
    assert max(norms) > 0.1
    assert ("norm" in optimizer.report()["barrier"]) == (text != "allreduce")


def clipping_by_torch(rank: int, size: int, *, text: str, barrier: bool) -> None:
    def clipped(optimizer: Any, model: nn.Module) -> dict[str, Any]:
        return {"before": lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)}

    against_ddp(rank, size, text, clipped, clipped, barrier=barrier)


def clipping_without_asking(rank: int, size: int) -> None:
    """If p.grad is changed before it is summed, all ranks raise; there is no wrong result."""
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "p3")
    settled(optimizer)
    clip = partial(nn.utils.clip_grad_norm_, model.parameters(), 0.1)
    expect("wrap with barrier=True", lambda: train(model, model, optimizer, rank, before=clip))


def clipping_too_late(rank: int, size: int) -> None:
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "p3")
    train(model, model, optimizer, rank, steps=range(2))
    settled(optimizer)
    expect(
        "have left p.grad already: wrap with barrier=True", lambda: optimizer.clip_grad_norm(1.0)
    )


def rate_changed_too_late(rank: int, size: int) -> None:
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "ps")
    settled(optimizer)

    def change() -> None:
        optimizer.param_groups[0]["lr"] *= 0.5

    expect("'lr' was changed between", lambda: train(model, model, optimizer, rank, before=change))


def expect(words: str, work: Callable[[], Any], kind: type[Exception] = Exception) -> None:
    """Expects errors, after which the session cannot be used; so this ends it on every rank."""
    refused(words, work, kind)
    try:
        raise RuntimeError("a test has seen what it wanted")
    except RuntimeError:
        sync.close()


def settled(optimizer: sync.Optimizer) -> None:
    """Waits for all ranks, because an error on one reaches the others at once, even a step behind."""
    optimizer.synchronize()
    dist.barrier()


def refused(words: str, work: Callable[[], Any], kind: type[Exception] = Exception) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        work()


def scaler(rank: int, size: int, *, text: str, barrier: bool, explicit: bool) -> None:
    """With a GradScaler: in one step one rank has infinite gradients, and all ranks skip this step."""

    def trained(net: nn.Module, model: nn.Module, optimizer: Any) -> None:
        grad_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
        for step in range(8):
            x, y = batch(rank, step, dtype_of(size))
            if step == 3 and rank == 1:
                x = x * float("inf")
            grad_scaler.scale(F.cross_entropy(net(x, step), y)).backward()
            if explicit:
                grad_scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            optimizer.zero_grad()
            model.bn.reset_running_stats()  # type: ignore[operator, union-attr]

    model = make(Plain, dtype_of(size))
    trained(DDP(model, broadcast_buffers=False), model, sgd(model.parameters()))
    synced = make(Plain, dtype_of(size))
    optimizer = sync.Optimizer(sgd(synced.parameters()), synced, text, barrier=barrier)
    trained(synced, synced, optimizer)
    same(synced, {n: t.detach().clone() for n, t in model.state_dict().items()})
    assert optimizer.report()["barrier"] == (
        "barrier=True" if barrier else "a GradScaler looks at gradients between backward and step"
    )


def compressed(rank: int, size: int, *, text: str) -> None:
    model = make(Plain, torch.float32)
    net = DDP(model, broadcast_buffers=False)

    def hook(state: Any, bucket: Any) -> Any:  # by another name: DDP would refuse bf16 without NCCL
        kind = (
            default_hooks.bf16_compress_hook if "bf16" in text else default_hooks.fp16_compress_hook
        )
        return kind(state, bucket)

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}
    net.register_comm_hook(None, hook)
    train(net, model, sgd(model.parameters()), rank)
    synced = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(synced.parameters()), synced, text)
    train(synced, synced, optimizer, rank)
    assert size > 2 or not torch.equal(synced.fc1.weight, oracle(Plain, "SGD")["fc1.weight"])
    for name, value in model.state_dict().items():
        if size == 2:
            assert torch.equal(synced.state_dict()[name], value), name
        else:
            torch.testing.assert_close(synced.state_dict()[name], value, rtol=0.1, atol=0.02)


def closure(rank: int, size: int, *, text: str) -> None:
    synced = make(Plain, dtype_of(size))
    optimizer = sync.Optimizer(adam(synced.parameters()), synced, text)
    calls = []
    for step in range(STEPS):
        x, y = batch(rank, step, dtype_of(size))

        def evaluate(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(synced(x), y)
            loss.backward()
            calls.append(1)
            return loss

        assert optimizer.step(evaluate) > 0
    assert len(calls) == STEPS
    same(synced, oracle(Plain, "Adam"))


def lbfgs(rank: int, size: int) -> None:
    """LBFGS calls the closure many times, with the loss of all ranks; it ends as a single process would."""
    xs, ys = zip(*(batch(r, 0, torch.float64) for r in range(size)), strict=True)

    def trained(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
        def evaluate() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(evaluate)

    one, synced = make(Shared, torch.float64), make(Shared, torch.float64)
    lines = {"max_iter": 5, "line_search_fn": "strong_wolfe"}
    trained(one, torch.optim.LBFGS(one.parameters(), **lines), torch.cat(xs), torch.cat(ys))
    optimizer = sync.Optimizer(torch.optim.LBFGS(synced.parameters(), **lines), synced, "p3")
    trained(synced, optimizer, xs[rank], ys[rank])
    assert "LBFGS" in optimizer.report()["barrier"]
    for name, value in one.state_dict().items():
        torch.testing.assert_close(synced.state_dict()[name], value, rtol=1e-5, atol=1e-7)


def incomplete(rank: int, size: int, *, text: str) -> None:
    """Steps with fewer backward calls than were announced, as at the end of an epoch."""
    model, synced = (make(Plain, dtype_of(size)) for _ in "12")
    optimizer = sync.Optimizer(sgd(synced.parameters()), synced, text, backward_passes=3)
    net, inner = DDP(model, broadcast_buffers=False), sgd(model.parameters())
    for passes in (3, 2, 1, 3):
        train(net, model, inner, rank, steps=range(3), passes=passes)
        train(synced, synced, optimizer, rank, steps=range(3), passes=passes)
    same(synced, {n: t.detach().clone() for n, t in model.state_dict().items()})


def zeroing(rank: int, size: int, *, text: str, how: str) -> None:
    ways = {
        "none": lambda o: o.zero_grad(set_to_none=True),
        "zeros": lambda o: o.zero_grad(set_to_none=False),
        "never": lambda o: None,  # submitting takes gradients out of p.grad
        "twice": lambda o: (o.zero_grad(), o.zero_grad(set_to_none=False)),
    }
    model = make(Plain, dtype_of(size))
    optimizer = sync.Optimizer(sgd(model.parameters()), model, text)
    train(model, model, optimizer, rank, zero=ways[how])
    same(model, oracle(Plain, "SGD"))


def states(rank: int, size: int, *, text: str, name: str) -> None:
    """Trains half of the steps, saves a checkpoint of the plain optimizer, and continues from it."""
    model = make(Plain, dtype_of(size))
    optimizer = sync.Optimizer(OPTIMIZERS[name](model.parameters()), model, text)
    train(model, model, optimizer, rank, steps=range(STEPS // 2))
    kept = copy.deepcopy(optimizer.state_dict())  # a plain one is not a copy either
    weights = {n: t.clone() for n, t in model.state_dict().items()}
    plain_model = make(Plain, dtype_of(size))
    plain_optimizer = OPTIMIZERS[name](plain_model.parameters())
    train(DDP(plain_model, broadcast_buffers=False), plain_model, plain_optimizer, rank,
          steps=range(STEPS // 2))  # fmt: skip
    expected = plain_optimizer.state_dict()
    assert kept["param_groups"] == expected["param_groups"]
    assert kept["state"].keys() == expected["state"].keys()
    for index, entries in expected["state"].items():
        assert kept["state"][index].keys() == entries.keys()
        for key, value in entries.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(kept["state"][index][key], value, rtol=1e-6, atol=1e-9)
    train(model, model, optimizer, rank, steps=range(STEPS // 2))  # led astray
    model.load_state_dict(weights)
    optimizer.load_state_dict(copy.deepcopy(kept))
    train(model, model, optimizer, rank, steps=range(STEPS // 2, STEPS))
    same(model, oracle(Plain, name))
    optimizer.close()
    fresh = make(Plain, dtype_of(size))  # into another one, before its first step
    fresh.load_state_dict(weights)
    second = sync.Optimizer(OPTIMIZERS[name](fresh.parameters()), fresh, text)
    second.load_state_dict(kept)
    train(fresh, fresh, second, rank, steps=range(STEPS // 2, STEPS))
    same(fresh, oracle(Plain, name))


class Peeking(nn.Module):
    """Uses the bias of a child before it calls the child, and the weight of one that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(36, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        x = torch.tanh(self.a(x)) + self.c.bias.sum()
        return self.c(torch.tanh(x @ self.b.weight))


def unguarded(rank: int, size: int) -> None:
    model = make(Peeking, dtype_of(size))
    net = DDP(model, find_unused_parameters=True)
    train(net, model, sgd(model.parameters()), rank)
    synced = make(Peeking, dtype_of(size))
    optimizer = sync.Optimizer(sgd(synced.parameters()), synced, "p3:slice=3")
    with logged() as lines:
        train(synced, synced, optimizer, rank)
    same(synced, {n: t.detach().clone() for n, t in model.state_dict().items()})
    assert optimizer.report()["unguarded"] == ["b.weight", "c.bias"]
    assert [line for line in lines if "no module waits for it" in line] == [
        "'b.weight' (and 1 more) is read by the forward before its own module runs, so no module waits for "
        "it: step() does from now on."
    ]


class Late(nn.Module):
    """Its forward uses other layers from the fourth step on."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(36, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        x = torch.tanh(self.a(x))
        return self.b(x) if step < 4 else F.linear(x, self.b.weight.clone(), self.b.bias.clone())


def unguarded_later(rank: int, size: int) -> None:
    model = make(Late, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "p3")
    with logged() as lines:
        train(model, model, optimizer, rank)
    assert set(optimizer.report()["unguarded"]) == {"b.weight", "b.bias"}
    assert sum("no module waits for it" in line for line in lines) == 2


@contextlib.contextmanager
def logged(level: int = logging.INFO) -> Iterator[list[str]]:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            if "for rank 1 to " in lines[-1]:
                SAID.set()

    keep, logger = Keep(), logging.getLogger("raddle.sync")
    logger.addHandler(keep)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(keep)


def opposite_order(rank: int, size: int, *, text: str) -> None:
    """Ranks have the same parameters in opposite orders: without the check, sums would be wrong."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("a", "b") if rank == 0 else ("b", "a"):
                setattr(self, name, nn.Linear(36, 3))

    model = Two()
    words = (
        "parameter 0 is 'a.weight' [3, 36] torch.float32 on rank 0, and on rank 1 parameter 0 is "
        "'b.weight' [3, 36] torch.float32: make the model"
    )
    expect(words, lambda: sync.Optimizer(sgd(model.parameters()), model, text), ValueError)


def other_settings(rank: int, size: int) -> None:
    model = make(Plain, torch.float32)
    inner = sgd(model.parameters(), lr=0.1 + rank)
    words = "lr of parameter group 0 is 0.1 on rank 0, and on rank 1 lr of parameter group 0 is 1.1"
    expect(words, lambda: sync.Optimizer(inner, model, "p3"), ValueError)


def other_order_of_sums(rank: int, size: int) -> None:
    """One rank sums in another order: `debug` finds it before anything is summed."""
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "allreduce", bucket=1, debug=True)
    train(model, model, optimizer, rank, steps=range(1))
    if rank == size - 1:
        optimizer._hooks.handler.buckets.buckets.reverse()
    words = f"sum 0 is 'scale' [] on rank 0, and on rank {size - 1} sum 0 is 'conv.weight'"
    expect(words, lambda: train(model, model, optimizer, rank, steps=range(1)))


def other_order_of_slices(rank: int, size: int) -> None:
    """The same with slices: `debug` names them before anything is summed."""
    model = make(Plain, torch.float32)
    # A small model is one bundle; unbundled it has several sums, which can change places.
    optimizer = sync.Optimizer(
        sgd(model.parameters()), model, "p3:collective,unbundled", debug=True
    )
    train(model, model, optimizer, rank, steps=range(2))
    summing = optimizer._hooks.handler.updates.collective
    first = summing._items[summing._order[0]].name
    if rank == size - 1:
        summing.issuer.order.reverse()
        summing.issuer.next_step()
    words = f"sum 0 of ranks 0 and {size - 1} is '{first}' ("
    expect(words, lambda: train(model, model, optimizer, rank, steps=range(1)))


class Branches(nn.Module):
    """Its gradients are complete in another order on every other rank."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(36, 9), nn.Linear(36, 9)
        self.c = nn.Linear(9, 3)

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        pair = (self.a, self.b) if (dist.get_rank() + step) % 2 else (self.b, self.a)
        x, y = (torch.tanh(branch(x)) for branch in pair)
        return self.c(x + y)


def static_order(rank: int, size: int) -> None:
    """Ranks have their gradients in different orders, and one is slow; all issue sums in the same order."""
    model = make(Branches, dtype_of(size))
    optimizer = sync.Optimizer(sgd(model.parameters()), model, COLLECTIVE)
    train(model, model, optimizer, rank, steps=range(1))
    ready, left = list[int](), list[int]()
    updates, sums = optimizer._hooks.handler.updates, optimizer._channels.sum_transport
    give, all_reduce = updates.submit, sums.all_reduce

    def giving(index: int, gradient: Tensor | None) -> None:
        ready.append(index)
        give(index, gradient)

    def summing(ranks: tuple[int, ...], tag: int, buffer: Tensor, what: str = "") -> Any:
        left.append(tag)
        return all_reduce(ranks, tag, buffer, what)

    updates.submit, sums.all_reduce = giving, summing
    train(model, model, optimizer, rank, steps=range(6), after=lambda: time.sleep(0.01 * rank))
    optimizer.synchronize()
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, (ready, left))
    count = optimizer.report()["messages"] // 7  # sums of a step
    assert left == 6 * left[:count]
    assert sorted(left[:count]) == list(range(count))
    assert everyone[0][0] != everyone[1][0]  # or nothing was tried
    assert all(other_order == left for _, other_order in everyone)
    assert optimizer.report()["overtaken"] > 0
    same_everywhere(model)


def evaluated(rank: int, size: int) -> None:
    """A forward in inference mode or with autocast makes the updates of the step before."""
    model = make(Plain, dtype_of(size))
    optimizer = sync.Optimizer(adam(model.parameters()), model, COLLECTIVE)

    def evaluate() -> None:
        model.eval()
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            model(batch(rank, 0, dtype_of(size))[0])
        model.train()

    train(model, model, optimizer, rank, after=evaluate)
    same(model, oracle(Plain, "Adam"))


def collective_report(rank: int, size: int) -> None:
    """Counts bytes: only gradients are summed; every rank has the whole optimizer state."""
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, COLLECTIVE)
    train(model, model, optimizer, rank)
    optimizer.synchronize()
    elements = sum(p.numel() for p in model.parameters())
    assert optimizer.report()["bytes"] == STEPS * 4 * elements
    assert optimizer.log == []
    assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


def refusals(rank: int, size: int) -> None:
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "ps")
    wrap = partial(sync.Optimizer, sgd(model.parameters()), model)
    refused("cannot be added", lambda: optimizer.add_param_group({"params": [torch.zeros(1)]}))
    refused("once, or close() first", sync.init)
    refused("choose as in", lambda: wrap("gossip"))
    refused(f"rank {size} and there are {size}", lambda: wrap(f"ps:{size}"))
    refused("1 or more", lambda: wrap(backward_passes=0))
    lbfgs = torch.optim.LBFGS(model.parameters())
    refused("cannot wait until", lambda: sync.Optimizer(lbfgs, model, "ps:async"))
    meta = nn.Linear(2, 2, device="meta")
    both = sgd([*model.parameters(), *meta.parameters()])
    refused("a rank has one device", lambda: sync.Optimizer(both, model))
    frozen = sgd([torch.zeros(1)])
    refused("nothing to average", lambda: sync.Optimizer(frozen, model))
    train(model, model, optimizer, rank)  # still in order
    same_everywhere(model)


def same_everywhere(model: nn.Module) -> None:
    flat = torch.cat([p.detach().double().view(-1) for p in model.parameters()])
    least, most = flat.clone(), flat.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    assert torch.equal(least, most)


def too_many_passes(rank: int, size: int) -> None:
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "p3")
    train(model, model, optimizer, rank, steps=range(2))
    settled(optimizer)
    expect("and backward_passes is 1", lambda: train(model, model, optimizer, rank, passes=2))


def unfrozen(rank: int, size: int) -> None:
    model = make(Plain, torch.float32)
    model.fc1.bias.requires_grad_(False)  # type: ignore[union-attr, operator]
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "ps")
    train(model, model, optimizer, rank, steps=range(2))
    settled(optimizer)
    model.fc1.bias.requires_grad_(True)  # type: ignore[union-attr, operator]
    expect("wrap after it is unfrozen", lambda: train(model, model, optimizer, rank))


def disjoint_backwards(rank: int, size: int, *, text: str) -> None:
    """Two losses with different parameters: two backward calls, and one gradient for each parameter."""

    def trained(a: nn.Module, b: nn.Module, pair: nn.Module, optimizer: Any) -> None:
        for step in range(5):
            x, y = batch(rank, step, dtype_of(size))
            F.cross_entropy(a(x), y).backward()
            F.cross_entropy(b(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    pair, synced = (
        nn.ModuleList([make(Shared, dtype_of(size)), make(Plain, dtype_of(size))]) for _ in "12"
    )
    nets = [DDP(net, broadcast_buffers=False) for net in pair]
    trained(nets[0], nets[1], pair, sgd(pair.parameters()))
    trained(synced[0], synced[1], synced, sync.Optimizer(sgd(synced.parameters()), synced, text))
    same(synced, {n: t.detach().clone() for n, t in pair.state_dict().items()})


def two_optimizers(rank: int, size: int) -> None:
    """Two optimizers have separate channels; their steps interleave differently on every rank."""
    one, two = make(Plain, dtype_of(size)), make(Plain, dtype_of(size))
    first = sync.Optimizer(sgd(one.parameters()), one, "allreduce", bucket=600)
    second = sync.Optimizer(adam(two.parameters()), two, "p3:slice=7")
    train(two, two, second, rank)
    train(one, one, first, rank)
    same(one, oracle(Plain, "SGD"))
    same(two, oracle(Plain, "Adam"))
    assert [o["sync"] for o in sync.report()["optimizers"]] == ["allreduce", "p3:slice=7"]


def transposed(rank: int, size: int) -> None:
    """A parameter that is not contiguous cannot be cut into slices: it is all-reduced, with a reason."""
    models = [make(Plain, dtype_of(size)) for _ in "12"]
    for model in models:
        model.fc1.weight = nn.Parameter(model.fc1.weight.detach().t().contiguous().t())
    ddp, synced = models
    train(DDP(ddp, broadcast_buffers=False), ddp, sgd(ddp.parameters()), rank)
    with logged() as lines:
        optimizer = sync.Optimizer(sgd(synced.parameters()), synced, "p3")
    train(synced, synced, optimizer, rank)
    same(synced, {n: t.detach().clone() for n, t in ddp.state_dict().items()})
    assert "'fc1.weight' is not contiguous" in optimizer.report()["barrier"]
    assert len(lines) == 1
    assert "'fc1.weight' is not contiguous" in lines[0]


def slow(rank: int, size: int, *, text: str) -> None:
    """A warning names a slow rank, and what it has not submitted, before the time is up."""
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, text, stall=0.2)
    train(model, model, optimizer, rank, steps=range(2))
    SAID.clear()
    dist.barrier()
    with logged(logging.WARNING) as lines:
        if rank == 1:
            assert SAID.wait(HANG)
        train(
            model, model, optimizer, rank, steps=range(2)
        )  # the second forward waits for the first step
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, [line for line in lines if "has waited" in line])
    said = [line for lines in everyone for line in lines]
    sums = text in ("allreduce", "p3:collective")
    words = f"for rank 1 to {'sum the gradients of' if sums else 'submit'} '"
    assert any(words in line for line in said), said
    optimizer.synchronize()
    same_everywhere(model)


def staleness(rank: int, size: int, *, text: str) -> None:
    """All ranks end with the servers' values, every gradient was an update, and bounds were kept."""
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters(), lr=0.01), model, text)
    pause = (lambda: time.sleep(0.004)) if rank else (lambda: None)
    train(model, model, optimizer, rank, after=pause)
    log = optimizer.log
    state = optimizer.state_dict()
    same_everywhere(model)
    assert len(state["state"]) == len(list(model.parameters()))
    clocks: dict[tuple[int, int], int] = {}
    bound = int(text.partition("ssp=")[2] or 10**9)
    for event in log:
        assert event.worker >= 0
        clocks[event.item, event.worker] = event.clock
        slowest = min(clocks.get((event.item, w), 0) for w in range(size))
        assert event.clock - slowest <= bound + 1
    assert set(clocks.values()) == ({STEPS} if log else set())


def digits(rank: int, size: int) -> None:
    """Asynchronous and with a bound: as accurate on digits as a synchronous run, with one slow worker."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    training, test = order[:1536], order[1536:]
    right: dict[str, float] = {}
    for text in ("ps", "ps:async", "ps:ssp=3"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        before = float((model(images[test]).argmax(1) == labels[test]).float().mean())
        optimizer = sync.Optimizer(
            torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8), model, text
        )
        shuffle = torch.Generator().manual_seed(1)
        for _ in range(6):
            mixed = training[torch.randperm(len(training), generator=shuffle)][rank::size]
            for samples in mixed.split(32):
                F.cross_entropy(model(images[samples]), labels[samples]).backward()
                optimizer.step()
                optimizer.zero_grad()
                if rank == 1:
                    time.sleep(0.002)
        optimizer.close()
        same_everywhere(model)
        right[text] = float((model(images[test]).argmax(1) == labels[test]).float().mean())
        assert before < 0.3
    assert right["ps"] > 0.93, right
    assert right["ps:async"] > right["ps"] - 0.03, right
    assert right["ps:ssp=3"] > right["ps"] - 0.03, right


def timeline(rank: int, size: int) -> None:
    sync.close()
    box: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(box, 0)
    path = Path(box[0]) / "t.json"
    sync.init(timeout=HANG, timeline=path)
    model = make(Plain, torch.float32)
    train(model, model, sync.Optimizer(sgd(model.parameters()), model, "p3:slice=30"), rank)
    other = make(Plain, torch.float32)
    train(other, other, sync.Optimizer(sgd(other.parameters()), other), rank)
    sync.close()
    if rank == 0:
        events = json.loads(path.read_text())["traceEvents"]
        lanes = {(e["pid"], e["cat"]) for e in events if e["ph"] == "X"}
        assert lanes >= {
            (r, what) for r in range(size) for what in ("push", "pull", "sum", "update")
        }
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in events if e["ph"] == "X")
        assert any(e["name"].startswith("fc1.weight[") for e in events)


def reports(rank: int, size: int) -> None:
    """Bytes of each sync kind; with two ranks and balanced servers half the gradients and half the rows."""
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "p3:slice=9")
    train(model, model, optimizer, rank)
    optimizer.synchronize()
    total: list[Any] = [None] * size
    dist.all_gather_object(total, optimizer.report())
    elements = sum(p.numel() for p in model.parameters())
    assert sum(r["bytes"] for r in total) == STEPS * 2 * 4 * elements * (size - 1)
    assert sum(r["overtaken"] for r in total) > 0
    assert all(len(r["waited"]) <= 5 for r in total)
    assert optimizer.report()["steps"] == STEPS


def raises(rank: int, size: int, *, text: str) -> None:
    """One rank's script raises: the others raise its reason, not a time-out."""
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, text)
    train(model, model, optimizer, rank, steps=range(2))
    settled(optimizer)
    if rank == 1:
        try:
            raise KeyError("no such sample")
        except KeyError:
            sync.close()
        return
    words = "rank 1 failed: it has raised KeyError: 'no such sample'"
    expect(words, lambda: train(model, model, optimizer, rank))


def garbage(rank: int, size: int) -> None:
    """A peer that sends invalid data is named by the rank that gets it, and the others stop."""
    model = make(Plain, torch.float32)
    optimizer = sync.Optimizer(sgd(model.parameters()), model, "p3")
    train(model, model, optimizer, rank, steps=range(2))
    settled(optimizer)
    if rank == 1:
        optimizer._channels.cpu_transport.wire()._wire._connections[0].sendall(
            b"GET / HTTP/1.1\r\n" * 9
        )
    words = "that are no frame" if rank == 0 else "rank 1 stops: rank 0 failed: rank 0 got"
    expect(words, lambda: train(model, model, optimizer, rank, steps=range(100)))


# -- all of them -------------------------------------------------------------------------------------


def cases(size: int) -> dict[str, Case]:
    all_cases: dict[str, Case] = {}
    some = ["allreduce", "sharded", "p3:slice=7", COLLECTIVE, *SERVERS[size - 3 :: 3]]
    kinds = KINDS if size == 2 else some
    for number, text in enumerate(kinds):
        for name in OPTIMIZERS if size == 2 else [list(OPTIMIZERS)[(number + size) % 2]]:
            all_cases[f"plain {name} {text}"] = partial(alike, kind=Plain, name=name, text=text)
    for number, text in enumerate(SOME):
        for kind in (
            (Shared, Unused, Aliased, Negative) if size == 2 else ((Shared, Unused)[number % 2],)
        ):
            all_cases[f"{kind.__name__} {text}"] = partial(alike, kind=kind, name="SGD", text=text)
        if size != 4:
            all_cases[f"Unused Adam {text}"] = partial(alike, kind=Unused, name="Adam", text=text)
        if size == 2 or number == size - 2:
            all_cases[f"accumulated {text}"] = partial(
                alike, kind=Plain, name="Adam", text=text, passes=3
            )
    return {**all_cases, **{2: _on_two, 3: _on_three, 4: _on_four}[size]()}


def _on_two() -> dict[str, Case]:
    all_cases: dict[str, Case] = {
        "unguarded": unguarded, "unguarded later": unguarded_later, "two optimizers": two_optimizers,
        "clipping without asking": clipping_without_asking, "clipping too late": clipping_too_late,
        "rate changed too late": rate_changed_too_late, "lbfgs": lbfgs, "refusals": refusals,
        "too many passes": too_many_passes, "unfrozen": unfrozen, "transposed": transposed,
        "other settings": other_settings, "digits": digits, "timeline": timeline, "reports": reports,
        "other order of sums": other_order_of_sums, "other order of slices": other_order_of_slices,
        "static order": static_order, "evaluated": evaluated, "collective report": collective_report,
        "opposite order": partial(opposite_order, text="p3"),
        "slow sharded": partial(slow, text="sharded"), "slow allreduce": partial(slow, text="allreduce"),
        "slow p3:collective": partial(slow, text="p3:collective"),
        "garbage": garbage,
    }  # fmt: skip
    for number, text in enumerate(
        ("p3", "p3:slice=7", "sharded", "allreduce", "p3:collective", COLLECTIVE)
    ):
        all_cases[f"scheduler {text}"] = partial(scheduler, text=text)
        if number % 2:
            all_cases[f"clipping {text}"] = partial(clipping, text=text)
            all_cases[f"disjoint {text}"] = partial(disjoint_backwards, text=text)
            all_cases[f"closure {text}"] = partial(closure, text=text)
            all_cases[f"raises {text}"] = partial(raises, text=text)
        for how in ("zeros", "twice") if number % 2 else ():
            all_cases[f"zeroing {how} {text}"] = partial(zeroing, text=text, how=how)
        name = ("SGD", "Adam")[number % 2]
        all_cases[f"state of {name} {text}"] = partial(states, text=text, name=name)
    all_cases["zeroing never p3:slice=7"] = partial(zeroing, text="p3:slice=7", how="never")
    for text in ("allreduce", "p3"):
        all_cases[f"incomplete {text}"] = partial(incomplete, text=text)
    all_cases["clipping by torch, allreduce"] = partial(
        clipping_by_torch, text="allreduce", barrier=False
    )
    all_cases["clipping by torch, p3"] = partial(clipping_by_torch, text="p3", barrier=True)
    all_cases["scaler, automatic"] = partial(scaler, text="p3", barrier=False, explicit=False)
    all_cases["scaler, collective"] = partial(
        scaler, text="p3:collective", barrier=False, explicit=False
    )
    all_cases["scaler, barrier"] = partial(scaler, text="p3", barrier=True, explicit=False)
    all_cases["scaler, unscale"] = partial(scaler, text="sharded", barrier=True, explicit=True)
    for text in ("allreduce:bf16", "allreduce:fp16"):
        all_cases[text] = partial(compressed, text=text)
    for text in ("ps:async", "ps:slice=30,greedy,ssp=1"):
        all_cases[f"{text} ends alike"] = partial(staleness, text=text)
    return all_cases


def _on_three() -> dict[str, Case]:
    return {
        "ps:ssp=2 ends alike": partial(staleness, text="ps:ssp=2"),
        "state of Adam, sharded": partial(states, text="sharded", name="Adam"),
        "state of SGD, p3": partial(states, text="p3:slice=7", name="SGD"),
        "raises p3": partial(raises, text="p3"),
        "reports": reports,
        "clipping p3": partial(clipping, text="p3"),
    }


def _on_four() -> dict[str, Case]:
    return {
        "two optimizers": two_optimizers,
        "unguarded": unguarded,
        "slow p3": partial(slow, text="p3"),
        "ps:async ends alike": partial(staleness, text="ps:async"),
    }
