"""Reads damaged files of every kind under limits: python tests/files/fuzz_files.py --files 100000

Each file is a good one with a few random changes. raddle must read it as a valid object or refuse it with
one sentence, within 2 s of CPU and 500 MB. Forked workers read many files each. If a worker dies, the file
that it was reading counts as failed. File number N of a seed is always the same.
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

from file_kinds import FILE_KINDS, FileKind
from file_mutations import damage_file

from raddle.errors import MAX_QUOTED, MAX_SENTENCE, InputError

SECONDS = 2.0  # of CPU time for one file
MEMORY_GROWTH = 500 * 2**20  # bytes that a worker may allocate
FILES_PER_WORKER = 1000
OUTCOMES = ("valid", "refused", "ignored", "failed")


class ReadResult(NamedTuple):
    """The result of reading one damaged file."""

    number: int
    kind: str
    outcome: str  # one of OUTCOMES
    parsed: bool = False  # whether it is still JSON or YAML
    reason: str = ""  # of a failure


class TooSlow(BaseException):
    """Reading a file took more than SECONDS of CPU time."""


def damaged_content(number: int, seed: int, kinds: list[FileKind]) -> tuple[FileKind, bytes]:
    rng = random.Random(f"{seed} {number}")
    kind, other = kinds[number % len(kinds)], rng.choice(kinds)
    good = rng.choice(kind.seeds)
    return kind, damage_file(good, kind.form, rng.choice(other.seeds), rng)


def read_damaged_file(
    number: int, seed: int, kinds: list[FileKind], folder: pathlib.Path
) -> ReadResult:
    kind, content = damaged_content(number, seed, kinds)
    path = folder / kind.name
    path.write_bytes(content)
    outcome, reason = check_file(kind, path, content)
    return ReadResult(number, kind.name, outcome, is_parsable(kind, content), reason)


def check_file(kind: FileKind, path: pathlib.Path, content: bytes) -> tuple[str, str]:
    """Reads a file; returns the outcome and, if it failed, the reason."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime)
    # The timer raises TooSlow in Python code. If C code hangs, the limit ends the worker.
    before = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu + 5, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of an overflow
            result = kind.read(path)
        return ("ignored" if result is None else "valid"), ""
    except InputError as error:
        wrong = sentence_problem(str(error), content)
        return ("failed", f"{wrong}: {error}") if wrong else ("refused", "")
    except (Exception, TooSlow):
        lines = [line[:300] for line in traceback.format_exc().splitlines()]
        return "failed", "\n".join(lines[-7:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_CPU, before)  # other tests run in this process


def sentence_problem(text: str, content: bytes) -> str:
    """Why a message is not one short sentence with short quotations; "" if it is."""
    if not text.isprintable() or not text.endswith((".", "?")) or len(text) > MAX_SENTENCE:
        return "no sentence"
    given = content.decode("utf-8", "replace")
    cuts = range(len(text) - MAX_QUOTED)
    if any(text[at : at + MAX_QUOTED + 1] in given for at in cuts):
        return f"more than {MAX_QUOTED} characters are quoted"
    return ""


def is_parsable(kind: FileKind, content: bytes) -> bool:
    """Whether the libraries can read it as JSON or YAML; long files, which take long, do not count."""
    if kind.form == "text" or len(content) > 4000:
        return False
    try:
        text = content.decode()
        json.loads(text) if kind.form == "json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError, LookupError, AttributeError, TypeError):
        return False
    return True


# -- workers -----------------------------------------------------------------------------------------


def run_worker(numbers: range, seed: int, kinds: list[FileKind], results_fd: int) -> None:
    """Reads files in a worker process, and writes a ReadResult for each."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    max_memory = pages * resource.getpagesize() + MEMORY_GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGPROF, _raise_slow)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="raddle-fuzz-"))
    with os.fdopen(results_fd, "wb") as results:
        for number in numbers:
            results.write(pickle.dumps(read_damaged_file(number, seed, kinds, folder)))
            results.flush()
    shutil.rmtree(folder, ignore_errors=True)


def _raise_slow(*_: Any) -> None:
    raise TooSlow(f"more than {SECONDS} s of CPU")


def read_files(numbers: range, seed: int, kinds: list[FileKind]) -> Iterator[ReadResult]:
    """Reads all files, by one worker after another."""
    begin = numbers.start
    while begin < numbers.stop:
        worker_numbers = range(begin, min(begin + FILES_PER_WORKER, numbers.stop))
        for read in _read_in_worker(worker_numbers, seed, kinds):
            yield read
            begin = read.number + 1


def _read_in_worker(numbers: range, seed: int, kinds: list[FileKind]) -> Iterator[ReadResult]:
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            run_worker(numbers, seed, kinds, write_end)
            os._exit(0)
        except BaseException:  # a mistake in this script
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write_end)
    last = numbers.start - 1
    with os.fdopen(read_end, "rb") as file:
        while True:
            try:
                read: ReadResult = pickle.load(file)
            except EOFError:
                break
            last = read.number
            yield read
    _, status = os.waitpid(child, 0)
    if last + 1 < numbers.stop:
        kind = kinds[(last + 1) % len(kinds)]
        yield ReadResult(
            last + 1, kind.name, "failed", False, f"the worker ended with status {status}"
        )


# -- the table ---------------------------------------------------------------------------------------


def table(counts: Counter[tuple[str, str]], parsed: Counter[str]) -> str:
    columns = ["files", *OUTCOMES, "parse"]
    lines = [f"{'kind':14}" + "".join(f"{name:>9}" for name in columns)]
    kinds = list(dict.fromkeys(kind for kind, _ in counts))
    for name in [*kinds, "all"]:
        shown_kinds = kinds if name == "all" else [name]
        numbers = [sum(counts[kind, outcome] for kind in shown_kinds) for outcome in OUTCOMES]
        row = [sum(numbers), *numbers, sum(parsed[kind] for kind in shown_kinds)]
        lines.append(f"{name:14}" + "".join(f"{number:9,}" for number in row))
    return "\n".join(lines)


def fuzz(
    files: int, seed: int, names: Sequence[str] = (), shown: int = 20, first: int = 0
) -> tuple[int, int, int]:
    """Prints failures and a table of counts; returns the numbers of failures, parsable files and files."""
    kinds = [kind for kind in FILE_KINDS.values() if not names or kind.name in names]
    counts: Counter[tuple[str, str]] = Counter()
    parsed: Counter[str] = Counter()
    seen: Counter[tuple[str, str]] = Counter()  # similar failures are shown once
    with suppress(KeyboardInterrupt):  # the files read until then are counted
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
    parser.add_argument("--kind", action="append", default=[], choices=list(FILE_KINDS))
    parser.add_argument("--shown", type=int, default=20, help="failures that are shown")
    given = parser.parse_args()
    failed, parsed, files = fuzz(given.files, given.seed, given.kind, given.shown, given.first)
    print(f"{failed} of {files:,} files failed, {parsed:,} parse as JSON or YAML")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
