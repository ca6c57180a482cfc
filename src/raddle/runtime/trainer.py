"""The user's interface to the runtime: `parallelize` returns a Trainer for an unmodified module and a plan.

There is one process for each device of the plan, and each process calls `parallelize`:

    trainer = raddle.parallelize(model, sgd, loss=loss, example=batch, plan="plan.json")
    for batch in loader:
        print(float(trainer.step(batch)))
"""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.graph.step_module import OutputModule, StepModule
from raddle.graph.supervised import Loss
from raddle.plans import plan_file
from raddle.plans.pipelining import is_asynchronous, micro_batch_graph, plan_for_running
from raddle.plans.plan import Plan
from raddle.plans.precision import Precision
from raddle.plans.validation import validate_settings
from raddle.program.checks.check import check
from raddle.program.lower import lower
from raddle.program.program import Program
from raddle.runtime.capture_batch import call_of, capture_batch
from raddle.runtime.evaluation import Evaluation
from raddle.runtime.execution.compiled_functions import CompiledFunctions, compile_mode
from raddle.runtime.loss_scaler import make_scaler
from raddle.runtime.optimizer_step import OptimizerStep
from raddle.runtime.saved_state import SavedState
from raddle.runtime.setup import Setup
from raddle.runtime.state import TrainingState, initialise_slots
from raddle.runtime.step_result import StepResult
from raddle.runtime.step_runner import StepRunner
from raddle.runtime.tile_optimizer import MakeOptimizer, make_optimizer, plain_state
from raddle.transport.base import Transport
from raddle.transport.join import join

KEPT_EVALUATIONS = 4  # for so many shapes of batches, an evaluation is not captured again
FLUSH_SECONDS = 10.0  # how long `close` waits for messages in transit


def parallelize(
    model: nn.Module,
    optimizer: MakeOptimizer,
    *,
    plan: Plan | str | pathlib.Path | Mapping[str, Any],
    loss: Loss | None = None,
    example: Any = None,
    graph: Graph | None = None,
    device: torch.device | str | None = None,
    backend: str | None = None,
    seed: int = 0,
    accumulate: int = 1,
    clip_norm: float | None = None,
    precision: str | None = None,
    compile: bool | str = "auto",
    dropout: str | None = None,
    check_finite: bool = False,
    timeout: float = 300.0,
    transport: Transport | None = None,
) -> Trainer:
    """Returns a trainer for this rank of a torchrun job, or for plain `python`, if the plan has one device.

    model: its tensors are copied, not changed; leave it on the CPU, or a GPU holds its parameters twice.
        It may be on the meta device; then it is initialised layer by layer, so that a rank never holds more
        than its own tiles and one layer.
    optimizer: called with (name, parameter) pairs of this rank's tiles, which torch.optim takes as they
        are; returns any elementwise optimizer of torch.optim. Or a torch.optim optimizer of the model's
        parameters, whose class, options, groups and state are taken over.
    plan: a plan, the path of its file, or the content of its file as a dict.
    loss: loss(model, batch), as for `capture`; None: the model returns its loss.
    example: a batch like those that `step` will take; only its shapes and types count.
    graph: the captured graph, instead of an example.
    device, backend: of torch and torch.distributed; None: chosen automatically.
    accumulate: number of steps whose gradients are added before an update.
    clip_norm: limit of the global norm of the gradients.
    precision: instead of the plan's: "float32", "tf32", "bf16", "fp16" or "bf16:pure" (plans/precision.py).
        With bf16 and fp16, forwards run under torch.autocast.
    compile: True, False, "max-autotune" (a mode of torch.compile) or "auto": compile on GPUs.
    dropout: of attention, instead of the plan's. "native": dropout of PyTorch's fused kernel; the masks
        depend on the plan. "exact": masks that do not depend on the plan; slower, and needs more memory.
    check_finite: raise before an update if the loss is not finite.
    timeout: limit of every wait, in seconds.
    seed: of the initial parameters, if the model is on the meta device, and of dropout masks.
    transport: the connection to the other ranks; None: one is made. Several ranks use torch.distributed.

    >>> import raddle
    >>> model, batch = nn.Linear(4, 2), (torch.randn(8, 4), torch.randn(8, 2))
    >>> loss = raddle.supervised(nn.functional.mse_loss)
    >>> graph = raddle.capture(model, batch, loss)
    >>> plan = raddle.plan(graph, cluster="local:1", method="data").plan
    >>> sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    >>> trainer = parallelize(model, sgd, plan=plan, loss=loss, example=batch)
    >>> float(trainer.step(batch)) > float(trainer.step(batch))
    True
    >>> trainer.close()
    """
    place = place_of(device)
    if accumulate < 1:
        raise InputError(f"accumulate is {accumulate}: it needs at least one step.")
    transport = transport or join(place, backend, timeout)
    try:
        return make_trainer(
            model, plan, optimizer, transport, place, loss=loss, example=example, graph=graph,
            dropout=dropout, seed=seed, accumulate=accumulate, clip_norm=clip_norm, precision=precision,
            check_finite=check_finite, compile=compile,
        )  # fmt: skip
    except BaseException as error:
        transport.fail(str(error))
        raise


