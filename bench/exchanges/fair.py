"""A reference simulation in which messages share links as TCP connections do: max-min fair.

It takes the tasks of raddle's simulation. A task that computes holds its device, as there. A message is a
*flow*: after its latency it sends its bytes at a rate. Rates are max-min fair: a flow's rate could only be
raised by lowering that of a flow which is not faster. They change whenever a flow starts or ends. An
all-reduce is one flow over the links of all hops of its ring, because its members advance together.

The simulation is simple and slow: it computes all rates again at each event.
"""

# t: the tasks, as arrays; i: a task; f: a flow; a, b: devices

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raddle.clusters import Cluster
from raddle.program.program import Program, Reduce, buffer_bytes
from raddle.simulation.task_table import Tasks
from raddle.simulation.tasks import build_tasks

DONE = 1e-3  # bytes that a flow may have left when it ends, because of rounding


@dataclass(eq=False)
class Flow:
    """A message, or an all-reduce, that sends its bytes over links."""

    uses: Counter[int]  # by link: how often the flow crosses it
    left: float  # bytes that are not sent yet
    latency: float  # seconds before the first byte
    tasks: tuple[int, ...]  # the tasks that end with the flow
    rate: float = 0.0  # bytes/s


def fair_seconds(program: Program, cluster: Cluster) -> float:
    """Return the seconds until the last task of a program ends."""
    return _Simulation(program, cluster).run()


def share_links(flows: Sequence[Flow], capacity: Mapping[int, float]) -> None:
    """Sets the rates of all flows; capacity: by link, bytes/s.

    The algorithm is progressive filling: the link that is full first, if all rates grow equally, fixes the
    rates of its flows; this is repeated with the other flows.
    """
    free, waiting = dict(capacity), list(flows)
    while waiting:
        load: Counter[int] = Counter()
        for flow in waiting:
            load.update(flow.uses)
        full = min(load, key=lambda link: free[link] / load[link])
        rate = max(0.0, free[full] / load[full])
        for flow in [f for f in waiting if full in f.uses]:
            flow.rate = rate
            waiting.remove(flow)
            for link, times in flow.uses.items():
                free[link] -= rate * times


