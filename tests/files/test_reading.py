"""Every problem with a file is reported in one sentence, for every kind of file."""

from __future__ import annotations

import json
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from file_kinds import FILE_KINDS, FileKind
from file_mutations import BOMB, MERGES, places
from fuzz_files import _raise_slow, check_file, fuzz, sentence_problem, table
from hypothesis import given
from hypothesis import strategies as st

from raddle.costs.profile import load_profile
from raddle.errors import MAX_QUOTED, InputError, quote, shorten
from raddle.files import MAX_DEPTH, read_json

# Kinds of files that are ignored if they are damaged: they only save time.
IGNORED_IF_DAMAGED = ("cache.json", "summary.json")
CHECKED_KINDS = [kind for kind in FILE_KINDS.values() if kind.name not in IGNORED_IF_DAMAGED]
BAD_NUMBERS = [
    -1,
    -1e-9,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    10**400,
    True,
    "1",
    None,
    [1.0],
    {},
]


@pytest.fixture
def cpu_limit() -> Iterator[None]:
    """Fails a test that takes more than 2 s of CPU time."""
    before = signal.signal(signal.SIGPROF, _raise_slow)
    yield
    signal.signal(signal.SIGPROF, before)


def read_error(kind: FileKind, path: pathlib.Path) -> str:
    with pytest.raises(InputError) as caught:
        kind.read(path)
    text = str(caught.value)
    content = path.read_bytes() if path.is_file() else b""
    assert not sentence_problem(text, content), text
    return text


@pytest.mark.parametrize("kind", FILE_KINDS.values(), ids=lambda kind: kind.name)
def test_good_files_are_read(kind: FileKind, tmp_path: pathlib.Path) -> None:
    for content in kind.seeds:
        (tmp_path / kind.name).write_bytes(content)
        assert kind.read(tmp_path / kind.name) is not None


@pytest.mark.parametrize("kind", CHECKED_KINDS, ids=lambda kind: kind.name)
def test_no_file_a_folder_and_no_text(kind: FileKind, tmp_path: pathlib.Path) -> None:
    path = tmp_path / kind.name
    if kind.name != "packed.json":  # which compresses an existing file
        assert "there is no " in read_error(kind, path)
        path.mkdir()
        assert "cannot be read (Is a directory)" in read_error(kind, path)
        path.rmdir()
    path.write_bytes(b"\xff\xfe\xfa\xfb\xfc")
    read_error(kind, path)
    path.write_bytes(b"")
    read_error(kind, path)


@pytest.mark.parametrize("name", ["nul\0.json", "x" * 5000, "it's " * 300])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(InputError) as caught:
        read_json(name, "plan file")
    assert not sentence_problem(str(caught.value), name.encode())


@pytest.mark.parametrize("kind", CHECKED_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "content",
    [b"[" * 5000, b"{" * 5000, b'{"a":' * 5000, b"- " * 5000, b"? " * 5000, b"[{" * 40 + b"}]" * 40,
     b"9" * 20_000, b"0x" + b"f" * 20_000, b"1:" * 5000 + b"1", BOMB.encode(), MERGES.encode()],
    ids=lambda content: content[:4],
)  # fmt: skip
@pytest.mark.usefixtures("cpu_limit")
def test_bombs(kind: FileKind, content: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / kind.name
    path.write_bytes(content)
    assert check_file(kind, path, content) == ("refused", "")


def test_a_file_that_unpacks_to_much(tmp_path: pathlib.Path) -> None:
    import gzip

    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(130):
            file.write(b" " * 2**20)
    with pytest.raises(InputError, match="it has more than 134,217,728 bytes"):
        read_json(path, "trace")


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=str)
def test_every_time_of_a_profile_is_one(bad: Any, tmp_path: pathlib.Path) -> None:
    kind = FILE_KINDS["profile.json"]
    data = json.loads(kind.seeds[0])
    for name in data["seconds"]:
        path = tmp_path / "profile.json"
        path.write_text(json.dumps({**data, "seconds": {**data["seconds"], name: bad}}))
        read_error(kind, path)


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"raddle-profile": 2}', '{"raddle-profile": 2, "seconds": [], "blocks": null}',
     '{"raddle-profile": true, "seconds": {}}', '{"raddle-profile": 1, "seconds": {}}',
     '{"raddle-profile": 2, "seconds": {}}', '{"raddle-profile": 2, "seconds": {}, "blocks": []}'],
)  # fmt: skip
def test_no_profiles(text: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InputError, match=r"p\.json' is "):
        load_profile(tmp_path / "p.json")


