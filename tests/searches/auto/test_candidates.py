"""Candidates of `auto`: simulated, timed by the evaluator, and recomputed if nothing fits memory."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import small

from raddle.clusters import Cluster, cluster
from raddle.errors import InputError
from raddle.searches.attempts import Attempts
from raddle.searches.auto.candidates import Candidate, CandidateSimulator, CandidateTimer
from raddle.searches.auto.recompute_to_fit import recompute_to_fit
from raddle.searches.baselines import BASELINES
from raddle.searches.predict import predicted_metrics, simulate_steps
from raddle.searches.settings import Settings
from raddle.simulation.fast.evaluator import Evaluator


def simulator_on(on: Cluster) -> CandidateSimulator:
    return CandidateSimulator(small("mlp-tiny")[1], on, Settings(), Attempts())


def data(simulator: CandidateSimulator) -> dict[str, Any]:
    return BASELINES["data"](simulator.graph, simulator.cluster)


def cards(memory: int) -> Cluster:
    plain = cluster("p100:1x2").to_dict()
    plain["devices"] = {
        kind: {**device, "memory": memory} for kind, device in plain["devices"].items()
    }
    return Cluster.from_dict(plain)


def test_a_simulated_candidate_knows_what_its_plan_takes() -> None:
    simulator = simulator_on(cluster("p100:1x2"))
    candidate = simulator.simulate_single_step("data", data(simulator))
    assert simulator.simulate(candidate)
    row = predicted_metrics(
        simulate_steps(simulator.graph, simulator.plan(candidate.tiles), simulator.cluster)
    )
    assert candidate.row()["step_ms"] == row["step_ms"] == 1e3 * candidate.simulated_seconds
    assert (candidate.row()["peak_bytes"], candidate.fits) == (row["peak_bytes"], row["fits"])


def test_a_candidate_that_fails_is_not_simulated_again() -> None:
    simulator = simulator_on(cluster("p100:1x2"))
    candidate = Candidate("nothing", {}, 1)
    assert not simulator.simulate(candidate)
    assert not simulator.simulate(candidate)
    assert [failure.name for failure in simulator.attempts.failures] == ["nothing"]
    with pytest.raises(AssertionError, match="has not been simulated"):
        candidate.simulated_seconds  # noqa: B018


def test_the_timer_has_one_evaluator_until_it_discards_it() -> None:
    simulator = simulator_on(cluster("p100:1x2"))
    timer = CandidateTimer(simulator)
    candidate = timer.time_candidate("data", data(simulator))
    assert candidate.time == simulator.simulate_single_step("data", data(simulator)).time
    first = timer.evaluator_at(data(simulator))
    assert timer.evaluator_at(data(simulator)) is first
    timer.discard_evaluator()
    assert timer.evaluator_at(data(simulator)) is not first


@pytest.mark.parametrize(("error", "same"), [(InputError, True), (ZeroDivisionError, False)])
def test_a_timer_goes_on_after_a_refusal_and_begins_anew_after_a_mistake(
    error: type[Exception], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Evaluator, tiles: object) -> None:
        raise error("it cannot be")

    simulator = simulator_on(cluster("p100:1x2"))
    timer = CandidateTimer(simulator)
    first = timer.evaluator_at(data(simulator))
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "move", fails)
        with pytest.raises(error):
            timer.evaluator_at(data(simulator))
    assert (timer.evaluator_at(data(simulator)) is first) is same


def test_where_nothing_fits_the_smallest_is_named() -> None:
    simulator = simulator_on(cards(1000))
    with pytest.raises(InputError, match=r"^no plan that was found for 'MLP'.*the smallest \(data"):
        recompute_to_fit(
            simulator, [simulator.simulate_single_step("data", data(simulator))], groups=4
        )


def test_where_nothing_could_be_simulated_the_first_reason_is_given() -> None:
    simulator = simulator_on(cards(1000))
    with pytest.raises(InputError, match=r"^auto found no plan for .*: nothing: "):
        recompute_to_fit(simulator, [Candidate("nothing", {}, 1)], groups=4)
