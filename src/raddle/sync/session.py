"""This process's part in a job: it gives every optimizer lines of its own and ends them in order."""

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
    """An optimizer of the session."""

    def close(self, failed: str = "") -> None: ...

    def report(self) -> dict[str, Any]: ...


class Session:
    """What `init` makes."""

    def __init__(self, backend: str | None, timeout: float, timeline: str) -> None:
        self.timeout = timeout
        self.optimizers: list[SessionOptimizer] = []
        self.opened_transports = 0  # lines that were made: the same on all ranks
        self._backend = backend
        self.transport = ProcessTransport(CPU, "gloo", timeout)  # joins, if nobody has
        self.rank, self.size = self.transport.rank, self.transport.size
        self.trace = ChromeTrace(timeline, self.rank) if timeline else None

    def open_transport(self, device: torch.device) -> ProcessTransport:
        """Groups, an alarm and, when asked for, a wire that nobody else uses; all ranks call it."""
        backend = "gloo"
        if device.type == "cuda":
            backend = self._backend or "nccl"
        transport = ProcessTransport(device, backend, self.timeout)
        atexit.unregister(transport.close)  # at the end of the process, `close` comes first
        self.opened_transports += 1
        return transport

    def exchange(self, value: Any) -> list[Any]:
        """Objects of all ranks, which all call it."""
        return exchange_objects(self.transport, CPU, value)

    def close(self, failed: str) -> None:
        """`failed`: why this rank ends before its time; others are told, and not waited for."""
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

    `timeout`: seconds that anything is waited for. `timeline`: a file for a Chrome trace, also by
    RADDLE_TIMELINE. `backend`: what sums gradients that are on GPUs: nccl (which it is by itself) or gloo.
    """
    global _session
    if _session is not None:
        raise RuntimeError("raddle.sync is initialised already: call init() once, or close() first")
    path = os.fspath(timeline) or os.environ.get("RADDLE_TIMELINE", "")
    _session = Session(backend, timeout, path)
    atexit.register(_close_at_exit)


def session() -> Session:
    if _session is None:
        raise RuntimeError("raddle.sync is not initialised: call raddle.sync.init() first")
    return _session


def close() -> None:
    """Ends the session: all that is under way arrives first, on all ranks, which all call it.

    Where an exception is being handled it is told to the others, who stop. More calls do nothing.
    """
    _close(sys.exc_info()[1])


def _close_at_exit() -> None:
    """At the end of the process: an exception that nobody has caught is told to the others."""
    _close(getattr(sys, "last_value", None))


def _close(error: BaseException | None) -> None:
    global _session
    closing, _session = _session, None
    if closing is None:
        return
    atexit.unregister(_close_at_exit)
    failed = "" if error is None else f"it has raised {type(error).__name__}: {error}"
    closing.close(failed)


def rank() -> int:
    return session().rank


def size() -> int:
    return session().size


def broadcast(what: nn.Module | Iterable[Tensor], source: int = 0) -> None:
    """Copies parameters and buffers of a module, or tensors, from one rank to all. All ranks call it."""
    transport = session().transport
    with torch.no_grad():
        for tensor in _tensors(what):
            cpu_copy = tensor.detach().to(CPU).contiguous().clone()
            if cpu_copy.numel():  # as bytes: gloo does not know all types
                transport.broadcast(source, cpu_copy.view(-1).view(torch.uint8)).wait()
                if transport.rank != source:
                    tensor.detach().copy_(cpu_copy)


def _tensors(what: nn.Module | Iterable[Tensor]) -> Iterator[Tensor]:
    if isinstance(what, nn.Module):
        yield from what.parameters()
        yield from what.buffers()
    else:
        yield from what


def report() -> dict[str, Any]:
    """Counters of this rank: one entry for each optimizer."""
    current = session()
    return {
        "rank": current.rank,
        "size": current.size,
        "optimizers": [optimizer.report() for optimizer in current.optimizers],
    }
