"""Every schedule trains as the plain module does, and sends the bytes that were simulated.

Ranks are threads and train two steps in float64. Losses, gradients of the last step, parameters, buffers
and the bytes between each pair of ranks are compared: at the transport, in the program and in the
simulation.
"""

# s: stage, m: micro-batch; P workers, M micro-batches

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from pipeline_plans import (
    PipelineTask,
    cut_evenly,
    make_pipeline_plan,
    pipeline,
    stage_tiles,
    tiny,
    updates_of,
)
from ranks import on_threads
from torch import Tensor, nn
from torch.nn import functional as F

from raddle.errors import InputError
from raddle.graph.supervised import supervised
from raddle.plans.pipelining import schedule_of, stage_of
from raddle.plans.plan import Plan, describe_inputs
from raddle.plans.schedule import schedule_to_text
from raddle.plans.tiling import Grid
from raddle.program.lower import lower
from raddle.program.program import Move
from raddle.runtime.trainer import Trainer

SCHEDULES = (
    "sequential", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "gems", "gems-basic", "chimera",
)  # fmt: skip
MODELS = ("vgg16-tiny", "resnet110-tiny", "unet-tiny", "gpt-tiny")
WORKERS = (2, 3, 4)
MICROBATCHES = range(1, 9)


def cases(schedule: str) -> list[tuple[int, int]]:
    """All pairs (workers, micro-batches) for a schedule or model."""
    workers = (2, 4) if schedule == "chimera" else WORKERS
    return list(product(workers, MICROBATCHES))


def chosen(schedule: str, model: str) -> list[tuple[int, int]]:
    """A selection of the cases in which every number of workers and of micro-batches occurs."""
    i, j = SCHEDULES.index(schedule), MODELS.index(model)
    workers = (2, 4) if schedule == "chimera" else WORKERS
    return [(workers[(i + j) % len(workers)], 1 + (i + 2 * j + k) % 8) for k in range(2)]


def run(schedule: str, model: str, workers: int, microbatches: int, uneven: int) -> None:
    """Verifies one case. uneven: number of micro-batches with three samples; the others have two."""
    piped = tiny(model, 3 if uneven else 2)
    chunks = 2 if schedule == "interleaved" else 1
    batch = 2 * microbatches + uneven if uneven else 0
    try:
        piped.verify(pipeline(piped, workers, microbatches, schedule, chunks=chunks, batch=batch))
    except Exception as error:
        case = f"{microbatches} micro-batches on {workers} workers, {uneven} of them larger"
        raise AssertionError(f"{schedule} of {case}: {error}") from error


COVERING = [  # every schedule with two models, every model with half of the schedules
    pytest.param(schedule, model, marks=() if (s + k) % 2 == 0 else pytest.mark.slow)
    for s, schedule in enumerate(SCHEDULES)
    for k, model in enumerate(MODELS)
]


@pytest.mark.parametrize(("schedule", "model"), COVERING)
def test_trains_as_the_plain_module_does(schedule: str, model: str, record_property: Any) -> None:
    for number, (workers, microbatches) in enumerate(chosen(schedule, model)):
        uneven = microbatches // 2 if number % 2 else 0
        run(schedule, model, workers, microbatches, uneven)
    record_property("pipelines on threads: run", len(chosen(schedule, model)))


