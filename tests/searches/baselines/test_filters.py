"""assign_runs: filters and channels fill one part after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raddle.searches.baselines.filters import FilterRun, assign_runs


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_parts_are_filled_in_order_until_they_have_their_share(
    layers: list[tuple[int, int]], parts: int
) -> None:
    total = sum(work for _, work in layers)
    filled = assign_runs(layers, [total / parts] * parts)
    done = [0.0] * parts
    units = [0.0] * parts  # the largest unit of each part
    order = []
    for (count, work), runs in zip(layers, filled, strict=True):
        assert [run.first for run in runs] == [0, *(run.last for run in runs[:-1])]
        assert runs[-1].last == count
        for run in runs:
            done[run.part] += (run.last - run.first) * work / count
            units[run.part] = max(units[run.part], work / count)
            order.append(run.part)
    assert order == sorted(order)
    for part in range(order[-1]):
        assert done[part] >= total / parts * (1 - 1e-6)
    for part in range(parts - 1):
        assert done[part] <= total / parts + units[part] + 1e-6
    assert sum(done) == pytest.approx(total)


def test_equal_layers_are_cut_in_the_middle() -> None:
    assert assign_runs([(4, 2.0)], [1.0, 1.0]) == [[FilterRun(0, 0, 2), FilterRun(1, 2, 4)]]
    assert assign_runs([(3, 3.0), (3, 3.0)], [2.0, 2.0, 2.0]) == [
        [FilterRun(0, 0, 2), FilterRun(1, 2, 3)],
        [FilterRun(1, 0, 1), FilterRun(2, 1, 3)],
    ]
