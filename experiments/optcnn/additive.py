"""Computes OptCNN's additive cost of a plan from its tables: the sum over layers and over pairs of layers.

Section 4 of arXiv 1802.04924: t_O = Σ (t_C + t_S) + Σ t_X, with a server for each layer's parameters.
t_C is compute, t_S synchronisation, t_X transfer between two layers (searches/optcnn/tables.py).

A configuration has *degrees*: the number of parts of each letter of its group. Tables have, for each group,
its `configurations` (here `options`) and their t_C + t_S in seconds (`nodes`), and for each pair of groups
(source, target) the t_X by the numbers of both configurations (`edges`, with `cost[source's, target's]`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raddle.api.searching import Configuration, Group, Tables


def additive_cost(tables: Tables, chosen: Sequence[Configuration]) -> float:
    """Returns the seconds of a step. chosen: one configuration for each group; only their degrees count."""
    # for each group: the number of its chosen configuration in the tables
    chosen_index = [
        [c.degrees for c in options].index(wanted.degrees)
        for options, wanted in zip(tables.configurations, chosen, strict=True)
    ]
    total = sum(float(node[x]) for node, x in zip(tables.nodes, chosen_index, strict=True))
    return total + sum(
        float(e.cost[chosen_index[e.source], chosen_index[e.target]]) for e in tables.edges
    )


def split_by_letter(tables: Tables, letter_of: Callable[[Group], str]) -> list[Configuration]:
    """Splits every group along one letter only, into as many parts as its table offers.

    letter_of: the letter for a group. Returns the configuration of each group.
    """
    chosen = []
    for group, options in zip(tables.groups, tables.configurations, strict=True):
        candidates = [c for c in options if set(split_letters(group, c)) <= {letter_of(group)}]
        chosen.append(max(candidates, key=lambda c: len(c.devices)))
    return chosen


def baselines(tables: Tables) -> dict[str, list[Configuration]]:
    """Returns the configurations of data and model parallelism, and of 'one weird trick' (owt).

    owt splits fully connected layers by channel, all others by sample.

    A group is a fully connected layer if it has a summed letter (k) and no height (h).
    """
    return {
        "data": split_by_letter(tables, lambda g: "n"),
        "model": split_by_letter(tables, lambda g: "c"),
        "owt": split_by_letter(
            tables, lambda g: "c" if "h" not in g.letters and "k" in g.letters else "n"
        ),
    }


def split_letters(group: Group, configuration: Configuration) -> dict[str, int]:
    """Returns the letters that are split, with their number of parts: {"n": 2, "c": 2}."""
    given = zip(group.letters, configuration.degrees, strict=True)
    return {letter: count for letter, count in given if count > 1}


def configurations_with(
    tables: Tables, wanted: Callable[[Group], Mapping[str, int]]
) -> list[Configuration] | None:
    """Returns, for each group, the configuration with exactly the wanted split; None if a table lacks one.

    wanted: a function that returns, for a group, the number of parts of each letter that is split.
    """
    chosen = []
    for group, options in zip(tables.groups, tables.configurations, strict=True):
        split = dict(wanted(group))
        candidates = [c for c in options if split_letters(group, c) == split]
        if not candidates:
            return None
        chosen.append(candidates[0])
    return chosen