class _Simulation:
    """The state of the simulation: times, tasks that wait, flows that send."""

    def __init__(self, program: Program, cluster: Cluster) -> None:
        self.tasks: Tasks = build_tasks(program, cluster)
        self.devices, self.capacity = program.plan.devices, _capacity(cluster)
        self.flow_of = {f.tasks[0]: f for f in self._message_flows(cluster)}
        self.flow_of |= {i: f for f in self._ring_flows(program, cluster) for i in f.tasks}
        self.waits_left = self.tasks.wait_count.copy()
        self.now, self.serial = (
            0.0,
            0,
        )  # seconds; the number of events so far, which orders equal times
        self.flows: list[Flow] = []  # the flows that send now
        # A heap of (seconds, serial number, the flow that starts or the task that ends).
        self.events: list[tuple[float, int, Flow | int]] = []
        self.members_ready: Counter[int] = Counter()  # by the first task of a flow
        self.busy: set[int] = set()  # devices
        # By device: a heap of (urgency, task).
        self.queues: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def _message_flows(self, cluster: Cluster) -> list[Flow]:
        """Return a flow for each point-to-point message."""
        t, flows = self.tasks, []
        for i in np.flatnonzero((t.source != t.device) & (t.nbytes > 0)):
            route = cluster.route(int(t.source[i]), int(t.device[i]))
            flows.append(
                Flow(Counter(route.resources), float(t.nbytes[i]), route.latency, (int(i),))
            )
        return flows

    def _ring_flows(self, program: Program, cluster: Cluster) -> list[Flow]:
        """Return a flow for each ring of an all-reduce.

        The tasks of an all-reduce are numbered ring by ring (simulation/collective_tasks.py).
        """
        t, flows = self.tasks, []
        is_member = (t.source == t.device) & (t.nbytes > 0)
        for number, instruction in enumerate(program.instructions):
            if not isinstance(instruction, Reduce):
                continue
            tasks = np.flatnonzero(is_member & (t.instruction == number)).tolist()
            for ring in buffer_bytes(program, instruction):
                members, tasks = tuple(tasks[: len(ring)]), tasks[len(ring) :]
                routes = [cluster.route(a, b) for a, b in zip(ring, ring[1:] + ring[:1])]  # noqa: B905
                uses = Counter(link for route in routes for link in route.resources)
                latency = 2 * (len(ring) - 1) * max(route.latency for route in routes)
                flows.append(Flow(uses, float(t.nbytes[members[0]]), latency, members))
        return flows

    def run(self) -> float:
        """Simulate all tasks; return the seconds at which the last one ends."""
        for i in np.flatnonzero(self.waits_left == 0):
            self._ready(int(i))
        while self.events or self.flows:
            share_links(self.flows, self.capacity)
            end = min((self.now + f.left / f.rate for f in self.flows), default=math.inf)
            event = self.events[0][0] if self.events else math.inf
            self._advance(min(end, event))
            if event <= end:
                _, _, flow_or_task = heapq.heappop(self.events)
                if isinstance(flow_or_task, Flow):
                    self.flows.append(flow_or_task)
                else:
                    self._end(flow_or_task)
            for flow in [f for f in self.flows if f.left <= DONE]:
                self.flows.remove(flow)
                for task in flow.tasks:
                    self._end(task)
        assert not self.waits_left.any(), "a task never became ready"
        return self.now

    def _advance(self, time: float) -> None:
        """Let all flows send until a time."""
        for flow in self.flows:
            flow.left -= flow.rate * (time - self.now)
        self.now = time

    def _ready(self, task: int) -> None:
        """Starts a task, or lets it wait for its device or for the other members of its ring."""
        flow, device = self.flow_of.get(task), int(self.tasks.first_resource[task])
        if flow is not None:
            self.members_ready[flow.tasks[0]] += 1
            if self.members_ready[flow.tasks[0]] == len(flow.tasks):
                self._push(flow.latency, flow)
        elif 0 <= device < self.devices:
            heapq.heappush(self.queues[device], (int(self.tasks.urgency[task]), task))
            self._start_next(device)
        else:
            self._push(float(self.tasks.duration[task]) / 1e9, task)

    def _push(self, seconds: float, flow_or_task: Flow | int) -> None:
        """Add an event that happens after some seconds: a flow starts, or a task ends."""
        self.serial += 1
        heapq.heappush(self.events, (self.now + seconds, self.serial, flow_or_task))

    def _start_next(self, device: int) -> None:
        """Start the most urgent task that waits for a device, if the device is free."""
        if device not in self.busy and self.queues[device]:
            _, task = heapq.heappop(self.queues[device])
            self.busy.add(device)
            self._push(float(self.tasks.duration[task]) / 1e9, task)

    def _end(self, task: int) -> None:
        """End a task: free its device, and start tasks that waited for it or for the device."""
        t, device = self.tasks, int(self.tasks.first_resource[task])
        self.busy.discard(device)  # a link has a greater number than all devices
        for later in t.successor[t.pointer[task] : t.pointer[task + 1]].tolist():
            self.waits_left[later] -= 1
            if self.waits_left[later] == 0:
                self._ready(later)
        self._start_next(device)


def _capacity(cluster: Cluster) -> dict[int, float]:
    """Return the bytes/s of each link, by number: the bandwidth of the fastest route over it."""
    capacity: dict[int, float] = {}
    for a in range(len(cluster.devices)):
        for b in range(len(cluster.devices)):
            if a != b:
                route = cluster.route(a, b)
                for link in route.resources:
                    capacity[link] = max(capacity.get(link, 0.0), route.bandwidth)
    return capacity
