"""`raddle export`: a model's hypergraph for another partitioner."""

from __future__ import annotations

import json
import pathlib

import pytest
from calling import raddle, refused

from raddle.searches.hypergraph.formats import read_hypergraph


@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("form", ["patoh", "hmetis"])
def test_a_file_has_what_was_told(tmp_path: pathlib.Path, form: str, grain: str) -> None:
    path = tmp_path / "h"
    words = ("export", "lenet-tiny", "--to", form, "--grain", grain, "-o", path)
    told = json.loads(raddle(*words, "--json").stdout)
    found = read_hypergraph(path)
    assert told == {
        "model": "lenet-tiny", "file": str(path), "format": form, "grain": grain,
        "vertices": len(found.weight), "nets": len(found.cost), "pins": len(found.pins),
    }  # fmt: skip
    assert str(path) in raddle(*words).stdout


def test_what_cannot_be_is_refused_before_anything_is_captured(tmp_path: pathlib.Path) -> None:
    words = ("export", "nothing", "-o", tmp_path / "h")
    refused(raddle(*words, "--to", "metis"), "no format 'metis': choose patoh or hmetis.")
    refused(raddle(*words, "--to", "patoh", "--grain", "big"), "the grain is 'big'")
    refused(raddle("export", "nothing", "-o", "no/h", "--to", "patoh"), "there is no folder for")
    refused(raddle(*words, "--to", "patoh"), "no model 'nothing' in the zoo")
