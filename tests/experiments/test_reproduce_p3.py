"""P3's experiment: its networks, the counters of a link, and what is computed from runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import links, nets, sync_timing
from experiments.counters import rates_by_slot, read_samples
from experiments.experiment import RunOptions, load
from experiments.p3 import bandwidth, utilisation
from experiments.p3.bandwidth import DDP_LABEL, NETS, P3, SLICED, VARIANTS, WHOLE, Point
from experiments.sync_timing import DDP, JobTimes, LabMeasurement, SyncVariant, TimingJob
from raddle import zoo
from raddle.errors import InputError

# -- the networks ------------------------------------------------------------------------------------


def test_vgg_has_most_of_its_parameters_in_one_tensor_and_resnet_has_not() -> None:
    share = {name: max(sizes) / sum(sizes) for name in ("vgg19", "resnet50", "inception")
             for sizes in [nets.parameter_sizes(nets.build_on_meta(name))]}  # fmt: skip
    assert share["vgg19"] == pytest.approx(
        0.715, abs=0.02
    )  # of the original, one tensor has 71.5 %
    assert share["resnet50"] < 0.1
    assert share["inception"] < 0.1


def test_tensors_are_as_many_as_the_networks_say() -> None:
    assert len(nets.parameter_sizes(nets.build_on_meta("resnet50"))) == 161
    assert len(nets.parameter_sizes(nets.build_on_meta("inception"))) == 292


def test_the_lstm_needs_its_largest_tensor_first() -> None:
    sizes = nets.parameter_sizes(nets.build_on_meta("lstm"))
    assert sizes[0] == max(sizes)


@pytest.mark.parametrize("name", ["lstm", "small"])
def test_a_network_is_loaded_by_its_file_and_trains(name: str) -> None:
    work = zoo.load(nets.spec(name), batch=3, device="cpu")
    loss = work.loss(work.model, work.batch)
    loss.backward()
    assert all(len(t) == 3 for t in work.batch)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in work.model.parameters())


# -- the counters ------------------------------------------------------------------------------------


def test_the_last_line_of_samples_may_be_cut(tmp_path) -> None:
    (tmp_path / "samples").write_text("1.0 10 20\n1.5 30 40\n2.0 5")
    assert read_samples(tmp_path / "samples") == [(1.0, 10, 20), (1.5, 30, 40)]


def test_a_steady_sender_is_steady_in_every_slot() -> None:
    samples = [(0.1 * k, 1000 * k, 0) for k in range(101)]  # 10,000 bytes/s, nothing back
    slots = rates_by_slot(samples, 2.0, 3.0, 0.25)
    assert [t for t, _, _ in slots] == pytest.approx([0.125, 0.375, 0.625, 0.875])
    assert [out for _, out, _ in slots] == pytest.approx([10_000] * 4)
    assert all(back == 0 for _, _, back in slots)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=41, max_size=41),
    st.integers(1, 20),
)
def test_slots_have_all_bytes_of_their_window(steps: list[tuple[int, int]], slots: int) -> None:
    sent = received = 0
    samples = []
    for k, (out, back) in enumerate(steps):
        sent, received = sent + out, received + back
        samples.append((float(k), sent, received))
    rates = rates_by_slot(samples, 0.0, 40.0, 40.0 / slots)
    assert sum(out for _, out, _ in rates) * 40.0 / slots == pytest.approx(sent - steps[0][0])
    assert sum(back for _, _, back in rates) * 40.0 / slots == pytest.approx(received - steps[0][1])


def use_of(*slots: tuple[float, float]) -> utilisation.LinkUse:
    return utilisation.LinkUse("p3", [(0.02 * k, *slot) for k, slot in enumerate(slots)])


def test_shares_of_a_link() -> None:
    use = use_of((1.0, 1.0), (0.5, 0.0), (0.0, 0.04), (0.5, 0.6))
    assert (use.sent, use.received) == (pytest.approx(0.5), pytest.approx(0.41))
    assert use.idle == 0.25  # the third alone: a twentieth of the rate is not reached either way
    assert use.both_busy == 0.5  # the first and the last


def test_the_last_window_of_a_kind_counts() -> None:
    # Bytes leave at 100 a second in [0, 10), and none later: of two windows the last is the silent one.
    samples = [(float(k), 100 * min(k, 10), 0) for k in range(21)]
    job = TimingJob("vgg19", 2, {"ps": SyncVariant("plan", "ps"), "p3": SyncVariant("plan", "p3")})
    windows = [("ps", 0.0, 4.0), ("p3", 4.0, 8.0), ("ps", 12.0, 16.0)]
    measurement = LabMeasurement(2, "1gbit", {}, [job], [JobTimes({}, windows)], samples)
    sent = {use.label: use.sent for use in utilisation.link_uses(measurement, 200.0)}
    assert sent == {"ps": pytest.approx(0.0), "p3": pytest.approx(0.5)}


def test_charts_have_each_direction_in_gbit() -> None:
    sent, received = utilisation.charts([use_of((1.0, 0.5), (0.25, 0.0))])
    assert sent.lines[0].points == [(0.0, 1.0), (20.0, 0.25)]
    assert received.lines[0].points == [(0.0, 0.5), (20.0, 0.0)]


# -- what follows from runs --------------------------------------------------------------------------


def point(mbit: float, p3: float, *, ps: float = 10.0, ddp: float = 20.0) -> Point:
    rates = dict.fromkeys(VARIANTS, 15.0) | {P3: p3, WHOLE: ps, DDP_LABEL: ddp}
    return Point(1e6 * mbit, rates, rates)


def test_the_best_gain_and_where_it_is() -> None:
    curve = [point(100, 12), point(500, 18), point(1000, 14)]
    assert bandwidth.largest_gain(curve, P3, WHOLE) == (1.8, 5e8)
    assert bandwidth.largest_gain(curve, P3, DDP_LABEL) == (0.9, 5e8)
    assert bandwidth.largest_gain(curve, SLICED, WHOLE)[0] == 1.5


def test_the_summary_names_points_slower_than_ddp() -> None:
    curves = {net.name: [point(100, 30), point(1000, 19)] for net in NETS}
    text = bandwidth.summary(curves)
    assert f"slower than DDP at {len(NETS)} of {2 * len(NETS)} points" in text
    assert "3.00 x servers of whole parameters, at 100 Mbit/s" in text
    assert "VGG-19 in the paper: 1.66" in text


def test_the_summary_names_a_prediction_off_by_a_third() -> None:
    rates = dict.fromkeys(VARIANTS, 15.0)
    curves = {net.name: [Point(1e9, rates, rates | {P3: 20.0})] for net in NETS}
    text = bandwidth.summary(curves)
    assert f"{4 * len(NETS)} are within 15 %" in text
    assert "worst is off by 33%" in text


def test_points_are_samples_a_second(monkeypatch) -> None:
    job = TimingJob("vgg19", 20, {"p3": SyncVariant("plan", "p3")})
    measurement = LabMeasurement(2, "500mbit", {}, [job], [JobTimes({"p3": [0.5, 4.0, 0.4]})])
    monkeypatch.setattr(bandwidth, "predict", lambda measurement: [{"p3": 0.25}])
    assert bandwidth.points(measurement) == [Point(5e8, {"p3": 40.0}, {"p3": 80.0})]


def test_without_a_lab_a_part_is_skipped(monkeypatch) -> None:
    def none(**options):
        raise InputError("a lab needs root.")

    monkeypatch.setattr(links.Lab, "up", none)
    for part in load("p3").parts:
        section = part.make(RunOptions(quick=True))
        assert section.skipped == "a lab needs root."
        assert not section.parts


# -- predictions -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def predicted() -> dict[float, dict[str, float]]:
    """By bandwidth, for two hosts; all operators by the roofline of links.DEVICE."""
    kinds = {"ddp": DDP, "apart": SyncVariant("plan", bucket=0), "ps:one": SyncVariant("plan", "ps:one"),
             "wrapped": SyncVariant("wrapped", bucket=25 * 2**20),
             "p3": SyncVariant("plan", "p3")}  # fmt: skip
    job = TimingJob("lstm", 4, kinds)
    return {
        bandwidth: sync_timing.predict(
            LabMeasurement(
                2,
                "",
                {"bandwidth": bandwidth, "latency": 1e-4, "sum": 1e-4, "host_overhead": {}},
                [job],
                [JobTimes({})],
            )
        )[0]
        for bandwidth in (1e7, 1e12)
    }


def test_a_slow_link_is_predicted_by_its_bytes(predicted) -> None:
    weights = 4 * sum(nets.parameter_sizes(nets.build_on_meta("lstm")))
    slow = predicted[1e7]
    assert slow["ddp"] == pytest.approx(
        weights / 1e7, rel=0.1
    )  # of two, each sends all of them once
    assert slow["ps:one"] > 0.95 * slow["ddp"]
    assert slow["p3"] < 1.05 * slow["ddp"]


def test_ddp_and_what_is_wrapped_are_predicted_alike(predicted) -> None:
    for seconds in predicted.values():
        assert seconds["ddp"] == seconds["wrapped"]


def test_links_matter(predicted) -> None:
    for label in predicted[1e7]:
        assert predicted[1e12][label] < predicted[1e7][label] / 5


def test_all_reduces_have_a_separate_latency() -> None:
    kinds = {"apart": SyncVariant("plan", bucket=0), "ps": SyncVariant("plan", "ps")}
    job = TimingJob("lstm", 4, kinds)
    fast, late = (
        sync_timing.predict(
            LabMeasurement(
                2,
                "",
                {"bandwidth": 1e12, "latency": 1e-5, "sum": s, "host_overhead": {}},
                [job],
                [JobTimes({})],
            )
        )[0]
        for s in (1e-5, 1.0)
    )
    assert fast["ps"] == late["ps"]
    # 11 tensors, each summed in two messages; the first sums hide behind what is left of the backward.
    assert late["apart"] - fast["apart"] == pytest.approx(22, rel=0.1)


def test_a_tensor_by_itself_is_not_in_a_bucket() -> None:
    graph = sync_timing._graph("lstm", 4)
    counts = {}
    for bucket in (0, 2**40):
        program = sync_timing._program("lstm", 4, SyncVariant("plan", bucket=bucket), 2)
        from raddle.program.program import Reduce

        reduces = [i for i in program.instructions if isinstance(i, Reduce) and i.key.step == 0]
        counts[bucket] = len({i.parameters for i in reduces})
    assert counts[0] == len(graph.parameters)
    assert counts[2**40] == 1


def test_jobs_come_back_from_json() -> None:
    import json
    from dataclasses import asdict

    job = TimingJob("lstm", 4, {"p3": SyncVariant("plan", "p3"), "ddp": DDP})
    assert sync_timing.job_from_dict(json.loads(json.dumps(asdict(job)))) == job


# -- for real ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_in_a_lab() -> None:
    kinds = {"ddp": DDP, "p3": SyncVariant("plan", "p3"), "wrapped": SyncVariant("wrapped", "p3")}
    try:
        measurement = sync_timing.measure_in_lab(
            [TimingJob("small", 4, kinds)],
            ranks=2,
            rate="1gbit",
            rounds=1,
            steps=2,
            with_counters=True,
        )
    except links.LabUnavailable as reason:
        pytest.skip(str(reason))
    assert 50e6 < measurement.link["bandwidth"] < 130e6
    assert set(measurement.results[0].seconds) == set(kinds)
    sent = [s for _, s, _ in measurement.samples]
    weights = 4 * sum(nets.parameter_sizes(nets.build_on_meta("small")))
    assert sent[-1] - sent[0] > 3 * weights  # a step of each kind at least
    assert torch.tensor(list(sync_timing.predict(measurement)[0].values())).gt(0).all()
