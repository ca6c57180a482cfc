"""Tensors are written and read in the format of safetensors, exactly; damaged files are one sentence."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raddle.errors import InputError
from raddle.runtime.tensor_file import DTYPES, read_tensors, write_tensors

SHAPES = st.lists(st.integers(0, 3), max_size=3)
ALL_DTYPES = [*DTYPES.values(), torch.complex64, torch.complex128]


@given(st.dictionaries(st.text(min_size=1), st.tuples(SHAPES, st.sampled_from(ALL_DTYPES))))
def test_reads_what_it_wrote(tmp_path_factory: pytest.TempPathFactory, described: dict) -> None:
    path = tmp_path_factory.mktemp("tensors") / "file"
    tensors = {n: (torch.rand(s) * 3).to(dtype) for n, (s, dtype) in described.items()}
    tensors.pop("__metadata__", None)
    write_tensors(path, tensors, {"key": "text"})
    read, metadata = read_tensors(path)
    assert metadata["key"] == "text"
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_the_library_reads_the_file_and_is_read(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.randn(3, 2).T, "b": torch.arange(4), "c": torch.tensor(2.0).bfloat16()}
    write_tensors(tmp_path / "ours", tensors, {})
    library.save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "theirs")
    for read in (library.load_file(tmp_path / "ours"), read_tensors(tmp_path / "theirs")[0]):
        assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


@given(st.data())
def test_a_damaged_file_is_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("tensors") / "file"
    write_tensors(path, {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(1 + 2j)}, {})
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    for _ in range(data.draw(st.integers(1, 3))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(InputError):  # or the damage does not show
        read_tensors(path)


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'a' is torch.float8_e4m3fn, which a checkpoint cannot"):
        write_tensors(tmp_path / "x", {"a": torch.zeros(2, dtype=torch.float8_e4m3fn)}, {})
    assert not (tmp_path / "x").exists()
