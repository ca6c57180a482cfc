"""The letters that name dimensions. An operator passes the letters of its inputs on to its outputs.

So `n/4` in a plan (split dimension n into 4 parts) means the same dimension for every operator. A dimension
that cannot be split has a capital letter; no two dimensions of an operator have the same letter, whatever
its case.
"""

from __future__ import annotations

from collections.abc import Iterable

# In the order in which unused letters are taken: the letters with a usual meaning (h w c n k) come last.
ALPHABET = "tsabdefgijlmopqruvxyzhwcnk"
# The letters of an input of the graph, by its number of dimensions; see `input_letters`.
INPUT_LETTERS = {0: "", 1: "n", 2: "nt", 3: "ntc", 4: "nchw", 5: "ncdhw"}


def unused_letter(taken: Iterable[str]) -> str:
    """Returns the first letter that is not taken."""
    used = {t.lower() for t in taken}
    return next(letter for letter in ALPHABET if letter not in used)


def unique(letters: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Returns the letters, with unused ones in place of those that repeat or are taken."""
    used = {t.lower() for t in taken}
    result: list[str] = []
    wanted = list(letters)
    for letter in wanted:
        choice = unused_letter([*used, *wanted]) if letter.lower() in used else letter
        used.add(choice.lower())
        result.append(choice)
    return result


def input_letters(rank: int, floating: bool) -> str:
    """Returns the letters of a graph input; its first dimension is the samples.

    floating: whether it has floating-point numbers; else it has indices, such as tokens or classes.
    """
    if rank == 2 and floating:
        return "nc"
    if rank == 3 and not floating:
        return "nhw"  # one class for every pixel
    return (
        INPUT_LETTERS[rank]
        if rank in INPUT_LETTERS
        else "n" + "".join(unique(ALPHABET[: rank - 1], "n"))
    )