def make_trainer(
    model: nn.Module, plan: Any, optimizer: MakeOptimizer, transport: Transport, place: torch.device,
    *, loss: Loss | None, graph: Graph | None, example: Any = None, dropout: str | None = None,
    precision: str | None = None,
    compile: bool | str = "auto", **settings: Any,
) -> Trainer:  # fmt: skip
    """Returns a trainer: checks the plan against ranks and module, and lowers it to a program.

    The arguments are those of `parallelize`; if it fails, the other ranks are not told.
    """
    plan_or_content = plan if isinstance(plan, Plan | Mapping) else plan_file.read(plan)
    devices = (
        plan_or_content.devices if isinstance(plan_or_content, Plan) else plan_or_content["devices"]
    )
    if devices != transport.size:
        verb = "was" if transport.size == 1 else "were"
        raise InputError(
            f"the plan needs {devices} ranks, {transport.size} {verb} started: re-plan with --cluster "
            f"local:{transport.size}, or launch {devices} with torchrun --nproc-per-node {devices}."
        )
    if graph is None:
        if example is None:
            raise InputError("give example=, a batch as the data loader gives it.")
        graph = capture_batch(model, example, loss)
    if graph.loss is None:
        raise InputError(
            "the module gives no loss: pass loss=loss(model, batch), or raddle.supervised(criterion)."
        )
    graph = micro_batch_graph(graph, plan_or_content)  # the graph of the plan's largest micro-batch
    parsed_plan = (
        plan_or_content
        if isinstance(plan_or_content, Plan)
        else plan_file.from_dict(dict(plan_or_content), graph)
    )
    if dropout is not None or precision is not None:
        parsed_plan = replace(
            parsed_plan,
            dropout=dropout or parsed_plan.dropout,
            precision=precision or parsed_plan.precision,
        )
        validate_settings(parsed_plan)
    warn_of_emulation(parsed_plan.parsed_precision, place)
    # plan_for_running changes only plan.steps, the number of steps in the program: 1 or, where steps
    # overlap, many. Longer trainings run the program again and again.
    program = lower(graph, plan_for_running(parsed_plan))
    check(program)
    functions = CompiledFunctions(compile_mode(compile, place))
    return Trainer(
        model, program, optimizer, transport, place, loss=loss, functions=functions, **settings
    )


