"""The session of this process: `init` opens it, `close` ends it, and every wrapped optimizer belongs to it.

A wrapped optimizer is a `raddle.sync.Optimizer` around one of torch.optim. A session joins the process
group, opens transports for the optimizers, and closes all of them in order.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from raddle.sync.chrome_trace import ChromeTrace
from raddle.transport.exchange import exchange_objects
from raddle.transport.process_transport import ProcessTransport

CPU = torch.device("cpu")


class SessionOptimizer(Protocol):
    """The methods of a wrapped optimizer that a session calls."""

    def close(self, failed: str = "") -> None: ...  # failed: why it ends early, or empty

    def report(self) -> dict[str, Any]: ...


class Session:
    """Made by `init`, which explains the arguments. rank and size are those of the whole job."""

    def __init__(self, backend: str | None, timeout: float, timeline: str) -> None:
        self.timeout = timeout
        self.optimizers: list[SessionOptimizer] = []
        self.opened_transports = 0  # number of transports opened so far; equal on all ranks
        self._backend = backend
        self.transport = ProcessTransport(CPU, "gloo", timeout)  # joins or makes the process group
        self.rank, self.size = self.transport.rank, self.transport.size
        self.trace = ChromeTrace(timeline, self.rank) if timeline else None

    def open_transport(self, device: torch.device) -> ProcessTransport:
        """Returns a new transport for one optimizer, with its own process groups. All ranks call it."""
        backend = "gloo"
        if device.type == "cuda":
            backend = self._backend or "nccl"
        transport = ProcessTransport(device, backend, self.timeout)
        # A transport registers its close for the exit; here Session.close closes it, in the right order.
        atexit.unregister(transport.close)
        self.opened_transports += 1
        return transport

    def exchange(self, value: Any) -> list[Any]:
        """Returns a list with an object from every rank, in rank order. All ranks call it."""
        return exchange_objects(self.transport, CPU, value)

    def close(self, failed: str) -> None:
        """Closes all optimizers, then the transport.

        failed: why this rank ends early, or empty. If it is set, this rank sends the reason to the others
        and does not wait for them.
        """
        try:
            for optimizer in list(self.optimizers):
                optimizer.close(failed)
            if self.trace is not None:
                self.trace.write(None if failed else self.exchange)
        except BaseException as error:
            failed = failed or str(error)
            raise
        finally:
            if failed:
                with contextlib.suppress(Exception):
                    self.transport.fail(failed)
                for optimizer in list(self.optimizers):
                    with contextlib.suppress(Exception):
                        optimizer.close(failed)
            self.transport.close()


_session: Session | None = None


def init(
    *, timeout: float = 300.0, timeline: str | os.PathLike[str] = "", backend: str | None = None
) -> None:
    """Joins the process group that exists, or else torchrun's job. All ranks call it.

    `timeout`: seconds after which any wait fails. `timeline`: path of a Chrome trace to write; the
    environment variable RADDLE_TIMELINE may name it too. `backend`: the backend
    of torch.distributed that sums gradients on GPUs: nccl (the default) or gloo.

    >>> init(timeout=60.0); close()
    """
    global _session
    if _session is not None:
        raise RuntimeError("raddle.sync is initialised already: call init() once, or close() first")
    path = os.fspath(timeline) or os.environ.get("RADDLE_TIMELINE", "")
    _session = Session(backend, timeout, path)
    atexit.register(_close_at_exit)


def session() -> Session:
    """Returns the open session; raises if there is none."""
    if _session is None:
        raise RuntimeError("raddle.sync is not initialised: call raddle.sync.init() first")
    return _session


def close() -> None:
    """Ends the session after all messages have arrived on all ranks. All ranks call it.

    If it is called in an `except` or `finally` block during an exception, this rank reports the exception
    to the other ranks, which then stop. More calls do nothing.

    >>> init(); close(); close()
    """
    _close(sys.exc_info()[1])


def _close_at_exit() -> None:
    """Runs at the end of the process. Reports an uncaught exception (sys.last_value) to other ranks."""
    _close(getattr(sys, "last_value", None))


def _close(error: BaseException | None) -> None:
    """Ends the session. error: the exception that ends this rank early; None: there is none."""
    global _session
    closing, _session = _session, None
    if closing is None:
        return
    atexit.unregister(_close_at_exit)
    failed = "" if error is None else f"it has raised {type(error).__name__}: {error}"
    closing.close(failed)


def rank() -> int:
    """Returns the number of this process in the job.

    >>> init(); rank(), size()
    (0, 1)
    >>> close()
    """
    return session().rank


def size() -> int:
    """Returns the number of ranks in the job.

    >>> init(); size()
    1
    >>> close()
    """
    return session().size


def broadcast(what: nn.Module | Iterable[Tensor], source: int = 0) -> None:
    """Copies parameters and buffers, or tensors, from rank `source` to all ranks. All ranks call it.

    >>> init(); broadcast(nn.Linear(4, 2)); close()
    """
    transport = session().transport
    with torch.no_grad():
        for tensor in _tensors(what):
            cpu_copy = tensor.detach().to(CPU).contiguous().clone()
            if cpu_copy.numel():  # as bytes: gloo does not support all dtypes
                transport.broadcast(source, cpu_copy.view(-1).view(torch.uint8)).wait()
                if transport.rank != source:
                    tensor.detach().copy_(cpu_copy)


def _tensors(what: nn.Module | Iterable[Tensor]) -> Iterator[Tensor]:
    """Yields the parameters, then the buffers of a module; or the tensors themselves."""
    if isinstance(what, nn.Module):
        yield from what.parameters()
        yield from what.buffers()
    else:
        yield from what


def report() -> dict[str, Any]:
    """Returns this rank's counters, with one entry for each wrapped optimizer.

    >>> init(); report()
    {'rank': 0, 'size': 1, 'optimizers': []}
    >>> close()
    """
    current = session()
    return {
        "rank": current.rank,
        "size": current.size,
        "optimizers": [optimizer.report() for optimizer in current.optimizers],
    }
