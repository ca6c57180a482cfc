"""`raddle simulate`: plans of files, damaged ones among them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from command_line import raddle, refused

CONV = "[0:8 0:6 0:4 0:4 0:3 0:5 0:5]"  # all of features.3  # all of features.3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: [], "no plan file of raddle: it has no key 'raddle'"),
        (lambda d: d | {"raddle": 99}, "has version 99, this raddle reads version 1: plan again"),
        (lambda d: {k: v for k, v in d.items() if k != "tiles"}, "is damaged: it lacks tiles"),
        (lambda d: d | {"tiles": []}, "is damaged: tiles is [], not an object"),
        (lambda d: d | {"devices": "two"}, "is damaged: devices is 'two', not a count"),
        (lambda d: d | {"microbatches": 9}, "it has 9 micro-batches for 8 samples"),
        (lambda d: d | {"dtype": "int8"}, "dtype is 'int8', not one of float64"),
        (lambda d: d | {"model": "lenet"}, "the plan was made for 'lenet' at batch 8"),
        (lambda d: d | {"model": "lenet-tini"}, "did you mean lenet-tiny"),
        (lambda d: d | {"batch": 9}, "not for 'lenet-tiny' at batch 9"),
        (lambda d: d | {"fingerprint": "0" * 16}, "plan again for this model"),
        (lambda d: d | {"cluster": {"name": "c"}}, "the cluster in "),
        (lambda d: d | {"cluster": None}, "names no cluster: add --cluster"),
        (lambda d: d | {"bn": "none"}, "bn is 'none'"),
        (lambda d: tiled(d, "features.9", "@0"), "which 'lenet-tiny' does not have"),
        (lambda d: tiled(d, "features.3", None), "is None, not a text"),
        (lambda d: tiled(d, "features.3", "n/2"), "names no devices"),
        (lambda d: tiled(d, "features.3", "n/2 @0-x"), "is no list of devices"),
        (lambda d: tiled(d, "features.3", "n/(4,) @0-1"), "is no split"),
        (lambda d: tiled(d, "features.3", "n/9 @0-8"), "cannot be split into 9 along n"),
        (lambda d: tiled(d, "features.3", "n/(4,3) @0-1"), "cover n from 0 to 7, not 0 to 8"),
        (lambda d: tiled(d, "features.3", "R/5 @0,0,0,0,0"), "along R: it is taken whole"),
        (lambda d: tiled(d, "features.3", "z/2 @0-1"), "has no dimension z"),
        (lambda d: tiled(d, "features.3", "@2"), "tile on device 2, but the plan has devices 0 to 1"),
        (lambda d: tiled(d, "features.3", "@0-999999999"), "are more than 65536 devices"),
        (lambda d: tiled(d, "features.3", "[0 1]@0"), "is no list of boxes"),
        (lambda d: tiled(d, "features.3", f"{CONV}@0 {CONV.replace('0:8', '0:4')}@1"), "overlap"),
        (lambda d: tiled(d, "features.3", f"{CONV.replace('0:8', '0:4')}@0"), "leave a hole"),
    ],
)  # fmt: skip
def test_damaged_plans(
    plan_file: pathlib.Path, change: Callable[[Any], Any], sentence: str
) -> None:
    plan_file.write_text(json.dumps(change(json.loads(plan_file.read_text()))))
    refused(raddle("simulate", plan_file), sentence)


def tiled(data: dict[str, Any], op: str, tiles: object) -> dict[str, Any]:
    return data | {"tiles": data["tiles"] | {op: tiles}}


@pytest.mark.parametrize("keep", [0, 1, 100, 1000, -3])
def test_a_plan_file_that_was_cut_off(plan_file: pathlib.Path, keep: int) -> None:
    plan_file.write_text(plan_file.read_text()[:keep])
    refused(raddle("simulate", plan_file), "is no plan file: ")


def test_a_trace_that_cannot_be_written(plan_file: pathlib.Path) -> None:
    refused(raddle("simulate", plan_file, "--trace", "."), "'.' cannot be written")
    refused(raddle("simulate", plan_file, "--trace", "no/t.gz"), "there is no folder for 'no/t.gz'")


def test_a_cluster_that_is_too_small(plan_file: pathlib.Path) -> None:
    refused(
        raddle("simulate", plan_file, "--cluster", "p100:1x1"), "needs 2 devices, 'p100:1x1' has 1"
    )
