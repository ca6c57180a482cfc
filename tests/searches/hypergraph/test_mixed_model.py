"""The compressed model of mixed partitions predicts the bytes that the lowered program sends."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from raddle.api.loading import capture_model
from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.program.lower import lower
from raddle.searches.hypergraph.mixed_blocks import MixedBlocks, build_blocks
from raddle.searches.hypergraph.mixed_model import MixedModel, build_mixed_model
from raddle.searches.hypergraph.mixed_moves import apportion_units
from raddle.searches.hypergraph.mixed_states import MixedState, part_work, state_of_tiles, tiles_of
from raddle.searches.hypergraph.mixed_volume import volume
from raddle.searches.purposes import bytes_by_purpose
from raddle.simulation.fast.evaluator import Evaluator
from raddle.simulation.timeline import simulate

LOSS = 2000  # bytes of the sums of a loss, which the model does not count exactly


class Chain(nn.Module):
    """x[8 3 16 16] -> conv1[8 6 16 16], pool -> conv2[8 8 8 8] -> conv3[8 8 8 8], pool -> fc1, fc2"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2, self.conv3 = nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 8, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(128, 40), nn.Linear(40, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv3(torch.relu(self.conv2(x)))), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


@cache
def chain() -> tuple[Graph, MixedBlocks, MixedModel]:
    x, target = torch.zeros(8, 3, 16, 16), torch.zeros(8, dtype=torch.long)
    graph = capture(Chain(), (x, target), supervised(nn.functional.cross_entropy))
    return graph, build_blocks(graph), build_mixed_model(build_blocks(graph))


@cache
def small(name: str) -> tuple[Graph, MixedBlocks, MixedModel]:
    graph = capture_model(name, 8)
    return graph, build_blocks(graph), build_mixed_model(build_blocks(graph))


def random_state(
    blocks: MixedBlocks, m: MixedModel, parts: int, letters: str, seed: int
) -> MixedState:
    """Returns a state with random axes of the given letters and random shares."""
    rng = np.random.default_rng(seed)
    axis, x = np.zeros(len(m.work), np.int64), np.zeros((len(m.work), parts), np.int64)
    for b, block in enumerate(blocks.blocks):
        able = [a for a, y in enumerate(block.axes) if y in letters and block.units[a] > 1]
        axis[b] = rng.choice(able or [0])
        shares = rng.random(parts) * (rng.random(parts) < 0.6)
        shares[rng.integers(parts)] += 0.3
        apportion_units(shares / shares.sum(), block.units[axis[b]], x[b])
    return MixedState(axis, x)


def program_bytes(graph: Graph, tiles: object, parts: int) -> int:
    return sum(bytes_by_purpose(lower(graph, Plan(tiles, parts, bn="local"))).values())  # type: ignore[arg-type]


@given(
    parts=st.integers(2, 5),
    letters=st.sampled_from(["n", "c", "nc", "hw", "nch", "nchw"]),
    seed=st.integers(0, 10**6),
)
def test_the_model_equals_the_program_on_a_chain(parts: int, letters: str, seed: int) -> None:
    graph, blocks, m = chain()
    state = random_state(blocks, m, parts, letters, seed)
    tiles = tiles_of(blocks, m, state)
    assert volume(m, *state) == pytest.approx(program_bytes(graph, tiles, parts), abs=LOSS)
    assert blocks.work(tiles, parts) == pytest.approx(part_work(m, state))


def test_costs_between_two_layers() -> None:
    """conv2 has 6 and 2 samples on parts 0 and 1, conv3 is on three parts, all others are on part 0."""
    _, blocks, m = chain()
    number = {block.name: b for b, block in enumerate(blocks.blocks)}
    conv2, conv3 = number["conv2"], number["conv3"]
    whole = np.zeros((5, 3), np.int64)
    whole[:, 0] = [block.units[0] for block in blocks.blocks]
    axis = np.zeros(5, np.int64)
    assert volume(m, axis, whole) == 0

    read = 2 * 4 * 8 * 8 * 8 * 8  # bytes of what conv3 reads, and of its gradient
    gives = 2 * 4 * 8 * 8 * 4 * 4  # and of its pooled output, which goes to part 0
    weights = 4 * (8 * 8 * 25 + 8)
    base = volume(m, axis, _with_rows(whole, {conv2: [6, 2, 0]})) - read * 2 / 8

    shares = _with_rows(whole, {conv2: [6, 2, 0], conv3: [5, 2, 1]})
    by_sample = volume(m, axis, shares) - base
    assert by_sample == read * 1 / 8 + gives * 3 / 8 + 2 * (3 - 1) * weights
    axis[conv3] = blocks.blocks[conv3].axes.index("c")
    by_filter = volume(m, axis, shares) - base
    assert by_filter == read * (2 / 8 + 6 / 8 + 1) + gives * 3 / 8


def _with_rows(x: np.ndarray, rows: dict[int, list[int]]) -> np.ndarray:
    changed = x.copy()
    for b, row in rows.items():
        changed[b] = row
    return changed


@pytest.mark.parametrize(
    ("name", "within"),
    [("vgg16-tiny", 0.03), ("resnet50-tiny", 0.1), ("unet-tiny", 0.1), ("nmt-tiny", 0.25)],
)
def test_the_model_is_near_the_program_on_any_graph(name: str, within: float) -> None:
    graph, blocks, m = small(name)
    for seed in range(6):
        state = random_state(blocks, m, 3, "nckhw" if name == "vgg16-tiny" else "nc", seed)
        sent_bytes = program_bytes(graph, tiles_of(blocks, m, state), 3)
        assert volume(m, *state) == pytest.approx(sent_bytes, rel=within, abs=LOSS)


def test_several_ranges_of_a_device_are_timed_as_they_are_simulated() -> None:
    graph, blocks, m = chain()
    machine = cluster("p100:2x2")
    for seed in range(4):
        tiles = tiles_of(blocks, m, random_state(blocks, m, 4, "nc", seed))
        timeline = simulate(lower(graph, Plan(tiles, 4, bn="local")), machine)
        assert (
            Evaluator(graph, machine, Plan(tiles, len(machine.devices), bn="local")).time()
            == timeline.step_ends[0]
        )


def test_a_state_is_read_back_from_its_tiles() -> None:
    _, blocks, m = chain()
    for seed in range(10):
        state = random_state(blocks, m, 4, "nc", seed)
        back = state_of_tiles(blocks, tiles_of(blocks, m, state), 4)
        assert back is not None
        assert volume(m, *back) == volume(m, *state)
        assert (back.x.argmax(axis=1) == state.x.argmax(axis=1)).all()
