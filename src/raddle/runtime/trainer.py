"""`parallelize`: an unmodified module, trained by a plan, one process a device.

trainer = raddle.parallelize(model, "plan.json", optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
for x, y in loader:
    loss = trainer.step(x, y)
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.resizing import ONE_AT_A_TIME
from raddle.plans import file
from raddle.plans.adapting import adapt
from raddle.plans.pipelining import for_running, is_asynchronous, micro_graph
from raddle.plans.plan import Plan
from raddle.program.check import check
from raddle.program.lower import lower
from raddle.program.program import Program
from raddle.runtime.batches import Batches
from raddle.runtime.checkpoint import (
    assemble,
    cut_optimizer,
    cut_state,
    gather_groups,
    gather_optimizer,
    gather_state,
    options_of,
)
from raddle.runtime.clipping import clip
from raddle.runtime.executor import Executor
from raddle.runtime.materialize import take
from raddle.runtime.resized import Loan, Resized
from raddle.runtime.settling.pieces import Source
from raddle.runtime.weights import Used
from raddle.transport.base import Transport
from raddle.transport.exchange import exchange_over
from raddle.transport.joining import join

FLUSH = 10.0  # seconds for which a trainer that closes waits for what is under way
T = TypeVar("T")
Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
# They look at whole tensors (norms, factors, inner products), which a tile does not have.
WHOLE_TENSORS = ("LBFGS", "Adafactor", "Muon")


def parallelize(
    model: nn.Module,
    plan: Plan | str | pathlib.Path | Mapping[str, Any],
    optimizer: Optimizer,
    *,
    loss: Callable[..., Tensor] | None = None,
    graph: Graph | None = None,
    device: torch.device | str | None = None,
    backend: str | None = None,
    seed: int = 0,
    accumulate: int = 1,
    clip_norm: float | None = None,
    autocast: torch.dtype | None = None,
    check_finite: bool = False,
    timeout: float = 300.0,
    transport: Transport | None = None,
) -> Trainer:
    """A trainer for this rank of a torchrun job, or for plain `python`, if the plan has one device.

    `plan` is a plan or its file. `optimizer(parameters)` makes any elementwise optimizer of torch.optim
    for this rank's tiles. `loss(output, *targets)` joins the module's output and the targets; it must be
    what the plan was made with. A model on the meta device is initialised tile by tile: no rank ever
    holds more than its own tiles and one layer. `accumulate` adds the gradients of so many steps before
    an update, `clip_norm` limits their global norm, `autocast` (torch.bfloat16) is mixed precision, and
    `check_finite` stops before an update whose loss is not a number. `timeout` limits every wait.
    """
    place = _place(device)
    if accumulate < 1:
        raise InputError(f"accumulate is {accumulate}: it needs at least one step.")
    transport = transport or join(place, backend, timeout)
    try:
        return _trainer(
            model, plan, optimizer, transport, place, loss=loss, graph=graph, seed=seed,
            accumulate=accumulate, clip_norm=clip_norm, autocast=autocast, check_finite=check_finite,
        )  # fmt: skip
    except BaseException as error:
        transport.fail(str(error))
        raise


def _trainer(
    model: nn.Module, plan: Any, optimizer: Optimizer, transport: Transport, place: torch.device,
    *, loss: Any, graph: Graph | None, **settings: Any,
) -> Trainer:  # fmt: skip
    data = plan if isinstance(plan, Plan | Mapping) else file.read(plan)
    devices = data.devices if isinstance(data, Plan) else data["devices"]
    if devices != transport.size:
        were = "was" if transport.size == 1 else "were"
        raise InputError(
            f"the plan needs {devices} ranks, {transport.size} {were} started: re-plan with --cluster "
            f"local:{transport.size}, or launch {devices} with torchrun --nproc-per-node {devices}."
        )
    if graph is None:
        graph = _captured(model, data, loss)
    if graph.loss is None:
        raise InputError("the module gives no loss: pass loss=..., as torch's cross_entropy.")
    graph = micro_graph(graph, data)
    chosen = data if isinstance(data, Plan) else file.from_dict(dict(data), graph)
    program = lower(graph, for_running(chosen))
    check(program)
    return Trainer(model, program, optimizer, transport, place, loss=loss, **settings)


def _place(device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def _captured(model: nn.Module, plan: Plan | Mapping[str, Any], loss: Any) -> Graph:
    inputs = plan.inputs if isinstance(plan, Plan) else plan["inputs"]
    if not inputs:
        raise InputError("the plan does not say what a step takes: give graph=raddle.capture(...).")
    return capture_like(model, inputs, loss)


def capture_like(
    model: nn.Module, inputs: Sequence[Mapping[str, Any]], loss: Callable[..., Tensor] | None
) -> Graph:
    """The graph of a module for inputs that a plan describes."""
    made = {
        i["name"]: torch.empty(i["shape"], dtype=getattr(torch, i["dtype"]), device="meta")
        for i in inputs
    }
    given = {i["name"]: made[i["name"]] for i in inputs if not i["target"]}
    targets = [made[i["name"]] for i in inputs if i["target"]]
    keywords = any(i["keyword"] for i in inputs)
    own = next((p for p in model.parameters()), None)
    if own is not None and own.device.type != "meta":
        made = {n: torch.empty_like(t, device=own.device) for n, t in made.items()}
        given = {n: made[n] for n in given}
        targets = [made[i["name"]] for i in inputs if i["target"]]
    return capture(
        model,
        given if keywords else list(given.values()),
        targets=targets,
        loss=loss,
        dims={i["name"]: i["letters"] for i in inputs},
    )


def _evaluating(
    model: nn.Module, inputs: Sequence[Mapping[str, Any]], loss: Callable[..., Tensor] | None
) -> Graph:
    """The graph of a module in evaluation mode; the module is left in the mode that it has."""
    with ONE_AT_A_TIME:
        modes = {m: m.training for m in model.modules()}
        try:
            return capture_like(model.eval(), inputs, loss)
        finally:
            for module, mode in modes.items():
                module.training = mode


class Trainer:
    """One rank of a run; made by `raddle.parallelize`."""

    def __init__(
        self,
        model: nn.Module,
        program: Program,
        optimizer: Optimizer,
        transport: Transport,
        place: torch.device,
        *,
        loss: Callable[..., Tensor] | None = None,
        seed: int = 0,
        accumulate: int = 1,
        clip_norm: float | None = None,
        autocast: torch.dtype | None = None,
        check_finite: bool = False,
    ) -> None:
        self.model, self.program, self.transport, self.place = model, program, transport, place
        self.graph, self.plan, self.rank = program.graph, program.plan, transport.rank
        self.accumulate, self.clip_norm, self.check_finite = accumulate, clip_norm, check_finite
        self.steps = 0  # taken so far
        if is_asynchronous(self.plan) and (accumulate > 1 or clip_norm is not None):
            raise InputError(
                f"the schedule '{self.plan.schedule}' updates parameters one by one: gradients cannot be "
                "clipped by their norm, nor accumulated over steps; use a schedule with a flush."
            )
        self._loss_function, self._autocast = loss, autocast
        self._training = model.training
        self.executor = Executor(program, transport, place=place, seed=seed, autocast=autocast)
        self.batches = Batches(program, self.executor.plan)
        self._load(seed)
        self.optimizer = self._optimizer(optimizer)
        self.executor.update = self._update
        if self.executor.agreeing is not None:
            self.executor.agreeing.start(self.optimizer, self._barrier())
        self._evaluation: _Evaluation | None = None
        self.log: list[Used] | None = None  # which weights steps used that overlapped, if asked for
        self._sizes: dict[int, Resized] = {}  # by samples, for batches of other sizes than planned

    def _load(self, seed: int) -> None:
        lasting = [
            s for s in self.executor.plan.sources if s.role in ("parameter", "buffer", "frozen")
        ]
        self._idle = self._untrained(seed)
        found = dict(_each(lasting, take(self.model, _boxes(lasting), seed=seed)))
        self.executor.load(lambda s: found[s])

    def _untrained(self, seed: int) -> dict[str, Tensor]:
        """Parameters that are frozen or not used: rank 0 keeps them for checkpoints."""
        boxes = {
            v.name: [Box.full(v.shape)]
            for v in self.graph.values.values()
            if v.role == "frozen" or (v.role == "parameter" and v.name not in self.program.shares)
        }
        if self.rank != 0 or not boxes:
            return {}
        return {name: tensor for name, (tensor,) in take(self.model, boxes, seed=seed).items()}

    def _optimizer(self, make: Optimizer) -> torch.optim.Optimizer:
        self._updated = self.executor.updated()
        # A rank without parameters keeps an optimizer too, so that schedulers work on every rank.
        empty = nn.Parameter(torch.empty(0, device=self.place))
        made = make([p for _, p in self._updated] or [empty])
        split = next(
            (s.name for s, _ in self._updated if s.box.shape != self.graph.values[s.name].shape),
            None,
        )
        if split is not None and type(made).__name__ in WHOLE_TENSORS:
            raise InputError(
                f"{type(made).__name__} looks at whole tensors, but the plan splits '{split}': "
                "use an elementwise optimizer, as SGD or AdamW."
            )
        return made

    def _barrier(self) -> str:
        """Why an update has to wait for all gradients."""
        if self.clip_norm is not None:
            return "gradients are clipped by their global norm."
        return "the loss is to be finite before anything is updated." if self.check_finite else ""

    # -- training --------------------------------------------------------------------------------------

    def step(self, *batch: Tensor) -> Tensor:
        """Trains on one global batch; the loss, the same on every rank.

        Each tensor is the whole batch's, or this rank's part of it (`part` cuts it out). A whole batch of
        another size, as an epoch's last, is trained on too.
        """
        if is_asynchronous(self.plan):
            raise InputError(
                f"the schedule '{self.plan.schedule}' overlaps steps: use trainer.train(batches), which "
                "takes several."
            )
        samples = self.batches.samples(batch)
        if samples is not None and self.accumulate == 1:
            run = partial(self._resized(samples).step, batch, self.steps)
        else:
            tensors = self.batches.check(batch, self.rank)
            run = partial(
                self.executor.run,
                lambda s: self._feed(s, tensors),
                self.steps,
                update=(self.steps + 1) % self.accumulate == 0,
                weight=1 / self.accumulate,
            )
        loss = self._guarded(run)
        self.steps += 1
        return loss * self.accumulate if self.accumulate > 1 else loss

    def train(self, batches: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """Trains on global batches one after the other; their losses, the same on every rank.

        Where the plan overlaps steps, as many as the program has (`plan.steps`) are under way before all
        that is left is finished; so an epoch's evaluation or a checkpoint sees a finished state.
        """
        given = [list(batch) for batch in batches]
        if not is_asynchronous(self.plan):
            return [self.step(*batch) for batch in given]
        losses: list[Tensor] = []
        for at in range(0, len(given), self.plan.steps):
            chunk = given[at : at + self.plan.steps]
            losses += self._overlapped(chunk)
            self.steps += len(chunk)
        return losses

    def _overlapped(self, chunk: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        tensors = [self.batches.check(batch, self.rank) for batch in chunk]
        executor, loan = self.executor, None
        if len(chunk) < self.plan.steps:  # the last ones
            program = lower(self.graph, replace(self.plan, steps=len(chunk)))
            executor = Executor(
                program,
                self.transport,
                place=self.place,
                seed=executor.feeding.seed,
                autocast=self._autocast,
            )
            loan = Loan(self.executor, executor)
            loan.lend()
            executor.update = self.executor.update
        run = partial(executor.run_steps, lambda s: self._feed(s, tensors[s.key.step]), self.steps)
        losses = self._guarded(run)
        if loan is not None:
            loan.give_back()
        if self.log is not None:
            # Nothing is under way between two runs: every parameter has had an update a step.
            self.log += [
                u._replace(step=u.step + self.steps, version=u.version + self.steps)
                for u in executor.trained.log()
            ]
        return list(losses)

    def _resized(self, samples: int) -> Resized:
        if samples not in self._sizes:
            self._sizes[samples] = Resized(self, samples)
        return self._sizes[samples]

    def _guarded(self, run: Callable[[], Tensor]) -> Tensor:
        try:
            return run()
        except BaseException as error:
            self.transport.fail(f"{type(error).__name__} in step {self.steps}: {error}")
            raise

    def part(self, *batch: Tensor) -> list[Tensor]:
        """What this rank needs of a whole batch: a loader that knows it need not read the rest."""
        return self.batches.part(batch)

    def _feed(self, source: Source, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.batches.take(source, tensors).to(self.place, non_blocking=True)

    def _update(self) -> None:
        if self.check_finite:
            loss = self.executor.losses.all()
            if not torch.isfinite(loss).all():
                raise FloatingPointError(
                    f"the loss is {loss.item()} in step {self.steps}: nothing was updated."
                )
        if self.clip_norm is not None:
            sliced = bool(self.program.slices)
            own = self._updated if sliced else self.executor.parameters()
            counted = [(p, self._speaks_for(s)) for s, p in own]
            clip(self.transport, self.place, counted, self.clip_norm)
        self.optimizer.step()

    # -- evaluation ------------------------------------------------------------------------------------

    def evaluate(self, *batch: Tensor, outputs: bool = False) -> Any:
        """The loss of a batch in evaluation mode; with `outputs`, also what the module gives, whole."""
        self.executor.synchronize()
        if self._evaluation is None or not self._evaluation.fits(batch):
            self._evaluation = _Evaluation(self, batch)
        return self._evaluation.run(batch, outputs=outputs)

    # -- checkpoints -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers, whole, under the module's own names, on every rank's CPU."""
        self.executor.synchronize()
        return gather_state(self._exchange, self._pieces(), self._shapes(), self.graph.aliases)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes parameters and buffers from a state of the module, whoever saved it."""
        self.executor.synchronize()
        shapes = self._shapes()
        roles = ("parameter", "buffer", "frozen")
        sources = [s for s in self.executor.plan.sources if s.role in roles and s.name in shapes]
        found = cut_state(state, _boxes(sources), shapes, self.graph.aliases, device=self.place)
        self._idle = {name: state[name].detach().cpu().clone() for name in self._idle}
        with torch.no_grad():
            for source, tensor in _each(sources, found):
                if source.role == "parameter":
                    self.executor.slots[source.slot].copy_(tensor)
                else:  # buffers and frozen parameters are replaced, never written
                    self.executor.slots[source.slot] = tensor.clone()
        if self.executor.agreeing is not None:
            self.executor.agreeing.refresh()
        self.executor.synchronize()  # nobody sends gradients to a rank that has not loaded yet

    def optimizer_state_dict(self) -> dict[str, Any]:
        """All that a run needs besides `state_dict` to go on as if it had not been stopped.

        `state` is what the optimizer keeps, whole, by the parameter's name; `param_groups` are its options
        (learning rates, as schedulers leave them) with the names of their parameters; `steps` and `seed`
        are what masks of dropout are drawn from.
        """
        self._refuse_unfinished(self.steps)
        self.executor.synchronize()
        entries: dict[str, list[tuple[Box, dict[str, Any]]]] = {}
        for source, parameter in self._updated:
            if self._speaks_for(source):
                state = dict(self.optimizer.state.get(parameter, {}))
                entries.setdefault(source.name, []).append((source.box, state))
        shapes = self._shapes(parameters_only=True)
        return {
            "state": gather_optimizer(self._exchange, entries, shapes),
            "param_groups": gather_groups(self._exchange, self._groups()),
            "steps": self.steps,
            "seed": self.executor.feeding.seed,
        }

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where a run, by this plan or another, was when it called `optimizer_state_dict`."""
        wanted = ("state", "param_groups", "steps", "seed")
        if missing := next((key for key in wanted if key not in state), None):
            raise InputError(
                f"the optimizer's state has no '{missing}', so a run cannot go on from it: save it with "
                "this version's optimizer_state_dict()."
            )
        self._refuse_unfinished(state["steps"])
        self.executor.synchronize()
        sources = [source for source, _ in self._updated]
        of = {(source.name, source.box): p for source, p in self._updated}
        shapes = self._shapes(parameters_only=True)
        found = cut_optimizer(state["state"], _boxes(sources), shapes, device=self.place)
        options = [
            options_of(state["param_groups"], index, names)
            for index, (_, names) in enumerate(self._groups())
        ]
        if other := next((k for k in self.optimizer.defaults if k not in options[0]), None):
            raise InputError(
                f"the optimizer's state is not of {type(self.optimizer).__name__}: it has no '{other}'; "
                "use the optimizer that it was saved from."
            )
        for source, entries in _each(sources, found):
            self.optimizer.state[of[source.name, source.box]] = entries
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)
        self.steps = state["steps"]
        for executor in (self.executor, *(own.executor for own in self._sizes.values())):
            executor.feeding.seed = state["seed"]
        self.executor.synchronize()

    def _groups(self) -> list[tuple[dict[str, Any], list[str]]]:
        """The options of this rank's parameter groups, with the names of what is in them."""
        names = {id(parameter): source.name for source, parameter in self._updated}
        return [
            (
                {k: v for k, v in group.items() if k not in ("params", "param_names")},
                list(dict.fromkeys(names[id(p)] for p in group["params"] if id(p) in names)),
            )
            for group in self.optimizer.param_groups
        ]

    def _refuse_unfinished(self, steps: int) -> None:
        """Gradients that are still to be accumulated are in no state."""
        if steps % self.accumulate:
            raise InputError(
                f"step {steps} is in the middle of {self.accumulate} that are accumulated, and gradients "
                "are not saved: save after an update."
            )

    def _shapes(self, *, parameters_only: bool = False) -> dict[str, tuple[int, ...]]:
        if parameters_only:
            return {name: self.graph.values[name].shape for name in self.program.shares}
        kept = self.model.state_dict().keys()  # buffers that are not persistent stay out
        roles = ("parameter", "frozen", "buffer")
        values = [v for v in self.graph.values.values() if v.role in roles and v.name in kept]
        return {v.name: v.shape for v in values}

    def _speaks_for(self, source: Source) -> bool:
        """Of several ranks that hold a box, one hands it out."""
        return self.rank == self._owners[source.name, source.box]

    @cached_property
    def _owners(self) -> dict[tuple[str, Box], int]:
        """Of shares, or, where parameters are in slices, of those."""
        every = {**self.program.shares, **self.program.slices}
        return {(name, share.box): share.owner for name, own in every.items() for share in own}

    def _pieces(self) -> dict[str, list[tuple[Box, Tensor]]]:
        pieces: dict[str, list[tuple[Box, Tensor]]] = {}
        of_slices = self._updated if self.program.slices else []
        own = [(s, p) for s, p in of_slices if self._speaks_for(s)]
        held = [
            (s, p)
            for s, p in self.executor.parameters()
            if s.name not in self.program.slices and self._speaks_for(s)
        ]
        for source, parameter in (*held, *own):
            pieces.setdefault(source.name, []).append((source.box, parameter.detach()))
        for name, tensor in self._idle.items():
            pieces[name] = [(Box.full(tensor.shape), tensor)]
        for source in self.executor.plan.of("buffer"):
            tensor = self.executor.slots[source.slot]
            fresh = self.executor.plan.fresh.get(source.name, [])
            if source.name not in self.graph.updates:
                fresh = [source.box] if self.rank == 0 else []
            pieces[source.name] = [(box, tensor[box.within(source.box)]) for box in fresh]
        return pieces

    def _exchange(self, mine: Any) -> list[Any]:
        return exchange_over(self.transport, self.place, mine)

    def synchronize(self) -> None:
        """Waits until all parameters are as the last step leaves them: nothing is under way then."""
        self.executor.synchronize()

    def close(self) -> None:
        if self.executor.agreeing is not None:
            self.executor.agreeing.flush(FLUSH)
        self.executor.close()
        self.transport.close()


