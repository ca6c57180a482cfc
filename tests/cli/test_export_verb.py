"""`raddle export`: a model's hypergraph for another partitioner."""

from __future__ import annotations

import json
import pathlib

import pytest
from command_line import raddle, refused

from raddle.searches.hypergraph.formats import read_hypergraph


@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("form", ["patoh", "hmetis"])
def test_a_file_has_what_was_reported(tmp_path: pathlib.Path, form: str, grain: str) -> None:
    path = tmp_path / "h"
    arguments = ("export", "lenet-tiny", "--to", form, "--grain", grain, "-o", path)
    result = json.loads(raddle(*arguments, "--json").stdout)
    hypergraph = read_hypergraph(path)
    assert result == {
        "model": "lenet-tiny", "file": str(path), "format": form, "grain": grain,
        "vertices": len(hypergraph.weight), "nets": len(hypergraph.cost), "pins": len(hypergraph.pins),
    }  # fmt: skip
    assert str(path) in raddle(*arguments).stdout


def test_what_cannot_be_is_refused_before_anything_is_captured(tmp_path: pathlib.Path) -> None:
    words = ("export", "nothing", "-o", tmp_path / "h")
    refused(raddle(*words, "--to", "metis"), "no format 'metis': choose patoh or hmetis.")
    refused(raddle(*words, "--to", "patoh", "--grain", "big"), "the grain is 'big'")
    refused(raddle("export", "nothing", "-o", "no/h", "--to", "patoh"), "there is no folder for")
    refused(raddle(*words, "--to", "patoh"), "no model 'nothing' in the zoo")
