"""Gives a rank its boxes of a model's parameters and buffers, also where the model is on the meta device.

A meta model is initialised one module at a time, from the seed and the module's place in the model alone:
every rank finds the same numbers in the same box, and never holds more than one module's tensors.

Differs from building the model on CPU: only what `reset_parameters` does is known here, not what an
`__init__` does besides.

>>> with torch.device("meta"):
...     model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
>>> [piece.shape for piece in take(model, {"1.weight": [Box((0, 0), (1, 6))]})["1.weight"]]
[torch.Size([1, 6])]
>>> model[1].weight.is_meta
True
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from raddle.errors import InputError
from raddle.graph.box import Box
from raddle.graph.dtypes import carries_gradient
from raddle.graph.recapture import CAPTURE_LOCK
from raddle.runtime.checkpoint import cut

Model = TypeVar("Model", bound=nn.Module)
Visit = Callable[[str, Tensor], None]  # sees a tensor and its name, and may copy from it

# Ranks that are threads share the model and torch's random generator: one at a time uses them.


def materialize_boxes(
    model: nn.Module,
    boxes: Mapping[str, Sequence[Box]],
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> dict[str, list[Tensor]]:
    """Copies of boxes of parameters and buffers, by name; those on meta are initialised for it.

    The model stays as it is, and so does the caller's random state.
    """
    pieces: dict[str, list[Tensor]] = {}
    with CAPTURE_LOCK:
        tensors = _tensors(model)
        requested = _by_first_name(boxes, tensors)

        def visit(first: str, value: Tensor) -> None:
            for name in requested[first]:
                pieces[name] = cut(value, boxes[name], device)

        _visit(model, tensors, requested, seed, visit)
    return {name: pieces[name] for name in boxes}


def materialize(model: Model, seed: int = 0) -> Model:
    """Initialises, in place, whatever of a model is on meta: `take` gives boxes of the same numbers."""
    initialised: dict[str, Tensor] = {}
    with CAPTURE_LOCK:
        tensors = _tensors(model)
        missing = {t.name for t in tensors.values() if t.value.is_meta}
        _visit(model, tensors, missing, seed, initialised.__setitem__)
        for tensor in tensors.values():
            for place in tensor.registrations if tensor.name in initialised else ():
                setattr(
                    place.module, place.key, initialised[tensor.name]
                )  # recurrent layers note it
    return model


def _by_first_name(
    names: Iterable[str], tensors: Mapping[str, _Tensor]
) -> Mapping[str, Sequence[str]]:
    """The names that are asked for, by the first name of the same tensor."""
    requested: dict[str, list[str]] = {}
    for name in names:
        if name not in tensors:
            raise InputError(
                f"the model has no parameter or buffer '{name}': "
                "take the names from a graph that was captured from this model."
            )
        requested.setdefault(tensors[name].name, []).append(name)
    return requested


class _Registration(NamedTuple):
    """Where a module holds a tensor of its own."""

    module: nn.Module
    registry: dict[str, Any]  # the module's parameters, or its buffers
    key: str


class _Tensor(NamedTuple):
    """A parameter or buffer: its first name, and every place that holds it (several: it is tied)."""

    name: str
    value: Tensor
    registrations: list[_Registration]

    @property
    def owner(self) -> str:
        """The module that initialises it."""
        return self.name.rpartition(".")[0]

    def put(self, value: Tensor) -> None:
        for _, registry, key in self.registrations:
            registry[key] = value


def _tensors(model: nn.Module) -> dict[str, _Tensor]:
    """Every name of a parameter or buffer -> the tensor; tied names share one entry."""
    by_name: dict[str, _Tensor] = {}
    seen: dict[int, _Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for registry in (module._parameters, module._buffers):
            for key, value in registry.items():
                if value is not None:
                    name = f"{path}.{key}" if path else key
                    by_name[name] = seen.setdefault(id(value), _Tensor(name, value, []))
                    by_name[name].registrations.append(_Registration(module, registry, key))
    return by_name


def _visit(
    model: nn.Module,
    tensors: Mapping[str, _Tensor],
    wanted: Collection[str],
    seed: int,
    visit: Visit,
) -> None:
    """Shows wanted tensors, by first name: those that the model has, then those that are on meta."""
    meta: dict[str, list[_Tensor]] = {}  # by owner
    for name, tensor in tensors.items():
        if name != tensor.name:
            continue
        if tensor.value.is_meta:
            meta.setdefault(tensor.owner, []).append(tensor)
        elif name in wanted:
            visit(name, tensor.value)
    needed = {
        path
        for path, module_tensors in meta.items()
        if any(t.name in wanted for t in module_tensors)
    }
    if not needed:
        return
    with _restored_afterwards(model):
        for index, (path, _) in enumerate(model.named_modules()):
            if path in needed:
                # Neighbouring seeds for neighbours, so that no two modules of a model share one.
                torch.default_generator.manual_seed((seed * 0x9E3779B1 + index) % 2**32)
                _initialise(model, path, meta[path], wanted, visit)


def _initialise(
    model: nn.Module,
    path: str,
    module_tensors: Sequence[_Tensor],
    wanted: Collection[str],
    visit: Visit,
) -> None:
    """Shows the wanted ones of a module's own tensors, which exist no longer than this takes."""
    blanks = [_blank(tensor.value) for tensor in module_tensors]
    versions = [blank._version for blank in blanks]
    for tensor, blank in zip(module_tensors, blanks, strict=True):
        tensor.put(blank)
    _reset(model, path)
    for tensor, blank, version in zip(module_tensors, blanks, versions, strict=True):
        module, registry, key = tensor.registrations[0]
        if tensor.name in wanted:
            if registry[key] is blank and _is_uninitialised(blank, blank._version > version):
                raise InputError(
                    f"'{tensor.name}' is on the meta device and no reset_parameters sets it: give "
                    f"{_describe_module(path, module)} one that does, or build the model on CPU."
                )
            visit(tensor.name, registry[key])
    for tensor in module_tensors:
        tensor.put(tensor.value)


