"""Damaged files of every kind, each read under limits: python tests/files/fuzz_files.py --files 100000

Each file is a good one with a few changes. It has to become a valid object or to be refused with one
sentence, within 2 s of CPU and 500 MB. Workers are forked, and read many files each; what ends a worker
counts for the file that it was reading. File number N of a seed is always the same.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from file_kinds import KINDS, Kind
from file_mutations import damaged

from raddle.errors import MOST_QUOTED, MOST_SAID, InputError

SECONDS = 2.0  # of CPU
GROWTH = 500 * 2**20  # bytes of memory
BATCH = 1000  # files that a worker reads
OUTCOMES = ("valid", "refused", "ignored", "failed")


class Read(NamedTuple):
    """What became of a file; `parsed` says whether it is JSON or YAML at all."""

    number: int
    kind: str
    outcome: str
    parsed: bool = False
    reason: str = ""


class Slow(BaseException):
    """More than two seconds of CPU."""


def content_of(number: int, seed: int, kinds: list[Kind]) -> tuple[Kind, bytes]:
    rng = random.Random(f"{seed} {number}")
    kind, other = kinds[number % len(kinds)], rng.choice(kinds)
    good = rng.choice(kind.seeds)
    return kind, damaged(good, kind.form, rng.choice(other.seeds), rng)


def read_one(number: int, seed: int, kinds: list[Kind], folder: pathlib.Path) -> Read:
    kind, content = content_of(number, seed, kinds)
    path = folder / kind.name
    path.write_bytes(content)
    outcome, reason = outcome_of(kind, path, content)
    return Read(number, kind.name, outcome, parses(kind, content), reason)


def outcome_of(kind: Kind, path: pathlib.Path, content: bytes) -> tuple[str, str]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime)
    # The timer raises in Python; what hangs in C is ended by the limit, and the worker with it.
    before = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu + 5, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an overflow is a wrong number
            found = kind.read(path)
        return ("ignored" if found is None else "valid"), ""
    except InputError as error:
        wrong = is_no_sentence(str(error), content)
        return ("failed", f"{wrong}: {error}") if wrong else ("refused", "")
    except (Exception, Slow):
        lines = [line[:300] for line in traceback.format_exc().splitlines()]
        return "failed", "\n".join(lines[-7:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_CPU, before)  # tests go on in this process


def is_no_sentence(text: str, content: bytes) -> str:
    """Why a message is not one sentence that quotes little."""
    if not text.isprintable() or not text.endswith((".", "?")) or len(text) > MOST_SAID:
        return "no sentence"
    given = content.decode("utf-8", "replace")
    cuts = range(len(text) - MOST_QUOTED)
    if any(text[at : at + MOST_QUOTED + 1] in given for at in cuts):
        return f"more than {MOST_QUOTED} characters are quoted"
    return ""


def parses(kind: Kind, content: bytes) -> bool:
    """As JSON or YAML, by the libraries' own readers; YAML that takes long does not count."""
    if kind.form == "text" or len(content) > 4000:
        return False
    try:
        text = content.decode()
        json.loads(text) if kind.form == "json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError, LookupError, AttributeError, TypeError):
        return False
    return True


# -- workers -----------------------------------------------------------------------------------------


def work(numbers: range, seed: int, kinds: list[Kind], out: int) -> None:
    """Reads files in a process of its own, and writes what became of each."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGPROF, _raise_slow)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="raddle-fuzz-"))
    with os.fdopen(out, "wb") as told:
        for number in numbers:
            told.write(pickle.dumps(read_one(number, seed, kinds, folder)))
            told.flush()
    shutil.rmtree(folder, ignore_errors=True)


def _raise_slow(*_: Any) -> None:
    raise Slow(f"more than {SECONDS} s of CPU")


def read_files(numbers: range, seed: int, kinds: list[Kind]) -> Iterator[Read]:
    """All files, by one worker after the other."""
    begin = numbers.start
    while begin < numbers.stop:
        own = range(begin, min(begin + BATCH, numbers.stop))
        for read in _by_worker(own, seed, kinds):
            yield read
            begin = read.number + 1


def _by_worker(numbers: range, seed: int, kinds: list[Kind]) -> Iterator[Read]:
    out, told = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(out)
        try:
            work(numbers, seed, kinds, told)
            os._exit(0)
        except BaseException:  # a mistake of this script
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(told)
    last = numbers.start - 1
    with os.fdopen(out, "rb") as file:
        while True:
            try:
                read: Read = pickle.load(file)
            except EOFError:
                break
            last = read.number
            yield read
    _, status = os.waitpid(child, 0)
    if last + 1 < numbers.stop:
        kind = kinds[(last + 1) % len(kinds)]
        yield Read(last + 1, kind.name, "failed", False, f"the worker ended with status {status}")


# -- the table ---------------------------------------------------------------------------------------


def table(counts: Counter[tuple[str, str]], parsed: Counter[str]) -> str:
    columns = ["files", *OUTCOMES, "parse"]
    lines = [f"{'kind':14}" + "".join(f"{name:>9}" for name in columns)]
    kinds = list(dict.fromkeys(kind for kind, _ in counts))
    for name in [*kinds, "all"]:
        own = kinds if name == "all" else [name]
        numbers = [sum(counts[kind, outcome] for kind in own) for outcome in OUTCOMES]
        row = [sum(numbers), *numbers, sum(parsed[kind] for kind in own)]
        lines.append(f"{name:14}" + "".join(f"{number:9,}" for number in row))
    return "\n".join(lines)


def fuzz(
    files: int, seed: int, names: Sequence[str] = (), shown: int = 20, first: int = 0
) -> tuple[int, int, int]:
    """Prints counts by kind and outcome, and failures. How many failed, how many parse, and all."""
    kinds = [kind for kind in KINDS.values() if not names or kind.name in names]
    counts: Counter[tuple[str, str]] = Counter()
    parsed: Counter[str] = Counter()
    seen: Counter[tuple[str, str]] = Counter()  # failures that look alike are shown once
    with suppress(KeyboardInterrupt):  # what has been read until then is counted
        for read in read_files(range(first, first + files), seed, kinds):
            counts[read.kind, read.outcome] += 1
            parsed[read.kind] += read.parsed
            if read.outcome == "failed":
                alike = read.kind, read.reason.strip().rpartition("\n")[2][:40]
                seen[alike] += 1
                if seen[alike] == 1 and len(seen) <= shown:
                    print(
                        f"-- file {read.number} of seed {seed}, {read.kind}\n{read.reason}",
                        flush=True,
                    )
    print(table(counts, parsed))
    failed = sum(count for (_, outcome), count in counts.items() if outcome == "failed")
    return failed, parsed.total(), counts.total()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", default=[], choices=list(KINDS))
    parser.add_argument("--shown", type=int, default=20, help="failures that are shown")
    given = parser.parse_args()
    failed, parsed, files = fuzz(given.files, given.seed, given.kind, given.shown, given.first)
    print(f"{failed} of {files:,} files failed, {parsed:,} parse as JSON or YAML")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
