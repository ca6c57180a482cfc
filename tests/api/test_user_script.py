"""A module of a user's own, by the script of a user: it is planned, saved, loaded, verified and typed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from timeouts import HANG
from torch import nn
from user_script import Net, example, loss, main

import raddle

HERE = pathlib.Path(__file__).parent
SRC = pathlib.Path(raddle.__file__).parents[1]


def test_the_script_runs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(str(tmp_path))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("ms, True, fc")
    assert printed[1] == "Net, batch 8, on p100:1x2"
    assert printed[-1] == "True 2 Net"
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_mypy_finds_no_error_in_the_script() -> None:
    assert (SRC / "raddle" / "py.typed").is_file()
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(HERE / "user_script.py")],
        cwd=SRC.parent, env={**os.environ, "MYPYPATH": str(SRC)}, capture_output=True, text=True,
        timeout=4 * HANG, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["Success: no issues found in 1 source file"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    raddle.plan(Net(), example(), loss, cluster="p100:1x2", method="owt").save(path)
    return path


def test_without_its_module_a_plan_has_its_prediction(saved: pathlib.Path) -> None:
    result = raddle.load_plan(saved)
    assert result.fits
    with pytest.raises(
        raddle.InputError, match=r"its model, 'Net', is not in the zoo .*: use raddle\.load"
    ):
        raddle.simulate(result)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"model": Net(features=16)}, "was made for 'Net' at batch 8 .* plan again for this model"),
        ({"example": example(6)}, "was made for"),
        ({"example": None}, "Net has no example batch"),
        ({"loss": None}, "Net"),
        ({"model": None}, "an example and a loss belong to a module: give model= as well"),
    ],
)
def test_another_module_batch_or_loss_is_refused(
    changed: dict[str, Any], sentence: str, saved: pathlib.Path
) -> None:
    given = {"model": Net(), "example": example(), "loss": loss, **changed}
    with pytest.raises(raddle.InputError, match=sentence):
        raddle.load_plan(saved, **given)


def test_a_module_without_values_is_planned_and_not_verified() -> None:
    with torch.device("meta"):
        model, batch = Net(), {"image": torch.empty(8, 1, 8, 8), "label": torch.empty(8).long()}
    result = raddle.plan(model, batch, loss, cluster="p100:1x2", method="data")
    assert (
        result.step_ms
        == raddle.plan(Net(), example(), loss, cluster="p100:1x2", method="data").step_ms
    )
    with pytest.raises(raddle.InputError, match="'Net' is on the meta device and has no weights"):
        raddle.verify(result)


def test_a_graph_alone_trains_nothing() -> None:
    graph = raddle.capture(Net(), example(), loss)
    result = raddle.plan(graph, cluster="p100:1x2", method="data")
    with pytest.raises(raddle.InputError, match="only the graph of 'Net' was given"):
        raddle.verify(result)


def test_a_module_without_a_loss_is_refused() -> None:
    with pytest.raises(raddle.InputError, match=r"Linear gives no loss: give loss\(model, batch\)"):
        raddle.plan(nn.Linear(4, 2), torch.randn(8, 4), cluster="local:2", method="data")


def test_planning_leaves_the_module_as_it_is() -> None:
    model = Net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    raddle.verify(raddle.plan(model, example(), loss, cluster="p100:1x2", method="data"), steps=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
