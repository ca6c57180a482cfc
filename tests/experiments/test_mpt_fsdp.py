"""The experiment on published FSDP runs: shapes, judgements, and that it is skipped without the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.experiment import RunOptions, load
from experiments.mpt_fsdp import utilization
from experiments.mpt_fsdp.networks import MPT, SHAPES
from experiments.mpt_fsdp.published import Run, read_runs
from experiments.mpt_fsdp.utilization import Prediction
from raddle.errors import InputError

HEADER = "model,sequence,gpus,microbatch,accumulate,mfu,recompute,parameters\n"


def run(mfu: float = 40.0, *, accumulate: int = 1, recompute: bool = True) -> Run:
    return Run("125m", 64, 8, 2, accumulate, mfu, recompute, 124_000_000)


def test_without_the_file_the_part_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="published runs are not in"):
        read_runs(tmp_path / "mpt_fsdp.csv")


def test_reads_the_columns_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + "125m,64,8,2,3,41.5,True,124000000\n")
    assert read_runs(path) == [run(41.5, accumulate=3)]


def test_a_model_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = MPT(SHAPES["1b"], 2048)
    assert sum(p.numel() for p in model.parameters()) == 1_315_950_592


def test_layers_are_recomputed_one_by_one() -> None:
    graph = utilization.capture(run())
    layers = utilization.layers(graph)
    assert len(layers) == SHAPES["125m"].layers
    assert len({len(layer) for layer in layers}) == 1


def test_accumulation_multiplies_the_time_of_a_micro_batch_but_not_of_the_update() -> None:
    once, thrice = (utilization.predict(run(accumulate=count)) for count in (1, 3))
    assert once.mfu < thrice.mfu < 3 * once.mfu
    assert thrice.peak == once.peak + 4 * 124_000_000 // 8


def test_errors_are_relative_to_what_was_measured() -> None:
    predictions = [
        Prediction(run(40.0), 42.0, 10, 80), Prediction(run(32.0), 28.8, 90, 80),
    ]  # fmt: skip
    assert utilization.errors([40.0, 40.0], [p.run for p in predictions]) == [0.0, 0.25]
    assert "mean error of MFU over 2 runs is 7.5%, the worst 10.0%" in utilization.summary(
        predictions
    )
    assert "rank correlation 1.00" in utilization.summary(predictions)
    assert utilization.memory_sentence(predictions).startswith("1 of 2 runs are predicted to fit")
    assert utilization.judgement(predictions).rows[1][1:3] == pytest.approx([12.5, 25.0])


def test_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "read_runs", lambda: [run(), run(recompute=False)])
    (part,) = load("mpt-fsdp").parts
    section = part.make(RunOptions())
    assert len(section.parts) == 3