def _reset(model: nn.Module, path: str) -> None:
    """What construction does: the module initialises itself, then those around it adjust it.

    nn.MultiheadAttention, for one, zeroes a bias of its output projection. All but the module's own
    tensors are on meta meanwhile, where writing does nothing.
    """
    parts = path.split(".") if path else []
    for end in range(len(parts), -1, -1):
        outer = ".".join(parts[:end])
        module = model.get_submodule(outer)
        reset = _reset_method(module)
        if reset is None:
            continue
        try:
            reset()
        except Exception as error:
            raise InputError(
                f"reset_parameters of {_describe_module(outer, module)} fails with most of the model on meta "
                f"({str(error).splitlines()[0] if str(error) else type(error).__name__}): "
                "build the model on CPU."
            ) from error


def _reset_method(module: nn.Module) -> Callable[[], Any] | None:
    for name in ("reset_parameters", "_reset_parameters"):  # the latter: nn.MultiheadAttention
        reset = getattr(module, name, None)
        if callable(reset):
            return reset  # type: ignore[no-any-return]
    return None


def _describe_module(path: str, module: nn.Module) -> str:
    return f"{type(module).__name__} '{path}'" if path else type(module).__name__


def _blank(value: Tensor) -> Tensor:
    """Memory for a meta tensor, filled with what no initialisation leaves."""
    blank = torch.empty_like(value, device="cpu", requires_grad=False)
    blank.fill_(_sentinel(value.dtype))
    if not isinstance(value, nn.Parameter):
        return blank
    parameter = nn.Parameter(blank, value.requires_grad)
    parameter.__dict__.update(value.__dict__)  # the marks that people put on parameters
    return parameter


def _is_uninitialised(blank: Tensor, written: bool) -> bool:
    """Whether elements of a blank are still what they were; `written` misses what goes through `.data`."""
    sentinel = _sentinel(blank.dtype)
    unchanged = blank.isnan() if isinstance(sentinel, float) else blank == sentinel
    if unchanged.all():
        return not written and unchanged.numel() > 0
    return isinstance(sentinel, float) and bool(unchanged.any())


def _sentinel(dtype: torch.dtype) -> float | int:
    if carries_gradient(dtype):
        return float("nan")
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


@contextmanager
def _restored_afterwards(model: nn.Module) -> Iterator[None]:
    """Undoes afterwards whatever is done to the model meanwhile; its real tensors stand aside."""
    registries: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (registry, dict(registry))
        for m in model.modules()
        for registry in (m._parameters, m._buffers)
    ]
    with (
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
    ):
        try:
            for saved_registry, before in registries:
                saved_registry.update(
                    {key: _meta_copy(t) for key, t in before.items() if t is not None}
                )
            yield
        finally:
            for saved_registry, before in registries:
                saved_registry.clear()
                saved_registry.update(before)


def _meta_copy(value: Tensor) -> Tensor:
    if value.is_meta:
        return value
    empty = torch.empty_like(value, device="meta", requires_grad=False)
    return nn.Parameter(empty, value.requires_grad) if isinstance(value, nn.Parameter) else empty
