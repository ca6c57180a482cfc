"""`raddle models`: the zoo, or a model layer by layer."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from command_line import raddle
from timeouts import HANG


def test_models_lists_the_zoo() -> None:
    """In a process of its own, as a shell starts it."""
    command = [sys.executable, "-m", "raddle", "models"]
    listed = subprocess.run(
        [*command, "--json"], stdout=subprocess.PIPE, text=True, timeout=HANG, check=True
    )
    names = [row["name"] for row in json.loads(listed.stdout)]
    assert {"vgg16", "vgg16-tiny", "resnet1001", "gpt"} <= set(names)
    assert raddle("models").stdout.split() == names
    wrong = subprocess.run(
        [*command, "vgg17"], capture_output=True, text=True, timeout=HANG, check=False
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == raddle("models", "vgg17").stderr


def test_model_as_json_and_as_a_table() -> None:
    model = json.loads(raddle("models", "vgg16-tiny", "--batch", "6", "--json").stdout)
    assert model["batch"] == 6
    assert model["opaque"] == []
    assert model["params"] == sum(layer["params"] for layer in model["layers"])
    first = model["layers"][0]
    assert first["kind"] == "conv2d"
    assert first["split"] == "n S, c P, h A, w A, k R"
    table = raddle("models", "vgg16-tiny").stdout
    assert all(layer["name"] in table for layer in model["layers"])


def test_flops_are_those_of_the_papers() -> None:
    """torchvision prints 15.47 G multiply-adds for an image through vgg16."""
    model = json.loads(raddle("models", "vgg16", "--batch", "2", "--json").stdout)
    assert model["params"] == 138_357_544
    assert model["flops_forward"] / 2 / 2 == pytest.approx(15.47e9, rel=0.01)


def test_a_model_of_the_user_with_an_opaque_operator(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.linalg.inv(x).sum()\n"
        "def build():\n"
        "    return M(), (torch.randn(3, 3),)\n"
    )
    model = json.loads(raddle("models", f"{file}:build", "--json").stdout)
    assert model["opaque"] == [{"op": "linalg_inv", "kind": "linalg_inv"}]
    assert "opaque" in raddle("models", f"{file}:build").stdout


@pytest.mark.parametrize(
    "args",
    [
        ["models", "vgg17"],
        ["models", "nowhere.py:f"],
        ["models", "vgg16", "--batch", "0"],
        ["modles"],
    ],
)
def test_bad_input(args: list[str]) -> None:
    result = raddle(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.strip()
