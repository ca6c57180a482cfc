"""The thesis's tables: printed figures agree with each other, and ours with a second count."""

import numpy as np
import pytest
import torch
from torch import nn

from experiments.thesis import gpus, printed
from experiments.thesis.epoch import count_epoch
from experiments.thesis.grid import as_updates, crossover_text, fastest
from experiments.thesis.grid import printed as printed_seconds
from experiments.thesis.lab_table import COARSE
from experiments.thesis.partitions import COLUMNS, MI, allowed_epsilon, data_bytes, printed_row
from experiments.thesis.printed_epoch import EPOCH_DATA, EPOCH_HYPERGRAPH
from experiments.thesis.simulated import SERVERS, crossover
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.searches.hypergraph.partitioner import Partitioner, PartitionRequest

VGG16 = 138_357_544  # parameters, its Table 5.13


@pytest.fixture(scope="module")
def chain() -> Graph:
    layers = [nn.Linear(8, 6), nn.Linear(6, 4), nn.Linear(4, 2)]
    model = nn.Sequential(*layers).to("meta")
    batch = (torch.zeros(4, 8, device="meta"),)
    return capture(model, batch, supervised(lambda y: y.sum(), targets=0), name="chain")


@pytest.mark.parametrize("rows", [*printed.ALL, *printed.COARSE_BOUNDED, *printed.FINE_BOUNDED])
def test_printed_rows_agree_with_themselves(
    rows: printed.PrintedTable | printed.BoundedTable,
) -> None:
    for parts, row in rows.rows.items():
        assert parts in printed.PARTS
        assert row.least <= row.average <= row.most
        assert row.heaviest <= row.volume
        assert row.average * parts == pytest.approx(43_001, rel=0.05)  # all work, Table 5.3


def test_the_reconstructed_weights_give_the_layerwise_table() -> None:
    work = np.array(printed.RECONSTRUCTED)
    first = np.cumsum(work)
    least = min(max(int(cut), int(work.sum() - cut)) for cut in first)
    row = printed.LAYERWISE.rows[2]
    assert (least, int(work.sum()) - least) == (row.most, row.least)


def test_a_row_has_the_counts_of_its_partition(chain: Graph) -> None:
    partitioner = Partitioner(chain)
    ours = partitioner.partition("layerwise", PartitionRequest(2))
    row = printed_row("layer-wise", "5.1", printed.PrintedRow(3, 1, 2, 10, 5), ours)
    cells = {(c.name, c.source): value for c, value in zip(COLUMNS, row, strict=True)}
    # the best cut of 48, 24 and 8 products an image is after the first layer: 6 maps of 4 samples cross
    assert cells["largest part", "counted"] == 1.5 * cells["smallest part", "counted"]
    assert cells["volume", "counted"] == 6 * 4 / MI
    assert cells["MiB a step", "counted"] == 8 * 6 * 4 / MI
    assert cells["largest/average", "printed"] == 1.5


@pytest.mark.usefixtures("thread_clock")
def test_ours_are_at_most_as_uneven_as_the_printed(chain: Graph) -> None:
    theirs = printed.PrintedRow(13, 11, 12, 1, 1)
    result = Partitioner(chain).partition(
        "coarse", PartitionRequest(2, epsilon=allowed_epsilon(theirs), budget=0.2)
    )
    assert result.imbalance <= theirs.imbalance + 1e-9


def test_data_parallelism_of_an_epoch_is_the_printed() -> None:
    for (parts, batch), printed_gib in EPOCH_DATA.items():
        gib = data_bytes(VGG16, parts) * (64_000 // batch) / 2**30
        assert gib == pytest.approx(printed_gib, abs=1)


def test_savings_in_equal_units() -> None:
    # a coarse partition whose bytes are the printed elements x 4 saves what the printed one does
    coarse = {n: 4 * gib * 2**30 // 2000 for n, gib in EPOCH_HYPERGRAPH.items()}
    epoch_bytes = count_epoch(VGG16, coarse, {"auto": {(2, 32): 0}})
    shares = [1 - 4 * EPOCH_HYPERGRAPH[n] / gib for (n, _), gib in EPOCH_DATA.items()]
    assert epoch_bytes.saved_printed == pytest.approx(sum(shares) / 9, abs=1e-3)
    assert epoch_bytes.saved == {
        "coarse": f"{epoch_bytes.saved_printed:.0%} over 9 rows",
        "auto": "100% over 1 rows",
    }
    assert len(epoch_bytes.table.rows) == 9


def test_crossover_is_where_data_parallelism_stays_ahead() -> None:
    model = {16: 5.0, 32: 5.0, 64: 5.0}
    assert crossover(model, {16: 6.0, 32: 5.0, 64: 1.0}) == 32
    assert crossover(model, {16: 1.0, 32: 6.0, 64: 1.0}) == 64
    assert crossover(model, {16: 1.0, 32: 1.0, 64: 6.0}) is None
    assert crossover(model, {128: 1.0}) is None


def test_the_printed_crossovers() -> None:
    rows = {n: {row: printed_seconds(n, row) for row in (COARSE, *SERVERS)} for n in (2, 4)}
    assert "from batch 256 on" in crossover_text(2, rows[2])
    assert "from batch 128 on" in crossover_text(4, rows[4])
    # with as many images an update, synchronous servers never overtake
    assert crossover_text(2, rows[2]).endswith(
        "ahead at none of the batches 32, 64, 128, 256, 512."
    )
    assert crossover_text(4, rows[4]).endswith("ahead at none of the batches 64, 128, 256, 512.")
    assert crossover_text(4, {row: {16: 1.0} for row in rows[4]}).endswith(
        "ahead at no common batch."
    )


def test_rows_by_batch() -> None:
    assert fastest([{16: 2.0, 32: 1.0}, {16: 1.0}]) == {16: 1.0, 32: 1.0}
    assert as_updates({16: 2.0}, 4) == {64: 2.0}


def test_gaps_are_compared_at_the_same_number_and_batch() -> None:
    xeon, gpu = gpus.CLUSTER_CASES[0], gpus.CLUSTER_CASES[2]
    gaps = [
        gpus.Gap(xeon, 4, 32, 1.0, 2.0, 1.0),
        gpus.Gap(gpu, 4, 32, 1.0, 3.0, 0.5),
        gpus.Gap(gpu, 8, 32, 1.0, 9.0, None),  # has no counterpart
    ]
    servers, reduced = gpus.text(gaps).split("\n\n")
    assert "in 1 of 1 cases (1.50 to 1.50 x)" in servers
    assert "in 0 of 1 cases (0.50 to 0.50 x)" in reduced
    assert [row[6] for row in gpus.table(gaps).rows] == [2.0, 3.0, 9.0]
