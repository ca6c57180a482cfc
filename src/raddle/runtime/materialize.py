"""Copies boxes of a model's parameters and buffers for a rank; initialises them if the model is on meta.

A model on the meta device is initialised one module at a time. The values depend only on the seed and on
the module's position in the model. So every rank gets the same values for the same box, and holds the
tensors of at most one whole module at a time. A tied tensor has several names; the first one identifies it.

One difference from building the model on CPU: only `reset_parameters` initialises; other code in `__init__`
has no effect.

>>> with torch.device("meta"):
...     model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
>>> [piece.shape for piece in materialize_boxes(model, {"1.weight": [Box((0, 0), (1, 6))]})["1.weight"]]
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
Visit = Callable[[str, Tensor], None]  # called with the name and the tensor; may copy from it

# Ranks that are threads share the model and torch's random generator, hence CAPTURE_LOCK below.


def materialize_boxes(
    model: nn.Module,
    boxes: Mapping[str, Sequence[Box]],
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> dict[str, list[Tensor]]:
    """Returns copies of boxes of parameters and buffers: name -> one tensor for each box.

    Tensors on meta are initialised temporarily. The model and the caller's random state do not change.
    """
    pieces: dict[str, list[Tensor]] = {}
    with CAPTURE_LOCK:
        tensors = _tensors(model)
        requested = _by_first_name(boxes, tensors)

        def visit(first: str, value: Tensor) -> None:  # first: the first name of a tied tensor
            for name in requested[first]:
                pieces[name] = cut(value, boxes[name], device)

        _visit(model, tensors, requested, seed, visit)
    return {name: pieces[name] for name in boxes}


def materialize(model: Model, seed: int = 0) -> Model:
    """Initialises all tensors of a model that are on meta, and returns the model.

    The values are those of materialize_boxes.
    """
    initialised: dict[str, Tensor] = {}
    with CAPTURE_LOCK:
        tensors = _tensors(model)
        missing = {t.name for t in tensors.values() if t.value.is_meta}
        _visit(model, tensors, missing, seed, initialised.__setitem__)
        for tensor in tensors.values():
            for registration in tensor.registrations if tensor.name in initialised else ():
                # setattr, as recurrent layers react to it.
                setattr(registration.module, registration.key, initialised[tensor.name])
    return model


def _by_first_name(
    names: Iterable[str], tensors: Mapping[str, _Tensor]
) -> Mapping[str, Sequence[str]]:
    """Returns the requested names, grouped by tensor: first name of the tensor -> its requested names."""
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
    """An entry of a module's `_parameters` or `_buffers`."""

    module: nn.Module
    registry: dict[str, Any]  # module._parameters or module._buffers
    key: str  # the tensor's name within the module


class _Tensor(NamedTuple):
    """A parameter or buffer with all modules that hold it: several if it is tied."""

    name: str  # the first one, if it is tied
    value: Tensor
    registrations: list[_Registration]

    @property
    def owner(self) -> str:
        """The path of the module that initialises the tensor, for example "layers.0.attention"."""
        return self.name.rpartition(".")[0]

    def put(self, value: Tensor) -> None:
        """Replaces the tensor in all modules that hold it."""
        for _, registry, key in self.registrations:
            registry[key] = value


def _tensors(model: nn.Module) -> dict[str, _Tensor]:
    """Returns name -> tensor for all parameters and buffers; names of a tied tensor share one entry."""
    by_name: dict[str, _Tensor] = {}
    seen: dict[int, _Tensor] = {}  # by id() of the tensor
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
    """Calls `visit` with each wanted tensor: first those with memory, then those on meta, initialised.

    wanted: first names of tensors.
    """
    meta: dict[str, list[_Tensor]] = {}  # module path -> its tensors on meta
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
                # Modules have consecutive seeds, so that no two of a model share one. With the factor (of
                # Knuth's multiplicative hash), the seeds for neighbouring values of `seed` do not overlap.
                torch.default_generator.manual_seed((seed * 0x9E3779B1 + index) % 2**32)
                _initialise(model, path, meta[path], wanted, visit)


def _initialise(
    model: nn.Module,
    path: str,
    module_tensors: Sequence[_Tensor],
    wanted: Collection[str],
    visit: Visit,
) -> None:
    """Initialises the tensors of one module, visits the wanted ones, and puts the meta tensors back."""
    blanks = [_blank(tensor.value) for tensor in module_tensors]
    versions = [blank._version for blank in blanks]  # torch counts in-place writes
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
    """Calls reset_parameters of a module and then of the modules around it, as construction does.

    An outer module may adjust an inner one: nn.MultiheadAttention zeroes the bias of its output projection.
    All tensors of other modules are on meta during this, so writing to them has no effect.
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
                f"reset_parameters of {_describe_module(outer, module)} fails with most of the model on "
                f"meta ({str(error).splitlines()[0] if str(error) else type(error).__name__}): "
                "build the model on CPU."
            ) from error


def _reset_method(module: nn.Module) -> Callable[[], Any] | None:
    """Returns the method that initialises a module's tensors; None if it has none."""
    for name in ("reset_parameters", "_reset_parameters"):  # the latter: nn.MultiheadAttention
        reset = getattr(module, name, None)
        if callable(reset):
            return reset  # type: ignore[no-any-return]
    return None


def _describe_module(path: str, module: nn.Module) -> str:
    return f"{type(module).__name__} '{path}'" if path else type(module).__name__


def _blank(value: Tensor) -> Tensor:
    """Returns a CPU tensor for a meta tensor, filled with a value that no initialisation would write."""
    blank = torch.empty_like(value, device="cpu", requires_grad=False)
    blank.fill_(_sentinel(value.dtype))
    if not isinstance(value, nn.Parameter):
        return blank
    parameter = nn.Parameter(blank, value.requires_grad)
    parameter.__dict__.update(value.__dict__)  # attributes that users set on parameters
    return parameter


def _is_uninitialised(blank: Tensor, written: bool) -> bool:
    """Returns whether elements of a blank still have the sentinel value.

    written: whether autograd saw a write to the blank; it does not see writes through `.data`.
    """
    sentinel = _sentinel(blank.dtype)
    unchanged = blank.isnan() if isinstance(sentinel, float) else blank == sentinel
    if unchanged.all():
        return not written and unchanged.numel() > 0
    return isinstance(sentinel, float) and bool(unchanged.any())


def _sentinel(dtype: torch.dtype) -> float | int:
    """Returns a value of this dtype that no initialisation is expected to write."""
    if carries_gradient(dtype):
        return float("nan")
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


@contextmanager
def _restored_afterwards(model: nn.Module) -> Iterator[None]:
    """Replaces the model's tensors by meta tensors during the context and restores the model after it."""
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
    """Returns a tensor of the same shape and dtype on meta; a Parameter stays a Parameter."""
    if value.is_meta:
        return value
    empty = torch.empty_like(value, device="meta", requires_grad=False)
    return nn.Parameter(empty, value.requires_grad) if isinstance(value, nn.Parameter) else empty
