"""Loads a workload on a device: a model of the zoo by name, or the result of a user's function."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import torch

from raddle.errors import InputError
from raddle.graph.supervised import supervised
from raddle.zoo.move import move_workload
from raddle.zoo.registry import ZOO, names
from raddle.zoo.user_file import call_function, find_function, is_file_spec
from raddle.zoo.workload import Workload


def load(
    spec: str,
    *,
    batch: int | None = None,
    device: str = "meta",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Workload:
    """Loads a model of the zoo by name, or what `path/to/file.py:function` returns.

    On the device "meta" no memory is allocated. On other devices, weights and examples depend only on the
    seed: they are created on the CPU and then moved.

    A user's function returns (module, batch, loss), (module, batch) or a `Workload`. It gets `batch=`, the
    number of samples, if one is given. While it runs, `dtype` is the default type of torch.
    """
    if batch is not None and batch < 1:
        raise InputError(f"the batch is {batch}: ask for at least 1 sample.")
    if not dtype.is_floating_point:
        raise InputError(f"the weights cannot be {dtype}: ask for a float type, as torch.float32.")
    with _seeded(seed):
        if is_file_spec(spec):
            # Imports run outside of torch.device("meta"): constants of a library must have values.
            function = find_function(spec)
            with _default_device(device), default_dtype(dtype):
                workload = call_function(function, batch)
            return move_workload(workload, device)
        with _default_device(device):
            workload = _from_zoo(spec, batch)
        return move_workload(workload, device, dtype)


def _from_zoo(name: str, batch: int | None) -> Workload:
    """Returns the workload of a model of the zoo; batch None: the model's usual number of samples."""
    if name not in ZOO:
        raise InputError(f"no model {name!r} in the zoo: {_advice(name)}")
    entry = ZOO[name]
    model = entry.build()  # before the examples, so that weights do not depend on the batch
    inputs, targets = entry.examples(entry.batch if batch is None else batch)
    return Workload(name, model, (*inputs, *targets), supervised(entry.loss))


def _advice(name: str) -> str:
    """Returns the end of the error about an unknown model: models with similar names, or all."""
    close = get_close_matches(name.lower(), names(), n=4, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"it has {', '.join(names())}, or give path/to/file.py:function."


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the CPU's random generator while the `with` block runs; then restores its state."""
    # Only the generator of the CPU is used, so only it is seeded: torch.manual_seed also seeds GPUs.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _default_device(device: str) -> torch.device:
    """Returns the device on which tensors are created, before they are moved to `device`."""
    return torch.device("meta" if device == "meta" else "cpu")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets the default type of new floating-point tensors, such as `torch.zeros(3)`, in this process."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
