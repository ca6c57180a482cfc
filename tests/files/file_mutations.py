"""Makes damaged files from good ones: changes of the data, which still can be parsed, or of the bytes."""

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
    """The places of all values inside some data."""
    all_places: list[Place] = []
    todo = [data]
    while todo:
        container = todo.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            all_places.append((container, key))
            if isinstance(container[key], dict | list):
                todo.append(container[key])
    return all_places


def damage_data(data: Any, rng: random.Random) -> Any:
    """The data with one to three random changes."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        all_places = places(data) if isinstance(data, dict | list) else []
        if not all_places or rng.random() < 0.01:
            return copy.deepcopy(rng.choice(STRANGE))
        container, key = rng.choice(all_places)
        rng.choice(CHANGES)(container, key, rng, all_places)
    return data


def _replace(container: Any, key: Any, rng: random.Random, all_places: list[Place]) -> None:
    container[key] = copy.deepcopy(rng.choice(STRANGE))


def _delete(container: Any, key: Any, rng: random.Random, all_places: list[Place]) -> None:
    del container[key]


def _repeat(container: Any, key: Any, rng: random.Random, all_places: list[Place]) -> None:
    if isinstance(container, list):
        container.insert(rng.randint(0, len(container)), copy.deepcopy(container[key]))
    else:
        container[f"{key} again"] = copy.deepcopy(container[key])


def _rename(container: Any, key: Any, rng: random.Random, all_places: list[Place]) -> None:
    if isinstance(container, dict):
        strange = [s for s in STRANGE if isinstance(s, str)]
        container[rng.choice([*strange, f"{key}x", str(key)[:-1]])] = container.pop(key)


def _copy(container: Any, key: Any, rng: random.Random, all_places: list[Place]) -> None:
    other, place = rng.choice(all_places)
    container[key] = copy.deepcopy(other[place])


def _wrap(container: Any, key: Any, rng: random.Random, all_places: list[Place]) -> None:
    container[key] = rng.choice([[container[key]], {"x": container[key]}, str(container[key])])


def _nudge(container: Any, key: Any, rng: random.Random, all_places: list[Place]) -> None:
    """Changes a number slightly or strongly, or its type; changes characters of a text."""
    value = container[key]
    if isinstance(value, str):
        container[key] = damage_text(value, rng)
    elif isinstance(value, int | float):
        if abs(value) >= 1e300:  # arithmetic would overflow
            container[key] = rng.choice([-value, str(value)])
            return
        third = value // 3 if isinstance(value, int) else value / 3
        near = [value + 1, value - 1, value + 0.5]
        container[key] = rng.choice([*near, -value, value * 2, value * 10**6, third, str(value)])


CHANGES: list[Callable[[Any, Any, random.Random, list[Place]], None]] = [
    _replace, _replace, _delete, _repeat, _rename, _copy, _wrap, _nudge, _nudge, _nudge,
]  # fmt: skip


def damage_text(text: str, rng: random.Random) -> str:
    """The text with a word or some characters removed, repeated, replaced or inserted."""
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


# YAML whose aliases stand for 9**12 values.
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
    """The bytes with one to three random changes; other: a file of another kind."""
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


def damage_file(content: bytes, form: str, other: bytes, rng: random.Random) -> bytes:
    """The content of a file of the form `json`, `yaml` or `text` with random changes."""
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