# Numbers that the report page or a comparison uses; the others in these files are not checked.
CHECKED_NUMBERS = {
    "run.json": {"step_ms", "fastest_ms", "slowest_ms", "samples_per_s", "steps", "warmup", "threads"},
    "trace.json": {"ts", "dur", "pid", "tid", "step", "micro-batch", "bytes"},
    "plan.json": {"devices", "microbatches", "steps", "batch", "raddle", "step_ms"},
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED_NUMBERS)
@given(data=st.data())
def test_every_number_that_is_used_is_checked(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    kind = FILE_KINDS[name]
    content = json.loads(data.draw(st.sampled_from(kind.seeds)))
    used = [
        (held, key) for held, key in places(content)
        if isinstance(held, dict) and key in CHECKED_NUMBERS[name] and held.get("ph") not in ("s", "f")
    ]  # fmt: skip
    held, key = data.draw(st.sampled_from(used))
    valid = (1e308, None, -1) if key == "micro-batch" else (1e308, None)  # -1: in no micro-batch
    held[key] = data.draw(st.sampled_from([bad for bad in BAD_NUMBERS if bad not in valid] + [-2]))
    path = tmp_path_factory.mktemp("x") / kind.name
    path.write_text(json.dumps(content))
    read_error(kind, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ("[NaN]", "it has NaN, which is no number of JSON"),
        ("[-Infinity]", "it has -Infinity"),
        ("[1e400]", "the number 1e400 is too large"),
        (f"[{2**63}]", "is too large"),
        ('"\\ud800"', "half of a character"),
        ("[" * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1), "more than 64 lists and objects"),
        ("[" + ",".join(["1"] * 4_000_002) + "]", "more than 4,000,000 values"),
    ],
    ids=lambda text: text[:12],
)
def test_strict_json(text: str, reason: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_json(path, "file")


def test_a_pair_of_surrogates_is_a_character(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.json").write_text('"\\ud83d\\ude00"')
    assert read_json(tmp_path / "x.json", "file") == "😀"


@given(st.text() | st.text(alphabet="'\"x \n\0\x1b", min_size=300, max_size=2000))
def test_messages_are_one_short_line(text: str) -> None:
    said = str(InputError(f"there is no {quote(text)}: name another."))
    assert said.isprintable()
    assert said.startswith("there is no '")
    assert said.endswith("name another.")
    assert len(shorten(text)) <= MAX_QUOTED
    if text.isprintable():
        assert not sentence_problem(said, text.encode("utf-8", "replace"))


def test_a_sample_of_damaged_files(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as `make fuzz` with 100,000 files; at least a third of the files are still parsable."""
    failed, parsed, files = fuzz(420, seed=2)
    assert not failed, capsys.readouterr().out
    assert 3 * parsed >= files
    assert "plan.json" in capsys.readouterr().out


def test_the_table_of_counts() -> None:
    from collections import Counter

    counts = Counter(
        {("plan.json", "valid"): 3, ("plan.json", "failed"): 1, ("run.json", "refused"): 2}
    )
    assert [line.split() for line in table(counts, Counter({"plan.json": 2})).splitlines()] == [
        ["kind", "files", "valid", "refused", "ignored", "failed", "parse"],
        ["plan.json", "4", "3", "0", "0", "1", "2"],
        ["run.json", "2", "0", "2", "0", "0", "0"],
        ["all", "6", "3", "2", "0", "1", "2"],
    ]
