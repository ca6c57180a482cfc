"""Names of dimensions: one letter each, inherited from operator to operator so that `n/4` means the
same everywhere."""

from __future__ import annotations

from collections.abc import Iterable

ALPHABET = "tsabdefgijlmopqruvxyzhwcnk"
INPUT_LETTERS = {0: "", 1: "n", 2: "nt", 3: "ntc", 4: "nchw", 5: "ncdhw"}


def unused_letter(taken: Iterable[str]) -> str:
    """A letter that is not taken."""
    used = {t.lower() for t in taken}
    return next(letter for letter in ALPHABET if letter not in used)


def unique(letters: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The same letters, those that repeat (or are taken) replaced by fresh ones."""
    used = {t.lower() for t in taken}
    result: list[str] = []
    wanted = list(letters)
    for letter in wanted:
        choice = unused_letter([*used, *wanted]) if letter.lower() in used else letter
        used.add(choice.lower())
        result.append(choice)
    return result


def input_letters(rank: int, floating: bool) -> str:
    """Letters of a graph input: its first dimension holds the samples. `numbers`: not words or classes."""
    if rank == 2 and floating:
        return "nc"
    if rank == 3 and not floating:
        return "nhw"  # a class for every pixel
    return (
        INPUT_LETTERS[rank]
        if rank in INPUT_LETTERS
        else "n" + "".join(unique(ALPHABET[: rank - 1], "n"))
    )