def test_the_choice_covers_the_matrix() -> None:
    ran = {(s, m): chosen(s, m) for s, m in product(SCHEDULES, MODELS)}
    for one in (*SCHEDULES, *MODELS):
        chosen_cases = [case for key, group in ran.items() if one in key for case in group]
        assert {m for _, m in chosen_cases} == set(MICROBATCHES), one
        assert {p for p, _ in chosen_cases} == {p for p, _ in cases(one)}, one
    assert {case for case_group in ran.values() for case in case_group} == set(cases("1f1b"))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_whole_matrix(schedule: str, model: str) -> None:
    for workers, microbatches in cases(schedule):
        for uneven in sorted({0, microbatches // 2, microbatches - 1}):
            run(schedule, model, workers, microbatches, uneven)


# -- values that later stages read ---------------------------------------------------------------------


def readers(plan: Plan, piped: PipelineTask) -> dict[str, set[int]]:
    """Value computed by stage 0 -> the other stages that read it."""
    stage_by_op = stage_of(plan)
    reading_stages: dict[str, set[int]] = {}
    for op in piped.graph.ops:
        for name in op.inputs:
            if any(
                name in other.outputs and not stage_by_op[other.name] for other in piped.graph.ops
            ):
                reading_stages.setdefault(name, set()).add(stage_by_op[op.name])
    return {name: stages - {0} for name, stages in reading_stages.items()}


@pytest.mark.parametrize("microbatches", [1, 2, 4, 7])
@pytest.mark.parametrize("workers", [4, 5])
def test_a_unets_skips_pass_stages_by(workers: int, microbatches: int) -> None:
    piped = tiny("unet-tiny", 2)
    plan = pipeline(piped, workers, microbatches, "1f1b")
    assert {workers - 1} in readers(plan, piped).values()  # a value that only the last stage reads
    program = piped.verify(plan)
    moves = [i for i in program.instructions if isinstance(i, Move) and not i.key.step]
    pairs = {(m.source, m.target) for i in moves for m in i.messages}
    # Skips are sent directly, not through the stages between.
    assert {(0, workers - 1), (workers - 1, 0)} <= pairs


class Skips(nn.Module):
    """Five stages: 1, 3 and 4 read `u` of stage 0; stage 1 has two outputs; 0 and 4 share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.ends, self.two = nn.Linear(6, 6), nn.Linear(6, 10)
        self.narrow, self.wide = nn.Linear(5, 5, bias=False), nn.Linear(11, 6)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        u = torch.tanh(self.ends(x))  # 0
        a, b = self.two(u).chunk(2, 1)  # 1
        c = self.norm(self.narrow(a)) * b  # 2
        d = torch.cat([self.wide(torch.cat([u, c], 1)), b], 1)  # 3
        return self.ends(d[:, :6] * u)  # 4


@cache
def skips() -> PipelineTask:
    torch.manual_seed(2)
    x, y = torch.randn(3, 6).double(), torch.tensor([0, 3, 5])
    return PipelineTask(Skips().double(), [x], [y], F.cross_entropy)


def stages_of_skips() -> tuple[tuple[str, ...], ...]:
    names = [op.name for op in skips().graph.ops]
    starts = [0, names.index("two"), names.index("narrow"), names.index("cat")]
    starts += [names.index("cat_1") + 1, len(names)]
    return tuple(tuple(names[a:b]) for a, b in pairwise(starts))


@pytest.mark.parametrize("schedule", ["sequential", "gpipe", "1f1b", "zb-h1", "zb-h2", "gems"])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 6])
def test_skips_fan_out_and_tied_weights(schedule: str, microbatches: int) -> None:
    piped = skips()
    batch = 3 * microbatches - microbatches // 2
    plan = pipeline(
        piped, 5, microbatches, schedule, stages=stages_of_skips(), batch=batch, bucket=0
    )
    assert {1, 3, 4} in readers(plan, piped).values()
    program = piped.verify(plan)
    holders = {0, 4}
    assert all(set(share.devices) == holders for share in program.regions["ends.weight"])


@pytest.mark.parametrize("microbatches", [1, 3])
def test_skips_between_chunks_of_one_worker(microbatches: int) -> None:
    """Stage 4 is on the worker of stages 0 and 2: `u` stays there, and is sent to the other worker once."""
    piped = skips()
    stages = stages_of_skips()
    tiles = stage_tiles(piped.graph, stages, [[0], [1], [0], [1], [0]])
    rows = ("F{m}.0 F{m}.2 F{m}.4 B{m}.4 B{m}.2 B{m}.0", "F{m}.1 F{m}.3 B{m}.3 B{m}.1")
    text = "\n".join(" ".join(row.format(m=m) for m in range(microbatches)) for row in rows)
    piped.verify(make_pipeline_plan(piped, tiles, 2, microbatches, stages, text))


def test_a_tied_embedding_is_summed_over_both_ends() -> None:
    torch.manual_seed(7)
    piped = PipelineTask(
        Tied().double(), [torch.randint(9, (2, 5))], [torch.randint(9, (2, 5))], per_token
    )
    for schedule, workers in (("1f1b", 3), ("zb-h1", 3), ("gems", 3), ("chimera", 4)):
        program = piped.verify(pipeline(piped, workers, 4, schedule, batch=7))
        assert all(len(s.devices) > 1 for s in program.regions["table.weight"])


class Tied(nn.Module):
    """As in a language model: the embedding table of the first stage is the weight of the last stage."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc, self.norm = nn.Embedding(9, 6), nn.Linear(6, 6), nn.LayerNorm(6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x)
        return self.head(self.norm(x + torch.tanh(self.fc(x))))


def per_token(y: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(y.flatten(0, 1), t.flatten())


# -- stages on several devices -------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.fc1, self.fc2 = nn.Linear(4 * 4 * 4, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = torch.relu(self.norm2(self.conv2(x))).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


@cache
def net() -> PipelineTask:
    torch.manual_seed(4)
    x, y = torch.randn(3, 2, 8, 8).double(), torch.tensor([0, 3, 2])
    piped = PipelineTask(Net().double(), [x], [y], F.cross_entropy)
    # Captured now, as a rank's capture would disturb other ranks that still copy their parameters.
    for size in (1, 2):
        piped.graph.for_batch(size)
    return piped


def hybrid(
    widths: Sequence[int],
    splits: Sequence[Mapping[str, int]],
    microbatches: int,
    schedule: str,
    *,
    named: bool = False,
    **more: Any,
) -> Plan:
    """Stages on several devices each, split along letters. named: whether the plan names the workers."""
    piped = net()
    stages = cut_evenly(piped.graph, len(widths))
    starts = [sum(widths[:s]) for s in range(len(widths))]
    devices = [tuple(range(a, a + k)) for a, k in zip(starts, widths, strict=True)]
    tiles = stage_tiles(piped.graph, stages, devices, splits)
    workers = tuple(devices) if named else ()
    return make_pipeline_plan(
        piped, tiles, sum(widths), microbatches, stages, schedule, workers=workers, **more
    )


DATA, FILTERS, HEIGHT = {"n": 2}, {"c": 2}, {"h": 2}
HYBRIDS = {
    "data, then one": ([2, 1], [DATA, {}]),
    "one, then filters": ([1, 2], [{}, FILTERS]),
    "height, then data": ([2, 2], [HEIGHT, DATA]),
    "filters, then data": ([2, 2], [FILTERS, DATA]),
    "one, then samples in three": ([1, 3], [{}, {"n": 3}]),
    "height, one, data": ([2, 1, 2], [HEIGHT, {}, DATA]),
    "four ways, then filters": ([4, 2], [{"n": 2, "h": 2}, FILTERS]),
}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("hybrid_of", HYBRIDS)
def test_stages_are_tiled_inside(hybrid_of: str, schedule: str) -> None:
    widths, splits = HYBRIDS[hybrid_of]
    for microbatches, batch, named in ((1, 0, True), (2, 0, False), (3, 8, True), (4, 9, False)):
        net().verify(hybrid(widths, splits, microbatches, schedule, named=named, batch=batch))


@pytest.mark.parametrize("hybrid_of", [k for k, (w, _) in HYBRIDS.items() if set(w) == {2}])
@pytest.mark.parametrize("schedule", ["gems", "gems-basic", "chimera"])
def test_replicas_have_the_same_tiles_on_other_devices(schedule: str, hybrid_of: str) -> None:
    widths, splits = HYBRIDS[hybrid_of]
    for microbatches, batch in ((1, 0), (2, 5), (5, 0)):
        net().verify(hybrid(widths, splits, microbatches, schedule, batch=batch))


def test_a_replica_needs_as_many_devices() -> None:
    plan = hybrid([2, 1], [DATA, {}], 2, "gems")
    with pytest.raises(InputError, match="stage 0 has 2 devices, but worker 1"):
        lower(net().graph, plan)


@pytest.mark.parametrize("sync", ["allreduce", "server", "server:1"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h2", "gems"])
@pytest.mark.parametrize("blocks", ["none", "stages", "first", "halves"])
def test_recomputes_stage_by_stage(blocks: str, schedule: str, sync: str) -> None:
    plan = hybrid([2, 2], [HEIGHT, DATA], 3, schedule, batch=7, sync=sync)
    halves = [part for s in plan.stages for part in (s[: len(s) // 2], s[len(s) // 2 :])]
    recompute = {
        "none": (), "stages": plan.stages, "first": plan.stages[:1], "halves": tuple(halves),
    }[blocks]  # fmt: skip
    net().verify(replace(plan, recompute=recompute))
    net().verify(replace(plan, recompute=recompute, split_backward=True))


# -- written schedules ---------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedules_text_gives_the_same_program(schedule: str) -> None:
    piped = tiny("gpt-tiny", 2)
    plan = pipeline(piped, 2, 3, schedule, chunks=2 if schedule == "interleaved" else 1)
    text = replace(plan, schedule=schedule_to_text(schedule_of(plan)))
    assert lower(piped.graph, text).instructions == lower(piped.graph, plan).instructions


WRITTEN = {
    "backwards as they come": "F0 F1 F2 B1 B0 B2\nF0 F1 B1 F2 B0 B2",
    "forwards in another order": "F2 F0 F1 B0 B2 B1\nF2 F0 B0 B2 F1 B1",
    "the last stage is alone at first": "F0 F1 F2 B2 B1 B0\nF0 F1 F2 B2 B1 B0\nF1.0 after F0.1",
    "split, weights at the end": "F0 F1 F2 B0 B1 B2 W0 W1 W2\nF0 B0 F1 B1 F2 B2 W2 W0 W1",
    "split, weights in time": "F0 F1 B0 W0 F2 B1 W1 B2 W2\nF0 B0 F1 B1 W0 F2 B2 W1 W2",
    "with dots": "F0 F1 F2 .. .. B2 B1 B0\n.. F0 F1 F2 B2 B1 B0 ..",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_hand_written_schedules(name: str) -> None:
    text = WRITTEN[name]
    for widths, splits in (HYBRIDS["height, then data"], ([1, 1], [{}, {}])):
        net().verify(hybrid(widths, splits, 3, text, batch=8, split_backward="W" in text))


REPLICATED = """
F0.0 F2.0 B0.0 F4.0 B2.0 B4.0
F1.0 F3.0 B1.0 B3.0
F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.1 B4.1
"""


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("batch", [0, 12])
def test_a_replicated_stage_takes_turns(width: int, batch: int) -> None:
    """As in PipeDream: micro-batches alternate between workers 0 and 1 in stage 0; worker 2 has stage 1."""
    piped = net()
    stages = cut_evenly(piped.graph, 2)
    workers = tuple(tuple(range(w * width, (w + 1) * width)) for w in range(3))
    tiles = stage_tiles(piped.graph, stages, [workers[0], workers[2]], [DATA, FILTERS])
    for recompute in ((), stages[:1]):
        plan = make_pipeline_plan(
            piped, tiles, 3 * width, 5, stages, REPLICATED,
            workers=workers, batch=batch, recompute=recompute,
        )  # fmt: skip
        program = piped.verify(plan)
        assert set(program.regions["conv1.weight"][0].devices) == {*workers[0], *workers[1]}


def test_a_worker_may_have_devices_that_a_stage_leaves_idle() -> None:
    piped = net()
    stages = cut_evenly(piped.graph, 2)
    tiles = stage_tiles(piped.graph, stages, [[0], [2, 3]], [{}, DATA])
    for schedule in ("1f1b", "gems"):
        plan = make_pipeline_plan(piped, tiles, 4, 3, stages, schedule, workers=((0, 1), (2, 3)))
        piped.verify(plan)


def test_partial_results_are_summed_by_the_stages_own_worker() -> None:
    """Replicas map devices of a worker one to one, so a sum on another worker's device is refused."""
    piped = net()
    plan = hybrid([2, 2], [{"k": 2}, DATA], 2, "gems")
    op = piped.graph.op("conv2")
    elsewhere = Grid(tuple((0, d.size) for d in op.space.dims), (2,))
    with pytest.raises(InputError, match="conv2"):
        lower(piped.graph, replace(plan, sums={"conv2": elsewhere}))


# -- a module that reads what it keeps -----------------------------------------------------------------


class Keeps(nn.Module):
    """Adds the mean of its previous output: micro-batches depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc2(torch.tanh(self.fc1(x) + self.mean))
        self.mean.mul_(0.9).add_(y.detach().mean())
        return y


@cache
def keeps() -> PipelineTask:
    torch.manual_seed(6)
    return PipelineTask(
        Keeps().double(), [torch.randn(2, 4).double()], loss=lambda y: y.square().mean()
    )


@pytest.mark.parametrize(
    "schedule",
    SCHEDULES,
)
def test_what_a_later_micro_batch_reads_is_refused_or_there(schedule: str) -> None:
    piped = keeps()
    plan = pipeline(piped, 2, 3, schedule, chunks=2 if schedule == "interleaved" else 1)
    try:
        lower(piped.graph, plan)
    except InputError:
        return
    piped.verify(plan)


class Twice(nn.Module):
    """One batch norm used in two stages: both update its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fc2(torch.tanh(self.norm(self.fc1(x)))))


@pytest.mark.parametrize(
    ("schedule", "microbatches"),
    [("sequential", 3), ("1f1b", 1), ("1f1b", 3)],
)
def test_a_batch_norm_in_two_stages_is_refused_or_keeps_all_statistics(
    schedule: str, microbatches: int
) -> None:
    torch.manual_seed(6)
    x = torch.randn(3, 4).double()
    piped = PipelineTask(Twice().double(), [x], loss=lambda y: (y * y[:, :1]).mean())
    names = [op.name for op in piped.graph.ops]
    middle = names.index("fc2")
    plan = pipeline(
        piped, 2, microbatches, schedule, stages=(tuple(names[:middle]), tuple(names[middle:]))
    )
    try:
        lower(piped.graph, plan)
    except InputError:
        return
    piped.verify(plan)


# -- trainers ------------------------------------------------------------------------------------------


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def batches(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(8)
    return [
        (
            torch.randn(n, 2, 8, 8, generator=generator, dtype=torch.float64),
            torch.randint(4, (n,), generator=generator),
        )
        for n in sizes
    ]


def train_plain(
    plan: Plan, batch_list: Sequence[tuple[Tensor, Tensor]]
) -> tuple[list[float], nn.Module]:
    """Losses and module after plain training on batches, cut into at most the plan's micro-batches."""
    model = copy.deepcopy(net().model)
    optimizer = sgd(model.parameters())
    losses = []
    for x, y in batch_list:
        count = min(plan.microbatches, len(x))
        micros = list(zip(x.tensor_split(count), y.tensor_split(count), strict=True))
        batch_plan = replace(plan, microbatches=count)  # a small batch has fewer micro-batches
        buffers = net()._buffers(model, micros, updates_of(batch_plan, net().graph))
        optimizer.zero_grad()
        parts = [F.cross_entropy(model(a), b) * len(a) / len(x) for a, b in micros]
        sum(parts).backward()
        optimizer.step()
        losses.append(sum(p.item() for p in parts))
        for name, buffer in buffers.items():
            model.get_buffer(name).copy_(buffer)
    return losses, model


def assert_equal(state: Mapping[str, Tensor], model: nn.Module) -> None:
    plain = model.state_dict()
    assert state.keys() == plain.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-9, atol=1e-9, msg=name)


TRAINED = {  # plans for batches of 6 (5) samples
    "1f1b, fewer micro-batches than stages": lambda: pipeline(net(), 3, 2, "1f1b", batch=6),
    "1f1b, uneven": lambda: pipeline(net(), 3, 2, "1f1b", batch=5),
    "one micro-batch": lambda: pipeline(net(), 3, 1, "1f1b", batch=3),
    "interleaved": lambda: pipeline(net(), 2, 2, "interleaved", chunks=2, batch=6),
    "zb-h1": lambda: pipeline(net(), 2, 2, "zb-h1", batch=6),
    "chimera": lambda: pipeline(net(), 2, 2, "chimera", batch=6),
    "gems": lambda: pipeline(net(), 3, 2, "gems", batch=6),
    "hybrid": lambda: hybrid([2, 1], [DATA, {}], 2, "1f1b", batch=6),
    "hybrid, replicas": lambda: hybrid([2, 2], [HEIGHT, FILTERS], 2, "chimera", batch=6),
}


SMALL = {  # smaller batches that leave no device without samples
    "chimera": [4, 2], "gems": [4, 2], "hybrid": [3], "hybrid, replicas": [4, 2],
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_batch_that_leaves_devices_without_samples_is_refused(name: str) -> None:
    plan = replace(TRAINED[name](), steps=1)

    def work(trainer: Trainer) -> None:
        trainer.step(batches(1)[0])

    with pytest.raises(InputError, match="with 1 samples some devices have none"):
        on_threads(
            plan.devices,
            work,
            net().model,
            sgd,
            plan=plan,
            loss=supervised(F.cross_entropy),
            graph=net().graph,
        )


@pytest.mark.parametrize("name", TRAINED)
def test_a_trainer_takes_any_batch_and_evaluates(name: str) -> None:
    plan = replace(TRAINED[name](), steps=1, inputs=describe_inputs(net().graph))
    full = plan.batch
    small = SMALL.get(name, [3, 2, 1])
    batch_list = batches(full, full - 1, full, full + 2, *small, full)
    x, y = batches(full + 1)[0]

    def work(trainer: Trainer) -> Any:
        losses = [float(trainer.step(batch)) for batch in batch_list[:2]]
        between = [float(trainer.evaluate((x[:n], y[:n]))) for n in (full, 1, full + 1)]
        losses += [float(trainer.step(batch)) for batch in batch_list[2:]]
        loss, output = trainer.evaluate((x, y)).loss, trainer.predict((x, y))
        return losses, between, float(loss), output, trainer.state_dict()

    wanted, model = train_plain(plan, batch_list)
    _, early = train_plain(plan, batch_list[:2])
    for losses, between, loss, output, state in on_threads(
        plan.devices,
        work,
        net().model,
        sgd,
        plan=plan,
        loss=supervised(F.cross_entropy),
        graph=net().graph,
    ):
        assert losses == pytest.approx(wanted, rel=1e-9)
        assert_equal(state, model)
        outputs = model.eval()(x)
        torch.testing.assert_close(output, outputs.detach(), rtol=1e-9, atol=1e-9)
        assert loss == pytest.approx(F.cross_entropy(outputs, y).item(), rel=1e-9)
        for n, evaluated in zip((full, 1, full + 1), between, strict=True):
            expected = F.cross_entropy(early.eval()(x[:n]), y[:n]).item()
            assert evaluated == pytest.approx(expected, rel=1e-9)


def data() -> Plan:
    """A plan without stages: samples 0 and 1 on one rank, sample 2 on the other."""
    names = [op.name for op in net().graph.ops]
    return Plan(stage_tiles(net().graph, [names], [[0, 1]], [DATA]), 2, batch=3)


PARTS_ALONE = pytest.mark.xfail(
    raises=AssertionError,
    reason="every rank takes the batch for its part: none sees that it is not",
)


@pytest.mark.parametrize(
    ("name", "samples"),
    [pytest.param("chimera", 3, marks=PARTS_ALONE), ("gems", 3), ("data", 2)],
)
def test_a_batch_as_large_as_a_ranks_part_is_refused_or_trained_on(name: str, samples: int) -> None:
    plan = replace(TRAINED[name]() if name in TRAINED else data(), steps=1)
    batch_list = batches(samples)

    def work(trainer: Trainer) -> tuple[float, dict[str, Tensor]]:
        return float(trainer.step(batch_list[0])), trainer.state_dict()

    try:
        results = on_threads(
            plan.devices,
            work,
            net().model,
            sgd,
            plan=plan,
            loss=supervised(F.cross_entropy),
            graph=net().graph,
        )
    except InputError:  # "is as large as rank 0's part of a planned one"
        return
    (wanted,), model = train_plain(plan, batch_list)
    for loss, state in results:
        assert loss == pytest.approx(wanted, rel=1e-9)
        assert_equal(state, model)


@pytest.mark.parametrize("name", ["chimera", "hybrid", "1f1b, uneven"])
def test_a_trainer_goes_on_from_a_state(name: str) -> None:
    """If replicas have separate running statistics, all start from the saved ones."""
    plan = replace(TRAINED[name](), steps=1, inputs=describe_inputs(net().graph))
    batch_list = batches(plan.batch, plan.batch, plan.batch)

    def first(trainer: Trainer) -> Any:
        for batch in batch_list[:2]:
            trainer.step(batch)
        return trainer.state_dict(), trainer.optimizer_state_dict()

    args = (net().model, sgd)
    state, optimizer_state = on_threads(plan.devices, first, *args, plan=plan, graph=net().graph)[0]

    def then(trainer: Trainer) -> Any:
        trainer.load_state_dict(state)
        trainer.load_optimizer_state_dict(optimizer_state)
        trainer.step(batch_list[2])
        return trainer.state_dict()

    _, model = train_plain(plan, batch_list)
    for resumed_state in on_threads(plan.devices, then, *args, plan=plan, graph=net().graph):
        assert_equal(resumed_state, model)


def test_a_plan_in_microbatches_takes_the_graph_of_the_whole_batch() -> None:
    """The search captured the graph at the size of the whole batch."""
    plan = replace(TRAINED["1f1b, uneven"](), steps=1, fingerprint=net().graph.fingerprint())
    assert plan.microbatches > 1
    batch_list = batches(plan.batch)
    losses = on_threads(
        plan.devices,
        lambda trainer: float(trainer.step(batch_list[0])),
        net().model,
        sgd,
        plan=plan,
        loss=supervised(F.cross_entropy),
        graph=net().graph.for_batch(plan.batch),
    )
    (wanted,), _ = train_plain(plan, batch_list)
    assert losses == pytest.approx([wanted] * plan.devices, rel=1e-9)
