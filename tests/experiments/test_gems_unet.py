"""`raddle reproduce gems-unet`: the methods' plans, the largest size that fits, and the data, recounted."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.experiment import load
from experiments.gems_unet import loss, nets, scaling, segmentation, simulated
from experiments.gems_unet.formatting import gems_sentence
from experiments.gems_unet.largest import largest_fitting
from experiments.gems_unet.machine import cores, seconds_with_shared_cores
from experiments.gems_unet.methods import (
    METHODS,
    PlannedMethod,
    PredictedStep,
    make_plans,
    parallel_pipelines,
    predict,
)
from experiments.gems_unet.training import LossCurve
from raddle.api.loading import capture_model
from raddle.clusters import cluster
from raddle.graph.graph import Graph
from raddle.plans.schedule import bubble, draw_schedule, peak_alive, schedule_from_text
from raddle.zoo import load as load_model

BATCH = 4


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_model(nets.spec("unet", 256, width_divisor=16), 1)


@pytest.fixture(scope="module")
def made(graph: Graph) -> dict[str, PlannedMethod]:
    return make_plans(METHODS, graph, cluster("v100:4"), batch=BATCH)


@pytest.fixture(scope="module")
def predicted(made: dict[str, PlannedMethod]) -> dict[str, PredictedStep]:
    on = cluster("v100:4")
    return {name: predict(planned, on) for name, planned in made.items() if "data" not in name}


# -- networks ------------------------------------------------------------------------------------------


def test_a_net_is_loaded_by_its_path_at_any_side_and_width() -> None:
    work = load_model(nets.spec("resnet110", 48, width_divisor=4), batch=3)
    assert work.batch[0].shape == (3, 3, 48, 48)
    assert next(work.model.parameters()).shape[0] == 16 // 4
    mask = load_model(nets.spec("unet", 64, width_divisor=16), batch=2).batch[1]
    assert mask.shape == (2, 64, 64)
    with pytest.raises(AttributeError, match="net_divisor_side"):
        nets.__getattr__("vgg_1_64")


# -- plans ---------------------------------------------------------------------------------------------


def test_pipelines_side_by_side_are_the_one_alone_with_other_micro_batches() -> None:
    assert parallel_pipelines("gems", 2, 4, 2).splitlines() == [
        "F0.0 B0.0 F1.1 B1.1",
        "F0.1 B0.1 F1.0 B1.0",
        "F2.0 B2.0 F3.1 B3.1",
        "F2.1 B2.1 F3.0 B3.0",
    ]
    both = schedule_from_text(parallel_pipelines("1f1b", 2, 4, 2))
    assert draw_schedule(both)[:2] == [
        "F0.0 F1.0 .... B0.0 .... B1.0",
        ".... F0.1 B0.1 F1.1 B1.1 ....",
    ]
    assert [
        row.replace("2.", "0.").replace("3.", "1.") for row in draw_schedule(both)[2:]
    ] == draw_schedule(both)[:2]
    assert bubble(both) == bubble(schedule_from_text("F0 F1 B0 B1\nF0 B0 F1 B1"))


def test_every_device_trains_and_every_method_takes_the_whole_batch(
    made: dict[str, PlannedMethod],
) -> None:
    for name, planned in made.items():
        assert planned.plan.batch == BATCH == planned.graph.batch * planned.plan.microbatches, name
        workers = {d for worker in planned.plan.workers for d in worker}
        used = {d for tiling in planned.plan.tiles.values() for d in tiling.devices} | workers
        assert used == ({0} if name == "one device" else {0, 1, 2, 3}), name


def test_stages_are_the_same_whatever_the_schedule(made: dict[str, PlannedMethod]) -> None:
    chosen = [made[n].plan for n in ("model parallel", "GPipe", "1F1B", "GEMS MASTER")]
    assert len({plan.stages for plan in chosen}) == 1
    assert len(chosen[0].stages) == 4


def test_all_methods_compute_the_same_work(predicted: dict[str, PredictedStep]) -> None:
    base = predicted["one device"].compute_seconds
    for name in ("model parallel", "GPipe", "1F1B"):
        assert predicted[name].compute_seconds == pytest.approx(base, rel=0.02), name


def test_memory_is_ordered_as_the_micro_batches_that_are_alive(
    predicted: dict[str, PredictedStep],
) -> None:
    peaks = {name: max(prediction.peaks) for name, prediction in predicted.items()}
    assert peaks["GEMS MASTER"] < peaks["GEMS MAST"] < peaks["GPipe"]
    assert peaks["1F1B"] <= peaks["GPipe"]
    assert peaks["model parallel"] <= peaks["GEMS MASTER"]  # one replica less
    assert peaks["spatial by image"] < peaks["spatial"]


def test_gems_gains_no_more_than_its_bubble_lets_it(predicted: dict[str, PredictedStep]) -> None:
    gain = predicted["model parallel"].seconds / predicted["GEMS MASTER"].seconds
    assert 1.0 < gain < 1.5
    schedule = schedule_from_text("F0.0 B0.0 F1.1 B1.1\nF0.1 B0.1 F1.0 B1.0")
    assert peak_alive(schedule) == [1, 1]
    assert bubble(schedule, 1, 2) < Fraction(1, 2)  # of two stages one after the other


# -- the largest that fits --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    fixed=st.integers(0, 500), slope=st.integers(1, 50), room=st.integers(0, 100_000),
    unit=st.sampled_from([1, 2, 4, 64]), power=st.sampled_from([1, 2]), bend=st.integers(0, 3),
)  # fmt: skip
def test_the_largest_fits_and_the_next_does_not(
    fixed: int, slope: int, room: int, unit: int, power: int, bend: int
) -> None:
    sizes = []

    def peak(size: int) -> int:
        sizes.append(size)
        n = size // unit
        return fixed + slope * n**power + bend * n

    most = 100 * unit
    size, at = largest_fitting(peak, room, unit=unit, power=power, max_size=most)
    every = [n for n in range(1, 101) if fixed + slope * n**power + bend * n <= room]
    assert size == unit * max(every, default=0)
    assert at == (peak(size) if size else 0)
    assert all(a % unit == 0 and 0 < a <= most for a in sizes)


def test_linear_growth_needs_few_evaluations() -> None:
    looks = []

    def peak(side: int) -> int:
        looks.append(side)
        return 10_000 + 3 * side**2

    assert largest_fitting(peak, 10_000 + 3 * 2304**2, unit=64, power=2, max_size=16384)[0] == 2304
    assert len(looks) <= 6


# -- what is said of it -----------------------------------------------------------------------------------


def test_ranks_that_share_cores_take_what_all_compute_over_them() -> None:
    assert seconds_with_shared_cores(PredictedStep(1.0, 10.0 * cores(), ())) == 10.0
    assert seconds_with_shared_cores(PredictedStep(3.0, 1.0, ())) == 3.0


def test_a_sentence_has_the_ratios_of_the_figures() -> None:
    rates = {"GEMS MASTER": 2.0, "1F1B": 4.0}
    sentence = gems_sentence("here", [(rates, {"GEMS MASTER": 3.0, "1F1B": 6.0})])
    assert "0.50 x the images a second of 1F1B at 0.50 x its peak memory" in sentence
    assert "The fastest is 1F1B, 2.00 x GEMS MASTER." in sentence


def test_what_does_not_fit_has_no_rate_among_those_that_do() -> None:
    both = {"a": PredictedStep(1.0, 1.0, (5, 9)), "b": PredictedStep(2.0, 1.0, (5, 5))}
    case = simulated.SimulatedCase("unet", 64, "v100:4", 8, both, {})
    assert case.fitting() == {"b": BATCH / 2.0}


def test_efficiency_is_of_the_first() -> None:
    first = scaling.ScalingPoint(4, 2.0)
    assert scaling.efficiency(scaling.ScalingPoint(16, 6.0), first) == pytest.approx(75.0)
    assert scaling.section([first, scaling.ScalingPoint(16, 6.0)]).text.count("75.00 %") == 1


def test_a_curve_reaches_its_target_at_the_end_of_a_block() -> None:
    curve = LossCurve([1.0, 2.0, 3.0], [0.5, 0.2, 0.3])
    assert curve.reaches(0.2) == 2.0
    assert curve.reaches(0.1) is None
    section = loss.section({"one device": curve}, 64, 3, 1)
    assert ("Not reached" in section.text) == (loss.TARGET < 0.2)


# -- the task ---------------------------------------------------------------------------------------------


def test_masks_are_ink_and_the_same_seed_draws_the_same() -> None:
    images, masks = segmentation.batch(3, 64, seed=1)
    again = segmentation.batch(3, 64, seed=1)
    assert torch.equal(images, again[0])
    assert torch.equal(masks, again[1])
    assert not torch.equal(images, segmentation.batch(3, 64, seed=2)[0])
    assert images.shape == (3, 3, 64, 64)
    assert set(masks.unique().tolist()) == {0, 1}
    lit, dark = images.mean(1)[masks == 1].mean(), images.mean(1)[masks == 0].mean()
    assert lit > dark + 0.3


def test_a_mask_has_no_more_pixels_than_its_digits_have_ink() -> None:
    rng = np.random.default_rng(0)
    most = max(int((digit >= segmentation.INK).sum()) for digit in segmentation.digits())
    for _ in range(20):
        _, mask = segmentation.canvas(rng, 64)
        assert 0 < mask.sum() <= segmentation.DIGITS * most * 2**2


def test_the_experiment_is_loaded_by_its_name() -> None:
    assert [part.name for part in load("gems-unet").parts] == [
        "real", "simulated", "capacity", "loss", "scaling"
    ]  # fmt: skip
