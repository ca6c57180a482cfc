"""Plan files: a saved plan is read back, and a damaged or foreign file gives one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from random_plans import random_plan
from small_models import MODELS, make_plan, mlp, small

from raddle.errors import InputError
from raddle.plans.optimizers import OPTIMIZERS
from raddle.plans.plan import DROPOUT_KINDS
from raddle.plans.plan_file import from_dict, read, save, to_dict


@settings(max_examples=40)
@given(
    model=st.sampled_from(MODELS),
    devices=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    bn=st.sampled_from(["microbatch", "local"]),
    dropout=st.sampled_from(DROPOUT_KINDS),
    sync=st.sampled_from(
        [
            "allreduce",
            "server",
            "sharded",
            "sharded:parameters",
            "sharded,group=2",
            "ps:one",
            "ps:greedy,slice=9",
            "p3:slice=7",
            "p3:collective,slice=7",
        ]
    ),
    microbatches=st.integers(1, 4),
    steps=st.integers(1, 3),
    optimizer=st.sampled_from(list(OPTIMIZERS)),
    precision=st.sampled_from(["float32", "tf32", "bf16", "fp16", "bf16:pure"]),
    predicted=st.dictionaries(
        st.text(max_size=5), st.integers(-(2**63) + 1, 2**63 - 1) | st.booleans()
    ),
)
def test_round_trips(
    tmp_path_factory: pytest.TempPathFactory, model: str, devices: int, seed: int, **more: Any
) -> None:
    graph = small(model)[1]
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    identity = {"model": model, "fingerprint": graph.fingerprint(), "batch": graph.batch}
    try:
        plan = random_plan(graph, devices, seed, **identity, cluster={"name": "mine"}, **more)
    except InputError:  # local statistics of random tiles, where their program gives the order
        reject()
    save(plan, graph, path)
    assert from_dict(read(path), graph) == plan
    assert to_dict(from_dict(read(path), graph), graph) == json.loads(path.read_text())


def damaged(**change: Any) -> str:
    plan = make_plan(mlp(), {}, 2, fingerprint=mlp().fingerprint(), model="mlp")
    data = {**to_dict(plan, mlp()), **change}
    return json.dumps({k: v for k, v in data.items() if v is not ...})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (lambda: "{", "is no plan file: "),
        (lambda: "[1, 2]", "is no plan file of raddle: it has no key 'raddle'"),
        (lambda: '{"a": 1}', "is no plan file of raddle"),
        (lambda: damaged(raddle=99), "has version 99, this raddle reads version 1: plan again"),
        (lambda: damaged(tiles=..., sync=...), "is damaged: it lacks sync, tiles"),
        (lambda: damaged(fingerprint="0123"), "was made for 'mlp' .* not for"),
        (lambda: damaged(tiles={"conv9": "@0"}), "has tiles for 'conv9', which"),
        (lambda: damaged(tiles={"fc1": "@0"}), "has no tiles for 'relu'"),
        (lambda: damaged(tiles={"fc1": "n/2 @0,9"}), "(no tiles for|on device 9)"),
        (lambda: damaged(dropout=0.1), "dropout is 0.1, not a text"),
        (lambda: damaged(dropout="none"), "dropout is 'none': choose one of native, exact"),
        (lambda: damaged(order="first"), "order is 'first', not a list of numbers of bundles"),
        (lambda: damaged(order=[0, "1"]), "order is .*, not a list of numbers"),
        (lambda: damaged(order=[0, 2], sync="p3:collective"), "is no permutation of their numbers"),
        (lambda: damaged(order=[0, 1]), "orders 2 sums of bundles, and sync 'allreduce' has none"),
    ],
)
def test_refuses(text: Callable[[], str], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text())
    with pytest.raises(InputError, match=reason):
        from_dict(read(path), mlp())


def test_a_file_from_before_there_were_orders(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(damaged(order=..., sync="p3:collective"))
    assert from_dict(read(path), mlp()).order == ()


def test_a_file_without_a_kind_of_dropout(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(damaged(dropout=...))
    assert from_dict(read(path), mlp()).dropout == "native"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no plan file"):
        read(tmp_path / "none.json")


def test_no_text(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is no plan file"):
        read(path)
