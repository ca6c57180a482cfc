"""Damaged files, made of good ones: changes of the data, which still parse, and changes of the bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import yaml

DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]

STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, -0.5, 0.5, 1e-308, 1e308, -1e308, 2**31, 2**53, 2**63, -(2**63),
    10**400, float("nan"), float("inf"), -float("inf"), "", " ", "x", "0", "-1", "NaN", "1e999", "0x10",
    "x" * 300, "it's " * 80, "a 'quoted' \"word\" " * 30, "\n", "a\nb\r\nc", "\0", "\x1b[31m", "\u2028",
    "\ud800", "é" * 250, "../../x", "%s{}%d{0}", "@0", "@0-65535", "n/2 @0-1", "x9 @0-8", "[0:1 0:1]@0",
    "p3:slice=1", "ps:ssp=99999999999", "server:7", "threaded:9999", "gpipe", "F0 B0", "F999999999 B0",
    "1 TB/s", "-5 us", "²", [], {}, [[]], [{}], {"": 1},
    [0] * 1000, list(range(50)), [None], ["x"], [-1], {"a": {"b": []}}, DEEP,
]  # fmt: skip

Place = tuple[Any, Any]  # a list or an object, and an index or a key of it


def places(data: Any) -> list[Place]:
    """Every value of some data but the whole."""
    found: list[Place] = []
    todo = [data]
    while todo:
        held = todo.pop()
        keys = list(held) if isinstance(held, dict) else range(len(held))
        for key in keys:
            found.append((held, key))
            if isinstance(held[key], dict | list):
                todo.append(held[key])
    return found


def damage_data(data: Any, rng: random.Random) -> Any:
    """One to three changes of the data."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = places(data) if isinstance(data, dict | list) else []
        if not found or rng.random() < 0.01:
            return copy.deepcopy(rng.choice(STRANGE))
        held, key = rng.choice(found)
        rng.choice(CHANGES)(held, key, rng, found)
    return data


def _replace(held: Any, key: Any, rng: random.Random, found: list[Place]) -> None:
    held[key] = copy.deepcopy(rng.choice(STRANGE))


def _delete(held: Any, key: Any, rng: random.Random, found: list[Place]) -> None:
    del held[key]


def _repeat(held: Any, key: Any, rng: random.Random, found: list[Place]) -> None:
    if isinstance(held, list):
        held.insert(rng.randint(0, len(held)), copy.deepcopy(held[key]))
    else:
        held[f"{key} again"] = copy.deepcopy(held[key])


def _rename(held: Any, key: Any, rng: random.Random, found: list[Place]) -> None:
    if isinstance(held, dict):
        strange = [s for s in STRANGE if isinstance(s, str)]
        held[rng.choice([*strange, f"{key}x", str(key)[:-1]])] = held.pop(key)


def _copy(held: Any, key: Any, rng: random.Random, found: list[Place]) -> None:
    other, place = rng.choice(found)
    held[key] = copy.deepcopy(other[place])


def _wrap(held: Any, key: Any, rng: random.Random, found: list[Place]) -> None:
    held[key] = rng.choice([[held[key]], {"x": held[key]}, str(held[key])])


def _nudge(held: Any, key: Any, rng: random.Random, found: list[Place]) -> None:
    """A number a little or much larger, or of another kind; a text with other characters."""
    value = held[key]
    if isinstance(value, str):
        held[key] = damage_text(value, rng)
    elif isinstance(value, int | float):
        if abs(value) >= 1e300:  # arithmetic would overflow, and not be a number
            held[key] = rng.choice([-value, str(value)])
            return
        third = value // 3 if isinstance(value, int) else value / 3
        near = [value + 1, value - 1, value + 0.5]
        held[key] = rng.choice([*near, -value, value * 2, value * 10**6, third, str(value)])


CHANGES: list[Callable[[Any, Any, random.Random, list[Place]], None]] = [
    _replace, _replace, _delete, _repeat, _rename, _copy, _wrap, _nudge, _nudge, _nudge,
]  # fmt: skip


def damage_text(text: str, rng: random.Random) -> str:
    """A word or some characters removed, repeated, exchanged or inserted."""
    words = text.split(" ")
    at = rng.randrange(len(words))
    change = rng.randrange(5)
    if change == 0:
        del words[at]
    elif change == 1:
        words.insert(at, rng.choice(words))
    elif change == 2:
        words[at] = str(rng.choice(STRANGE[:60]))
    elif change == 3:
        words[at] = words[at][: rng.randint(0, len(words[at]))]
    else:
        place = rng.randint(0, len(words[at]))
        words[at] = words[at][:place] + rng.choice("0129-.:@/x,()[]{}FBW \n'#%") + words[at][place:]
    return " ".join(words)


BOMB = "".join(
    f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9 if i else ['x'] * 9)}]\n" for i in range(12)
)
MERGES = "m0: &m0 {x: 1}\n" + "".join(
    f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}], y{i}: 1}}\n" for i in range(1, 40)
)
INSERTED = [
    b"[" * 5000, b"{" * 5000, b'{"a":' * 3000, b"- " * 5000, b"9" * 5000, b"-", b"NaN", b"Infinity",
    b"1e999", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"'", b",", b":", b"]", b"}", b"\n", b"\r\n",
    b"\t", b"\\ud800", b"&a *a", b"<<: *a", b"!!python/object:os.system x", b"!!int ''", b"!!timestamp x",
    b"2020-13-45", b"? ", b"%", b"# ", b"---\n", BOMB.encode(), MERGES.encode(),
    b"0x" + b"f" * 5000, b"1:" * 3000 + b"1", b" " * 5000, b"x" * 5000,
]  # fmt: skip


def damage_bytes(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """One to three changes of the bytes; `other` is a file of another kind."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        a, b = sorted(rng.randint(0, len(content)) for _ in range(2))
        near = min(len(content), a + rng.randint(1, 8))
        change = rng.randrange(8)
        if change == 0:
            content = content[:a]
        elif change == 1:
            content = content[:a] + content[near:]
        elif change == 2:
            content = content[:a] + rng.randbytes(near - a) + content[near:]
        elif change == 3:
            content = content[:a] + rng.choice(INSERTED) + content[a:]
        elif change == 4:
            content = content[:b] + content[a:b] + content[b:]
        elif change == 5:
            content = content[:a] + other[: rng.randint(0, len(other))] + content[a:]
        elif change == 6:
            content = (
                content[:a]
                + bytes(rng.choices(b'0123456789-.eE[]{},:" \n', k=near - a))
                + content[near:]
            )
        else:
            content = content[:a] + content[b:]
    return content


def damaged(content: bytes, form: str, other: bytes, rng: random.Random) -> bytes:
    """A file of the form `json`, `yaml` or `text` with some changes."""
    if form == "text":
        if rng.random() < 0.6:
            text = content.decode()
            for _ in range(rng.choice([1, 1, 2, 3])):
                lines = text.split("\n")
                at = rng.randrange(len(lines))
                lines[at] = damage_text(lines[at], rng)
                text = "\n".join(lines)
            return text.encode("utf-8", "surrogatepass")
        return damage_bytes(content, other, rng)
    if rng.random() < 0.7:
        if form == "json":
            return json.dumps(damage_data(json.loads(content), rng)).encode()
        data = damage_data(yaml.safe_load(content), rng)
        return yaml.safe_dump(data, default_flow_style=rng.choice([None, True])).encode(
            "utf-8", "surrogatepass"
        )
    return damage_bytes(content, other, rng)
