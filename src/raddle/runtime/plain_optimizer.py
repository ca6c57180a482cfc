"""Converts optimizer states between parameter names and the numbers that a plain optimizer has.

In the `state_dict()` of torch.optim, parameters have numbers in the order of the groups; a group may also
have their names, in "param_names".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raddle.errors import InputError


def by_number(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state with numbers for names, as `load_state_dict` of a plain optimizer takes it."""
    names = [name for group in state["param_groups"] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    groups = [
        {**group, "params": [numbers[n] for n in group["params"]], "param_names": group["params"]}
        for group in state["param_groups"]
    ]
    # torch.optim has no entry for a parameter that was never updated
    entries = {numbers[name]: entry for name, entry in state["state"].items() if entry}
    return {"state": entries, "param_groups": groups}


def by_name(state: Mapping[str, Any], group_names: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns a plain optimizer's state with names; group_names: used where the groups have none."""
    if "state" not in state or "param_groups" not in state:
        return dict(state)
    groups, names = [], dict[Any, str]()
    for index, group in enumerate(state["param_groups"]):
        expected = group_names[index] if index < len(group_names) else ()
        given = group.get("param_names", expected)
        if len(given) != len(group["params"]):
            raise InputError(
                f"group {index} of the optimizer's state has {len(group['params'])} parameters, this "
                f"optimizer's has {len(expected)}: make the same groups, or make it of named_parameters()."
            )
        names.update(zip(group["params"], given, strict=True))
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        groups.append({**options, "params": list(given)})
    trained = {name for group in group_names for name in group}
    entries = {name: dict(state["state"].get(number, {})) for number, name in names.items()}
    # A plain optimizer may have frozen parameters, which have no entries.
    kept = {name: entry for name, entry in entries.items() if entry or name in trained}
    return {"state": kept, "param_groups": groups}
