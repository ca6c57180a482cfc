"""The largest batch that fits: the search, the devices' memory, and what a wanted batch needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.api import capacity as module
from raddle.api.capacity import Capacity, capacity
from raddle.clusters import Cluster, cluster
from raddle.errors import InputError


@given(
    fixed=st.integers(0, 10**9), per_sample=st.integers(1, 10**8), jump=st.integers(0, 10**9),
    memory=st.integers(1, 10**10),
)  # fmt: skip
def test_the_search_ends_near_the_largest_size_that_fits(
    fixed: int, per_sample: int, jump: int, memory: int
) -> None:
    tried = list[int]()

    def peak(size: int) -> int:  # a jump, as another kind of segment makes
        return fixed + per_sample * size + (jump if size > 100 else 0)

    def attempt(size: int) -> module._Trial:
        tried.append(size)
        return module._Trial(4 * size, peak(size), memory, 1.0)

    best = module._largest(attempt)
    if best is None:
        assert peak(1) > memory
        return
    size = best.batch // 4
    assert peak(size) <= memory
    after = size + max(1, size // module.PRECISION)
    assert after >= module.MOST_SAMPLES or peak(after) > memory
    assert len(tried) == len(set(tried)) <= 40


def with_memory(nbytes: int) -> Cluster:
    on = cluster("p100:1x2")
    return replace(on, devices=tuple(replace(d, memory=nbytes) for d in on.devices))


def test_more_memory_gives_a_larger_batch() -> None:
    small, large = (
        capacity("mlp-tiny", cluster=with_memory(nbytes), methods=["data"])[0]
        for nbytes in (30_000, 60_000)
    )
    assert 0 < small.batch < large.batch
    assert small.peak_bytes <= small.memory == 30_000
    assert large.samples_per_s > 0


def test_what_a_batch_needs() -> None:
    on = with_memory(30_000)
    (fits,) = capacity("mlp-tiny", cluster=on, methods=["data"])
    enough = capacity("mlp-tiny", cluster=on, methods=["data"], wanted=fits.batch)
    assert [result.needed for result in enough] == ["nothing"]
    (more,) = capacity("mlp-tiny", cluster=on, methods=["data"], wanted=2 * fits.batch)
    assert "recompute" in more.needed or "more devices" in more.needed


def test_parameters_that_do_not_fit() -> None:
    (result,) = capacity("mlp-tiny", cluster=with_memory(100), methods=["data"])
    assert result == Capacity("data", memory=100)


def test_a_method_that_gives_no_plan_says_why() -> None:
    (result,) = capacity("mlp-tiny", cluster="local:2", methods=["context"])
    assert not result.batch
    assert result.error


def test_mistakes() -> None:
    with pytest.raises(InputError, match="no method 'dta'"):
        capacity("mlp-tiny", cluster="local:2", methods=["dta"])
    with pytest.raises(InputError, match="a batch of 0 samples is wanted"):
        capacity("mlp-tiny", cluster="local:2", wanted=0)
