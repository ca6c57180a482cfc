"""Checks that a plan trains as the plain module does, and sends the bytes of program and simulation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from raddle import zoo
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.dtypes import carries_gradient, in_double
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Key, Move, Program, message_bytes
from raddle.runtime.threads import run_threads
from raddle.simulation.timeline import simulate

CLOSE = (
    1e-9  # relative tolerance: of losses, and of gradients compared with the norm of all gradients
)

Batch = Sequence[Tensor]  # inputs, then targets


class Mismatch(AssertionError):
    """Raised if a result differs from the plain module's."""


class TrainingResult(NamedTuple):
    """The result of some training steps."""

    losses: list[float]
    state: Mapping[str, Tensor]  # parameters and buffers
    gradients: Mapping[str, Tensor]  # of the last step
    changed: frozenset[str]  # parameters and buffers that training changes
    scale: float  # norm of all gradients, in the step where it is largest


class Task:
    """A module with its loss, its captured graph, and batches for each step and micro-batch."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Batch,
        targets: Batch = (),
        loss: Callable[..., Tensor] | None = None,
        *,
        steps: int = 1,
        microbatches: int = 1,
        lr: float = 0.05,
    ) -> None:
        self.model, self.loss, self.inputs, self.lr = model.train(), loss, len(inputs), lr
        self.graph: Graph = capture(
            self.model, (*inputs, *targets), loss and supervised(loss, targets=len(targets))
        )
        self.batches = _batches([*inputs, *targets], steps, microbatches)
        self._plain: dict[tuple[int, int], TrainingResult] = {}

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.lr, momentum=0.9, weight_decay=0.01)

    def plain(self, steps: int, microbatches: int) -> TrainingResult:
        """The result of training the unmodified module; computed once."""
        if (steps, microbatches) not in self._plain:
            self._plain[steps, microbatches] = self._train(steps, microbatches)
        return self._plain[steps, microbatches]

    def _train(self, steps: int, microbatches: int) -> TrainingResult:
        model = copy.deepcopy(self.model)
        optimizer = self.optimizer(model.parameters())
        losses, norms = [], []
        for microbatch_inputs in self.batches[:steps]:
            optimizer.zero_grad()
            microbatch_inputs = microbatch_inputs[:microbatches]
            total = 0.0
            for batch in microbatch_inputs:
                value = model(*batch[: self.inputs])
                if self.loss is not None:
                    value = self.loss(value, *batch[self.inputs :])
                (value / len(microbatch_inputs)).backward()
                total += value.item() / len(microbatch_inputs)
            losses.append(total)
            gradients = {
                n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
            }
            norms.append(float(torch.cat([g.flatten() for g in gradients.values()]).norm()))
            optimizer.step()
        before, state = ({**m.state_dict(), **dict(m.named_buffers())} for m in (self.model, model))
        changed = frozenset(k for k, v in state.items() if not torch.equal(v, before[k]))
        return TrainingResult(losses, state, gradients, changed, max(*norms, 1e-6))

    def is_fragile(self, steps: int, microbatches: int) -> bool:
        """Whether rounding errors alone change the result, for example at a kink of relu at zero."""
        plain = self.plain(steps, microbatches)
        with _Rounding():
            rounded = self._train(steps, microbatches)
        try:
            compare(self.graph, plain, rounded.losses, rounded.state)
            compare_gradients(plain, rounded.gradients)
        except Mismatch:
            return True
        return False

    def verify(self, plan: Plan) -> Program:
        """Lowers, checks, simulates and runs a plan; raises if a result or a byte count is wrong."""
        program = lower(self.graph, plan)
        check(program)
        timeline = simulate(program, cluster(f"local:{plan.devices}"))

        def feed(key: Key) -> dict[str, Tensor]:
            return dict(
                zip(self.graph.inputs, self.batches[key.step][key.micro_batch], strict=True)
            )

        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        result = run_threads(program, state, self.optimizer, feed)
        plain = self.plain(plan.steps, plan.microbatches)
        compare(self.graph, plain, result.losses, result.state)
        compare_gradients(plain, result.gradients)
        expected_bytes = program_bytes(program)
        assert result.sent == expected_bytes, (
            f"sent {result.sent}, the program says {expected_bytes}"
        )
        simulated = timeline.bytes_by_pair()
        assert simulated == expected_bytes, (
            f"simulated {simulated}, the program says {expected_bytes}"
        )
        return program


class _Rounding(TorchDispatchMode):
    """Perturbs the result of every operator by a few units in the last place."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        views = any(r.alias_info is not None for r in func._schema.returns)
        if views or "amax" in str(func):  # amax: its backward searches for exactly this value
            return result
        return tree_map_only(Tensor, _rounded, result)


