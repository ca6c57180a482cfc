"""Recurrent layers run as one native call if a device has a whole layer, else operator by operator."""

from __future__ import annotations

import copy

import pytest
import torch
from random_plans import train_plain
from torch import Tensor, nn

from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.graph.supervised import supervised
from raddle.plans.plan import Plan
from raddle.plans.tiling import Grid, even_cuts
from raddle.program.lower import lower
from raddle.program.program import Program
from raddle.program.segments import segments
from raddle.runtime.native_calls import native_calls_in_segment
from raddle.runtime.threads import run_threads

KINDS = [nn.LSTM, nn.GRU, nn.RNN]


class Net(nn.Module):
    """Two layers, with given or zero initial states; the last states are part of the loss."""

    def __init__(self, kind: type[nn.RNNBase], both_ways: bool, states: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rnn = kind(3, 4, num_layers=2, bidirectional=both_ways, batch_first=True)
        self.start = nn.Linear(3, 4) if states else None

    def forward(self, x: Tensor) -> Tensor:
        initial_states = None
        if self.start is not None:
            start = self.start(x[:, 0]).expand(4 if self.rnn.bidirectional else 2, -1, -1)
            initial_states = (start, start.tanh()) if isinstance(self.rnn, nn.LSTM) else start
        out, last = self.rnn(x, initial_states)
        last = last[1] if isinstance(last, tuple) else last
        return torch.cat([out.flatten(1), last.transpose(0, 1).flatten(1)], 1)


def loss(y: Tensor) -> Tensor:
    return (y * y).mean()


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # type: ignore[arg-type]


def planned(graph: Graph, how: str) -> Plan:
    """A plan for two devices.

    how: "samples": half of the samples each; "layers": one layer each; "steps": device 1 has time step 1.
    With one layer each, devices exchange values at every time step, so that both compute at the same time.
    """
    tiles = {}
    for op in graph.ops:
        dims = [dim.name for dim in op.space.dims]
        cuts = [(0, dim.size) for dim in op.space.dims]
        second = ".l1" in op.name if how == "layers" else how == "steps" and ".t1." in op.name
        devices: tuple[int, ...] = (int(second),)
        if how == "samples" and "n" in dims:
            d = dims.index("n")
            cuts[d] = even_cuts(op.space.dims[d].size, 2)
            devices = (0, 1)
        tiles[op.name] = Grid(tuple(cuts), devices)
    return Plan(tiles, 2, steps=2)


def native_calls(program: Program) -> int:
    variant, count = program.variants[0], 0
    for device in (0, 1):
        device_segments = segments(program, device)
        count += sum(
            len(native_calls_in_segment(variant, device, ops).by_last_op) for ops in device_segments
        )
    return count


@pytest.mark.parametrize("how", ["one", "samples", "layers", "steps"])
@pytest.mark.parametrize("states", [False, True], ids=["zeros", "given"])
@pytest.mark.parametrize("both_ways", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("kind", KINDS)
def test_they_compute_what_the_module_does(
    kind: type[nn.RNNBase], both_ways: bool, states: bool, how: str
) -> None:
    model = Net(kind, both_ways, states).double()
    x = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    graph = capture(model, (x,), supervised(loss, targets=0))
    program = lower(graph, planned(graph, how))
    # In the excluded case, the first layer may be whole except for its zero states.
    if not (both_ways and how == "layers"):
        each = {"one": 2, "samples": 4, "layers": 0, "steps": 0}[how]
        assert native_calls(program) == each * (1 + both_ways)
    losses, state = train_plain(copy.deepcopy(model), loss, [[([x], [])]] * 2, sgd)
    initial_state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    result = run_threads(program, initial_state, sgd, lambda key: {graph.inputs[0]: x})
    assert result.losses == pytest.approx(losses, rel=1e-9)
    for name, tensor in result.state.items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-9, atol=1e-9, msg=name)


def test_dropout_between_layers_leaves_them_whole() -> None:
    """Dropout masks differ from torch's, so values are compared elsewhere (test_random_graphs)."""
    rnn = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)
    graph = capture(rnn, (torch.zeros(4, 3, 3),), supervised(lambda out: out[0].sum(), targets=0))
    assert native_calls(lower(graph, planned(graph, "one"))) == 2