def warn_of_emulation(precision: Precision, place: torch.device) -> None:
    """Warns if a GPU has no units for the dtype of a precision; it computes all the same."""
    if (
        precision.low_dtype == torch.bfloat16
        and place.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        warnings.warn(
            "this GPU only emulates bfloat16, which is slow: pass precision='fp16' or 'float32'.",
            stacklevel=4,
        )


def place_of(device: torch.device | str | None) -> torch.device:
    """Returns the torch device of this rank: the given one, else its GPU, else the CPU."""
    if device is not None:
        return torch.device(device)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


class Trainer(SavedState):
    """One rank of a training run; made by `raddle.parallelize`. All ranks call its methods together."""

    def __init__(
        self,
        model: nn.Module,
        program: Program,
        optimizer: MakeOptimizer,
        transport: Transport,
        place: torch.device,
        *,
        loss: Loss | None = None,
        seed: int = 0,
        accumulate: int = 1,
        clip_norm: float | None = None,
        functions: CompiledFunctions | None = None,
        check_finite: bool = False,
    ) -> None:
        if is_asynchronous(program.plan) and (accumulate > 1 or clip_norm is not None):
            raise InputError(
                f"the schedule '{program.plan.schedule}' updates parameters one by one: gradients cannot "
                "be clipped by their norm, nor accumulated over steps; use a schedule with a flush."
            )
        self.setup = setup = Setup(
            model, program, transport, place, loss, functions or CompiledFunctions(),
            make_scaler(program, transport, place),
        )  # fmt: skip
        self.model, self.program, self.transport, self.rank = model, program, transport, setup.rank
        self.steps = 0  # number of steps so far
        self.executor = setup.make_executor(program, seed=seed)
        initialise_slots(setup, self.executor, seed)
        self.optimizer = make_optimizer(setup, self.executor, optimizer)
        self.step_runner = StepRunner(setup, self.executor, accumulate=accumulate)
        self.optimizer_step = OptimizerStep(
            setup, self.executor, self.optimizer, lambda: self.steps, self.step_runner.current_loss,
            clip_norm=clip_norm, check_finite=check_finite,
        )  # fmt: skip
        self.executor.optimizer_step = self.optimizer_step
        # parameter_sync: updates slices of parameters during the step (None: parameters are not sliced).
        # barrier_reason: a text, why updates must wait for all gradients of a step (clip_norm or
        # check_finite); "": they need not wait.
        if self.executor.parameter_sync is not None:
            self.executor.parameter_sync.start(self.optimizer, self.optimizer_step.barrier_reason)
        self.state = TrainingState(setup, self.executor, self.optimizer, seed=seed)
        if isinstance(optimizer, torch.optim.Optimizer) and optimizer.state:
            self.state.load_optimizer_state(plain_state(optimizer, model))
        self._evaluations: list[Evaluation] = []

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def plan(self) -> Plan:
        return self.program.plan

    @property
    def place(self) -> torch.device:
        return self.setup.place

    # -- training --------------------------------------------------------------------------------------

    def step(self, batch: Any) -> StepResult:
        """Trains on one global batch; returns the loss and the metrics, the same on every rank.

        Each tensor is that of the whole batch, or this rank's part of it (see `part`). A whole batch may
        have another size than planned, for example at the end of an epoch.
        """
        if is_asynchronous(self.plan):
            raise InputError(
                f"the schedule '{self.plan.schedule}' overlaps steps: use trainer.train(batches), which "
                "takes several."
            )
        self.optimizer_step.grad_norm = None  # if this step only accumulates, there is none
        loss = self.step_runner.run_step(batch, self.steps)
        self.steps += 1
        (metrics,) = self.step_runner.metrics()
        return StepResult(loss, metrics, self.optimizer_step.grad_norm)

    def train(self, batches: Iterable[Any]) -> list[StepResult]:
        """Trains on several global batches; returns their results, which are the same on every rank.

        If the plan overlaps steps, they run in groups of `plan.steps`, and the pipeline drains after each
        group. At the end all steps are complete, so that an evaluation or a checkpoint can follow.
        """
        batch_list = list(batches)
        if not is_asynchronous(self.plan):
            return [self.step(batch) for batch in batch_list]
        results: list[StepResult] = []
        for start in range(0, len(batch_list), self.plan.steps):
            chunk = batch_list[start : start + self.plan.steps]
            losses = self.step_runner.run_overlapping(chunk, self.steps)
            results += map(StepResult, losses, self.step_runner.metrics())
            self.steps += len(chunk)
        return results

    def part(self, batch: Any) -> Any:
        """Returns a whole batch with this rank's part of each tensor; a data loader may read it alone."""
        return self.step_runner.batch_cutter.part(batch)

    # -- evaluation ------------------------------------------------------------------------------------

    def evaluate(self, batch: Any) -> StepResult:
        """Returns the loss and the metrics of a batch of any size, in evaluation mode."""
        self.step_runner.batch_cutter.tensors(batch)  # raises if the batch is not as captured
        step = StepModule(self.model, batch, self.setup.loss)
        return self._evaluation_of(step).run(batch, self.steps)

    def predict(self, batch: Any) -> Any:
        """Returns the output of the module for a batch of any size, in evaluation mode, on the CPU.

        The batch needs no labels: a loss of `raddle.supervised` takes the inputs alone or the whole batch;
        any other loss runs until it calls the model, so the labels may be None or, in a dict, missing.
        """
        template = self.graph.template
        assert template is not None, "a program that runs is of a captured graph"
        call = call_of(self.model, batch, self.setup.loss, template)
        step = OutputModule(self.model, call.arguments, call.positional)
        return self._evaluation_of(step).output_of(call.arguments, self.steps)

    def _evaluation_of(self, step: StepModule) -> Evaluation:
        """Returns the evaluation of a step; the last ones are kept for batches of the same shapes."""
        self.executor.synchronize()
        evaluation = next((e for e in self._evaluations if e.fits(step)), None)
        if evaluation is None:
            evaluation = Evaluation(self.setup, self.executor, self.state, step)
            self._evaluations = [*self._evaluations, evaluation][-KEPT_EVALUATIONS:]
        return evaluation

    # -- the end ---------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits until all parameters have the updates of the last step and no message is in transit."""
        self.executor.synchronize()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Closes the trainer; if an error leaves the `with` block, reports it to the other ranks."""
        if error is not None:
            self.transport.fail(f"{type(error).__name__}: {error}")
        self.close()

    def close(self) -> None:
        """Ends threads and connections."""
        if self.executor.parameter_sync is not None:
            self.executor.parameter_sync.flush(FLUSH_SECONDS)
        elif self.transport.failures.first_failure is None:
            self.executor.synchronize()
        self.executor.close()
        self.transport.close()
