"""Unit tests of the parts of a wrapped optimizer: no other ranks, no process group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raddle.errors import InputError
from raddle.sync.mechanism import GradientCounter
from raddle.sync.sync_settings import SyncSettings, find_barrier_reason, read_settings
from raddle.sync.trained_parameters import TrainedParameters


def settings(text: str, size: int = 2, passes: int = 1) -> SyncSettings:
    return read_settings(text, size, backward_passes=passes, bucket=1, debug=False, stall=1.0)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_trained_parameters_have_the_models_names() -> None:
    model, stranger = nn.Linear(2, 3), nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [stranger]}], lr=0.1)
    trained = TrainedParameters(optimizer, model)
    assert trained.names == ["weight", "bias", "parameter 0 of group 1"]
    assert trained.index_by_id[id(stranger)] == 2
    assert trained.device == torch.device("cpu")


def test_what_was_frozen_may_not_get_a_gradient() -> None:
    model = nn.Linear(2, 3)
    model.bias.requires_grad_(False)
    trained = TrainedParameters(sgd(model), model)
    trained.check_frozen()
    model.bias.requires_grad_(True)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="wrap after it is unfrozen"):
        trained.check_frozen()


def test_settings_are_checked_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings("ps:1").sync.server == 1
    with pytest.raises(InputError, match="names rank 2 and there are 2"):
        settings("ps:2")
    with pytest.raises(ValueError, match="a step needs 1 or more"):
        settings("p3", passes=0)
    for value, debug in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("RADDLE_SYNC_DEBUG", value)
        read = read_settings("p3", 2, backward_passes=1, bucket=1, debug=None, stall=1.0)
        assert read.debug is debug


def test_reasons_for_a_barrier() -> None:
    model = nn.Linear(2, 3)
    trained = TrainedParameters(sgd(model), model)
    assert find_barrier_reason(trained, settings("p3"), requested=False) == ""
    assert find_barrier_reason(trained, settings("p3"), requested=True) == "barrier=True"
    with pytest.raises(InputError, match=r"sync 'ps:async' cannot wait .* \(barrier=True\)"):
        find_barrier_reason(trained, settings("ps:async"), requested=True)
    model.weight = nn.Parameter(torch.zeros(2, 3).t())
    trained = TrainedParameters(sgd(model), model)
    assert "'weight' is not contiguous" in find_barrier_reason(
        trained, settings("p3"), requested=False
    )
    assert find_barrier_reason(trained, settings("allreduce"), requested=False) == ""


def test_one_gradient_too_many_is_named() -> None:
    arrivals = GradientCounter(3, ["a", "b"], backward_passes=2)
    assert [arrivals.add(1), arrivals.add(0), arrivals.add(1)] == [False, False, True]
    with pytest.raises(RuntimeError, match="rank 3 got another gradient of 'b' before"):
        arrivals.add(1)
    arrivals.counts.clear()
    assert not arrivals.add(1)
