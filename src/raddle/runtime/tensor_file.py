"""Writes and reads tensors in the format of safetensors: a JSON header, then the bytes of each tensor.

A file has no code, so reading it executes nothing. The format: 8 bytes with the length of the header, the
header {name: {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}, and the data. Complex
tensors are written as pairs of real numbers; the metadata names them.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from raddle.errors import InputError, quote
from raddle.files import open_to_read, parse_json, replace_atomically

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
COMPLEX = "raddle.complex"  # key of the metadata: the names of complex tensors, as a JSON list
MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
METADATA = "__metadata__"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes tensors to a file, which is replaced only when the new one is complete."""
    complex_names = [name for name, tensor in tensors.items() if tensor.is_complex()]
    real = {n: torch.view_as_real(t) if t.is_complex() else t for n, t in tensors.items()}
    header: dict[str, Any] = {METADATA: {**metadata, COMPLEX: json.dumps(complex_names)}}
    offset = 0
    for name, tensor in real.items():
        if tensor.dtype not in NAMES:
            raise InputError(
                f"'{name}' is {tensor.dtype}, which a checkpoint cannot hold: convert it to another dtype."
            )
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end],
        }  # fmt: skip
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8 bytes
    with replace_atomically(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in real.values():
            file.write(_bytes_of(tensor))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors of a file, on the CPU, and its metadata. Raises InputError if it is damaged."""
    with open_to_read(path, "checkpoint", missing_hint="name the folder of trainer.save") as file:
        header, start = _read_header(file, path)
        metadata = header.pop(METADATA, {})
        size = os.fstat(file.fileno()).st_size - start
        tensors = {name: _read(file, path, name, e, start, size) for name, e in header.items()}
    for name in _names(path, metadata):
        if name not in tensors or tensors[name].shape[-1:] != (2,):
            raise _damaged(path, f"it has no complex tensor {quote(name)}")
        tensors[name] = torch.view_as_complex(tensors[name])
    return tensors, metadata


def _bytes_of(tensor: Tensor) -> bytearray:
    """Returns the bytes of a tensor; not by numpy, which may not be installed."""
    assert sys.byteorder == "little", "torch runs on little-endian machines"
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    buffer = bytearray(flat.numel())
    if buffer:
        torch.frombuffer(buffer, dtype=torch.uint8).copy_(flat)
    return buffer


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """Returns the header, and the position where the data begins."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= MAX_HEADER:
        raise _damaged(path, f"its header has {length} bytes")
    text = file.read(length)
    try:
        header = parse_json(text)
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    if len(text) != length or not isinstance(header, dict):
        raise _damaged(path, "its header is not complete")
    metadata = header.get(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "its metadata is no object of texts")
    return header, 8 + length


def _read(file: BinaryIO, path: Path, name: str, entry: Any, start: int, size: int) -> Tensor:
    """Returns one tensor. entry: of the header; start, size: where the data begins, and how long it is."""
    entry = entry if isinstance(entry, dict) else {}
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    dtype = DTYPES.get(str(entry.get("dtype")))
    if dtype is None or not _is_list_of_sizes(shape) or not _is_list_of_sizes(offsets):
        raise _damaged(path, f"{quote(name)} has no dtype, shape and offsets")
    assert isinstance(shape, list)
    assert isinstance(offsets, list)
    nbytes = math.prod(shape) * dtype.itemsize
    if len(offsets) != 2 or offsets[1] - offsets[0] != nbytes or offsets[1] > size:
        raise _damaged(path, f"{quote(name)} does not have {nbytes} bytes")
    if not nbytes:
        return torch.empty(shape, dtype=dtype)
    buffer = bytearray(nbytes)
    file.seek(start + offsets[0])
    if file.readinto(buffer) != nbytes:  # type: ignore[attr-defined]
        raise _damaged(path, f"{quote(name)} ends early")
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


def _names(path: Path, metadata: Mapping[str, str]) -> list[str]:
    """Returns the names of the complex tensors."""
    try:
        names = parse_json(metadata.get(COMPLEX, "[]"))
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _damaged(path, "its list of complex tensors is none")
    return names


def _is_list_of_sizes(data: Any) -> bool:
    return isinstance(data, list) and all(type(n) is int and n >= 0 for n in data)


def _damaged(path: Path, problem: str) -> InputError:
    return InputError(f"{quote(path)} is no checkpoint that can be read: {problem}; save it again.")