def _rounded(x: Tensor) -> Tensor:
    if not carries_gradient(x.dtype):
        return x
    return x * (1 + 1e-15 * torch.randn_like(x))


def _batches(example: Batch, steps: int, microbatches: int) -> list[list[list[Tensor]]]:
    """Batches like the example: floating-point tensors get noise, integer tensors are permuted."""
    generator = torch.Generator().manual_seed(7)

    def another(x: Tensor) -> Tensor:
        if carries_gradient(x.dtype):
            return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return x[torch.randperm(len(x), generator=generator)] if x.ndim else x

    return [[[another(x) for x in example] for _ in range(microbatches)] for _ in range(steps)]


def program_bytes(program: Program) -> dict[tuple[int, int], int]:
    """(source, target) -> bytes that the program's messages have."""
    total: dict[tuple[int, int], int] = {}
    for i in program.instructions:
        for m in i.messages if isinstance(i, Move) else ():
            pair = (m.source, m.target)
            total[pair] = total.get(pair, 0) + message_bytes(program, i, m)
    return total


def compare(
    graph: Graph, plain: TrainingResult, losses: Sequence[float], state: Mapping[str, Tensor]
) -> None:
    """Raises Mismatch unless losses, parameters and buffers equal the plain module's."""
    for step, (ours, theirs) in enumerate(zip(losses, plain.losses, strict=True)):
        if not abs(ours - theirs) <= CLOSE * max(1e-2, abs(theirs)):
            raise Mismatch(f"the loss of step {step} is {ours}, not {theirs}")
    missing = plain.changed - graph.aliases.keys() - state.keys()
    assert not missing, f"{sorted(missing)} are missing"
    for name, tensor in state.items():
        _compare(f"'{name}'", tensor, plain.state[name], CLOSE * max(1.0, plain.scale))


def compare_gradients(plain: TrainingResult, gradients: Mapping[str, Tensor]) -> None:
    assert gradients.keys() == plain.gradients.keys(), (
        f"gradients of {sorted(gradients)}, not of {sorted(plain.gradients)}"
    )
    for name, gradient in gradients.items():
        _compare(f"the gradient of '{name}'", gradient, plain.gradients[name], CLOSE * plain.scale)


def _compare(what: str, ours: Tensor, theirs: Tensor, limit: float) -> None:
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), f"{what} is another kind"
    error = float((in_double(ours) - in_double(theirs)).norm())
    if not error <= limit:  # also catches NaN
        raise Mismatch(f"{what} is off by {error:.2e}, more than {limit:.2e}")


# -- the zoo -----------------------------------------------------------------------------------------

TINY = tuple(name for name in zoo.names() if name.endswith("-tiny"))


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for key in ("p", "dropout"):
            if isinstance(getattr(module, key, None), float):
                setattr(module, key, 0.0)
    return model


@cache
def tiny(name: str) -> Task:
    """A model of the zoo in float64, without dropout, with batches for two steps."""
    work = zoo.load(name, device="cpu", dtype=torch.float64)
    model = without_dropout(work.model)
    return Task(model, list(work.batch[:-1]), [work.batch[-1]], work.loss.criterion, steps=2)