class _Evaluation:
    """The forward of the module in evaluation mode, by a plan that follows the training's."""

    def __init__(self, trainer: Trainer, batch: Sequence[Tensor]) -> None:
        self.trainer = trainer
        inputs = [dict(i) for i in trainer.plan.inputs]
        if not inputs:
            raise InputError("the plan does not say what a step takes: plan again to evaluate.")
        if len(inputs) != len(batch):
            raise InputError(f"a batch has {len(inputs)} tensors, not {len(batch)}.")
        for given, tensor in zip(inputs, batch, strict=True):
            given["shape"] = list(tensor.shape)
        self.shapes = [tuple(t.shape) for t in batch]
        model = trainer.model
        graph = _evaluating(model, inputs, trainer._loss_function)
        if graph.loss is None:
            raise InputError("the module gives no loss: pass loss=... to parallelize, to evaluate.")
        plan = adapt(trainer.plan, trainer.graph, graph)
        program = lower(graph, plan, train=False)
        check(program)
        self.executor = Executor(
            program, trainer.transport, place=trainer.place, autocast=trainer._autocast
        )
        self.batches = Batches(program, self.executor.plan)
        self.graph = graph

    def fits(self, batch: Sequence[Tensor]) -> bool:
        return self.shapes == [tuple(t.shape) for t in batch]

    def run(self, batch: Sequence[Tensor], *, outputs: bool) -> Any:
        trainer = self.trainer
        tensors = self.batches.check(batch, trainer.rank)
        self.executor.load(self._current())
        loss = self.executor.run(
            lambda s: self.batches.take(s, tensors).to(trainer.place), trainer.steps
        )
        if trainer.executor.plan.wholes:  # a rank that keeps its own rows keeps no others
            for source in self.executor.plan.of("parameter"):
                self.executor.slots[source.slot] = None
        if not outputs:
            return loss
        return loss, self._outputs()

    def _current(self) -> Callable[[Source], Tensor]:
        """Parameters as they are on this rank, buffers as they are on the ranks that keep them."""
        trainer = self.trainer
        held: dict[str, list[tuple[Box, Tensor]]] = {}
        for source in trainer.executor.plan.sources:
            if source.role in ("parameter", "frozen"):
                tensor = trainer.executor.slots[source.slot]
                held.setdefault(source.name, []).append((source.box, tensor.detach()))
        buffers = {v.name: v.shape for v in trainer.graph.buffers}
        divided = trainer.program.slices if trainer.plan.syncing.divided else {}
        shapes = buffers | {name: trainer.graph.values[name].shape for name in divided}
        pieces = {n: p for n, p in trainer._pieces().items() if n in shapes}
        whole = gather_state(trainer._exchange, pieces, shapes, {})

        def find(source: Source) -> Tensor:
            if source.name in whole:
                return whole[source.name][source.box.within(Box.full(shapes[source.name]))]
            return _region(held[source.name], source.box)

        return find

    def _outputs(self) -> list[Tensor]:
        trainer, plan = self.trainer, self.executor.plan
        results = []
        for name in self.graph.outputs:
            mine = [
                (box, self.executor.slots[slot].cpu()) for box, slot in plan.outputs.get(name, [])
            ]
            found: dict[Box, Tensor] = {}
            for own in trainer._exchange(mine):
                found.update(own)
            value = self.graph.values[name]
            results.append(assemble(value.shape, value.dtype, list(found.items())))
        return results


def _boxes(sources: Iterable[Source]) -> dict[str, list[Box]]:
    """What sources hold, by name."""
    boxes: dict[str, list[Box]] = {}
    for source in sources:
        boxes.setdefault(source.name, []).append(source.box)
    return boxes


def _each(
    sources: Iterable[Source], found: Mapping[str, Sequence[T]]
) -> Iterator[tuple[Source, T]]:
    """Sources with what was found for their boxes, which stand in the same order."""
    rest = {name: iter(own) for name, own in found.items()}
    return ((source, next(rest[source.name])) for source in sources)


def _region(pieces: Sequence[tuple[Box, Tensor]], box: Box) -> Tensor:
    for held, tensor in pieces:
        if held.holds(box):
            return tensor[box.within(held)]
    result = pieces[0][1].new_zeros(box.shape)
    for held, tensor in pieces:
        common = held & box
        if not common.empty:
            result[common.within(box)] = tensor[common.within(held)]
    return result
