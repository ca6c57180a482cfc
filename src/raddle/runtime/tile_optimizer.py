"""Makes the optimizer of the parameters that a rank updates, from a function or from a plain optimizer.

A rank has tiles of some parameters. The optimizer gets a pair (name, parameter) for every trained parameter
of the module, so that every rank has the same groups: where the rank has no tile, the parameter is empty.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from raddle.errors import InputError
from raddle.runtime.executor import Executor
from raddle.runtime.setup import Setup

Pairs = list[tuple[str, nn.Parameter]]
Groups = list[tuple[dict[str, Any], list[str]]]  # options of a group, and names of its parameters
Factory = Callable[[Any], Optimizer]  # called with pairs, which torch.optim takes as they are
MakeOptimizer = Factory | Optimizer
# Optimizers that need whole tensors (their norms, factors, inner products), so tiles are not enough.
WHOLE_TENSORS = ("LBFGS", "Adafactor", "Muon")


def make_optimizer(setup: Setup, executor: Executor, make: MakeOptimizer) -> Optimizer:
    """Returns the optimizer of the parameters that this rank updates."""
    pairs = _pairs(setup, executor)
    if isinstance(make, Optimizer):
        optimizer = rebuild(make, named_groups(make, setup.model), pairs)
    else:
        optimizer = make(pairs)
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"the function for the optimizer returned a {type(optimizer).__name__}: return a "
            "torch.optim.Optimizer."
        )
    shapes = setup.graph.values
    split_parameter = next(
        (s.name for s, _ in executor.updated_parameters() if s.box.shape != shapes[s.name].shape),
        None,
    )
    if split_parameter is not None and type(optimizer).__name__ in WHOLE_TENSORS:
        raise InputError(
            f"{type(optimizer).__name__} looks at whole tensors, but the plan splits '{split_parameter}': "
            "use an elementwise optimizer, as SGD or AdamW."
        )
    return optimizer


def parameter_names(model: nn.Module) -> list[str]:
    """Returns the names of the trained parameters in the module's order; the first name of a tied one."""
    return [name for name, p in model.named_parameters() if p.requires_grad]


def _pairs(setup: Setup, executor: Executor) -> Pairs:
    """Returns the tiles of this rank with their names, and an empty parameter for each other name."""
    tiles: dict[str, list[nn.Parameter]] = {}
    for source, parameter in executor.updated_parameters():
        tiles.setdefault(source.name, []).append(parameter)
    dims = {name: p.ndim for name, p in setup.model.named_parameters() if p.requires_grad}
    dims = dims or {"": 1}  # torch refuses an optimizer without parameters

    def empty(count: int) -> nn.Parameter:
        # As many dimensions as the parameter has: groups are often made by them.
        return nn.Parameter(torch.empty((0,) * count, device=setup.place))

    return [(name, p) for name, n in dims.items() for p in tiles.get(name) or [empty(n)]]


def rebuild(optimizer: Optimizer, named: Groups, pairs: Pairs) -> Optimizer:
    """Returns an optimizer of the same class, defaults and groups, for tiles instead of parameters.

    named: the groups of the optimizer; pairs: tiles with the names of their parameters.
    """
    tiles: dict[str, Pairs] = {}
    for name, tile in pairs:
        tiles.setdefault(name, []).append((name, tile))
    groups = [
        {**group, "params": [pair for name in names for pair in tiles[name]]}
        for group, names in named
    ]
    accepted = inspect.signature(type(optimizer).__init__).parameters
    defaults = {name: v for name, v in optimizer.defaults.items() if name in accepted}
    try:
        return type(optimizer)(groups, **defaults)
    except TypeError as error:
        raise InputError(
            f"{type(optimizer).__name__} cannot be made again for the tiles of a rank ({error}): give a "
            "function, such as lambda pairs: torch.optim.AdamW(pairs)."
        ) from error


def named_groups(optimizer: Optimizer, model: nn.Module) -> Groups:
    """Returns the options of each parameter group, with the names of its parameters in the module.

    Raises InputError if the optimizer has other parameters than the module.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        if not all(id(p) in names for p in group["params"]):
            raise InputError(
                f"a parameter of the {type(optimizer).__name__} is not in the model: make the optimizer of "
                "model.named_parameters(), of the same model."
            )
        trained = [names[id(p)] for p in group["params"] if p.requires_grad]
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        groups.append((options, trained))
    given = {name for _, trained in groups for name in trained}
    if missing := next((name for name in parameter_names(model) if name not in given), None):
        raise InputError(
            f"'{missing}' is trained, but in no group of the {type(optimizer).__name__}: add it, or freeze "
            "it with requires_grad_(False)."
        )
    return groups


def plain_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Returns the state of a plain optimizer by the names of the module's parameters."""
    names = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = named_groups(optimizer, model)
    return {
        "state": {name: dict(optimizer.state.get(p, {})) for name, p in names.items()},
        "param_groups": [{**options, "params": trained} for options, trained in groups],
    }
