"""Reads the description of a cluster, as a YAML file or a plan file holds it; errors name the wrong key.

The shortest description:

    devices: {gpu: {flops: {float32: 15 TFLOP/s}, memory: 16 GiB, bandwidth: 900 GB/s}}
    nodes:
      - {count: 2, devices: [gpu, gpu], link: {bandwidth: 25 GB/s, latency: 5 us}}
    network: {bandwidth: 100 Gbit/s, latency: 5 us}

All keys; comments give the defaults of optional keys:

    name: mine                      # default: the file's name
    devices:                        # by kind of device:
      gpu:
        flops:                      # peak by dtype
          float64: 7.8 TFLOP/s      #   default: half of float32
          float32: 15.7 TFLOP/s
          bfloat16: 15.7 TFLOP/s    #   default: as float32
          float16: 125 TFLOP/s      #   default: as float32
        memory: 16 GiB
        bandwidth: 900 GB/s         # of its memory
        overhead: 5 us              # fixed time per operator
        launch: 0 us                # the least time of an operator in eager mode, as of the host
        compile: false              # whether torch.compile fuses what the device computes
        efficiency:                 # shares of the peak, up to 4 (Winograd); "memory": of its bandwidth
          # and "fused": of the bandwidth, where torch.compile has fused operators
          {matmul: 0.6, conv: 0.5, attention: 0.35, memory: 0.75, fused: 0.75}
        workspace:                  # memory that its libraries allocate besides tensors
          {conv: 0, matmul: 0}      #   conv: multiple of a convolution's input and output; matmul: bytes
        host_overhead:              # time that communication takes from the device itself, as on a CPU:
          # at each end: per message, per slice of a parameter, per all-reduce ("sum"), per byte
          # collective: by how much a running all-reduce slows computing, from 0 to 1
          {message: 0 us, slice: 0 us, sum: 0 us, byte: 0 us, collective: 0}
      cpu: {flops: {float32: 1 TFLOP/s}, memory: 64 GiB, bandwidth: 100 GB/s}
    nodes:                          # in order: the first has devices 0, 1, …
      - count: 2                    # this many equal nodes; default: 1
        devices: [gpu, gpu, cpu]    # the kind of each device; kinds may be mixed
        link:                       # required if the node has several devices
          bandwidth: 25 GB/s        # in each direction
          latency: 5 us
          duplex: true              # sends and receives at the same time
          shared: false             # true: one bus for the whole node
          efficiency: 1             # the fraction of the bandwidths that data gets
          groups:                   # default: none; consecutive devices with a link of their own
            {size: 2, bandwidth: 50 GB/s, latency: 5 us, duplex: true,
             uplink: false}         # true: a switch, whose devices share one link to other groups
      - devices: [cpu]
        network: {bandwidth: 10 Gbit/s, latency: 30 us}   # of this node only
    network:                        # required if there are several nodes
      bandwidth: 100 Gbit/s         # in each direction
      latency: 5 us
      duplex: true
      per_device: false             # true: a NIC for each device
      adapters: 1                   # NICs of a node, if not one for each device
      efficiency: 1                 # the fraction of the bandwidth that data gets
      leaf: 0                       # nodes below a leaf switch; 0: one switch for all
      oversubscription: 1           # of a leaf: its bandwidth to nodes / to the spine
    collectives:                    # how collectives run: see docs/clusters.md
      library: plain                # or nccl
      nvls: false                   # true: the switches inside nodes reduce (NVLink SHARP)
      sharp: false                  # true: the switches between nodes reduce (InfiniBand SHARP)

Numbers may be plain (bytes, bytes/s, seconds, FLOP/s) or have a unit. b is a bit and B a byte; GB is 10^9
bytes and GiB 2^30.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from reprlib import repr as short
from typing import Any

from raddle.clusters.devices import (
    DTYPES,
    EFFICIENCY,
    HOST_OVERHEAD,
    PLAIN,
    WORKSPACE,
    Collectives,
    Device,
    Group,
    Library,
    Link,
    Network,
    Node,
)
from raddle.clusters.units import (
    EFFICIENCY_SHARE,
    FRACTION,
    MULTIPLE,
    RATE,
    SHARE_OR_ZERO,
    SIZE,
    SIZE_OR_ZERO,
    SPEED,
    TIME,
    Quantity,
)
from raddle.clusters.units import parse as parse_quantity
from raddle.errors import InputError, shorten

MAX_DEVICES = 65_536


def parse(
    data: object, where: str, *, name: str | None = None
) -> tuple[str, list[Node], Collectives]:
    """Reads a description, given as nested dicts and lists; returns its name, nodes and collectives.

    where: the file, as errors name it; name: used if the data has none (None: the data must have one).
    """
    top = Place(where)
    if data is None:
        raise top.error("holds nothing: describe devices and nodes in it.")
    optional = (*(["name"] if name is not None else []), "network", "collectives")
    required = ("devices", "nodes") if name is not None else ("name", "devices", "nodes")
    fields = _fields(data, top, required=required, optional=optional)
    title = fields.get("name", name)
    if not isinstance(title, str) or not title.strip():
        raise top.child("name").error(f"is {short(title)}: write a text.")
    kinds = _kinds(fields["devices"], top.child("devices"))
    default_network = None  # of the nodes that describe none
    if fields.get("network") is not None:
        default_network = _network(fields["network"], top.child("network"))
    nodes = _nodes(fields["nodes"], top.child("nodes"), kinds, default_network)
    if len(nodes) > 1 and any(network is None for _, _, network in nodes):
        raise top.error(
            f"has {len(nodes)} nodes and no network: add network: {{bandwidth: 100 Gbit/s, latency: 5 us}}."
        )
    return title, nodes, _collectives(fields.get("collectives"), top.child("collectives"))


@dataclass(frozen=True)
class Place:
    """A position in a file, named in errors: the file, and the path of keys, as "nodes[0].link"."""

    file: str
    path: str = ""

    def child(self, key: object) -> Place:
        """Returns the position of a key, or of an index, below this one."""
        step = f"[{key}]" if isinstance(key, int) else shorten(str(key), 80)
        dot = "." if self.path and not isinstance(key, int) else ""
        return Place(self.file, f"{self.path}{dot}{step}")

    def error(self, predicate: str) -> InputError:
        """Returns an error whose sentence has this position as its subject."""
        return InputError(
            f"{self.file}: {self.path} {predicate}" if self.path else f"{self.file} {predicate}"
        )


def _kinds(data: object, place: Place) -> dict[str, Device]:
    """Reads `devices`: by name of a kind, a device of this kind. data: the value at `place`."""
    if not isinstance(data, Mapping) or not data:
        raise place.error(
            f"is {short(data)}: name each kind, as gpu: {{flops: …, memory: …, bandwidth: …}}."
        )
    return {str(kind): _device(str(kind), value, place.child(kind)) for kind, value in data.items()}


def _device(kind: str, data: object, place: Place) -> Device:
    """Reads the properties of a kind of device. Its node is not set yet: it is 0."""
    fields = _fields(
        data,
        place,
        required=("flops", "memory", "bandwidth"),
        optional=("overhead", "launch", "compile", "efficiency", "workspace", "host_overhead"),
    )
    flops = _fields(fields["flops"], place.child("flops"), required=("float32",), optional=DTYPES)
    efficiency = _fields(
        fields.get("efficiency", {}), place.child("efficiency"), optional=EFFICIENCY
    )
    workspace = _fields(fields.get("workspace", {}), place.child("workspace"), optional=WORKSPACE)
    host_overhead = _fields(
        fields.get("host_overhead", {}), place.child("host_overhead"), optional=HOST_OVERHEAD
    )
    # For each key of `workspace`, the kind of number that its value is.
    quantities = {"conv": MULTIPLE, "matmul": SIZE_OR_ZERO}
    seconds = {
        key: _number(fields, key, TIME, place) for key in ("overhead", "launch") if key in fields
    }
    return Device(
        kind=kind,
        node=0,
        flops={dtype: _number(flops, dtype, SPEED, place.child("flops")) for dtype in flops},
        memory=max(1, round(_number(fields, "memory", SIZE, place))),
        bandwidth=_number(fields, "bandwidth", RATE, place),
        efficiency={
            key: _number(
                efficiency,
                key,
                FRACTION if key in ("memory", "fused") else EFFICIENCY_SHARE,
                place.child("efficiency"),
            )
            for key in efficiency
        },
        workspace={
            key: _number(workspace, key, quantities[key], place.child("workspace"))
            for key in workspace
        },
        host_overhead={
            key: _number(
                host_overhead,
                key,
                SHARE_OR_ZERO if key == "collective" else TIME,
                place.child("host_overhead"),
            )
            for key in host_overhead
        },
        compile=_flag(fields, "compile", False, place),
        **seconds,
    )


def _nodes(
    data: object, place: Place, kinds: Mapping[str, Device], default_network: Network | None
) -> list[Node]:
    """Reads `nodes`; returns one node for each entry, or as many as its `count` says.

    kinds: by name of a kind, its device. default_network: for nodes that describe none.
    """
    nodes: list[Node] = []
    total = 0
    for i, entry in enumerate(_list(data, place, "at least one node, as - {devices: [gpu]}")):
        count, node = _node(entry, place.child(i), kinds, default_network)
        total += count * len(node[0])
        if total > MAX_DEVICES:
            raise place.child(i).error(
                f"brings the cluster to {total} devices: describe at most {MAX_DEVICES}."
            )
        nodes += [node] * count
    return nodes


def _node(
    data: object, place: Place, kinds: Mapping[str, Device], default_network: Network | None
) -> tuple[int, Node]:
    """Reads one entry of `nodes`; returns how many nodes it stands for, and the node."""
    fields = _fields(data, place, required=("devices",), optional=("count", "link", "network"))
    count = _count(fields, "count", 1, place)
    devices = _devices(fields["devices"], place.child("devices"), kinds)
    link, network = None, default_network
    if fields.get("link") is not None:
        link = _link(fields["link"], place.child("link"))
    elif len(devices) > 1:
        raise place.error(
            f"has {len(devices)} devices and no link: add link: {{bandwidth: 25 GB/s, latency: 5 us}}."
        )
    if fields.get("network") is not None:
        network = _network(fields["network"], place.child("network"))
    return count, (devices, link, network)


def _devices(data: object, place: Place, kinds: Mapping[str, Device]) -> list[Device]:
    """Reads the devices of a node, a list of the names of kinds."""
    names = _list(data, place, f"the kinds, as [{next(iter(kinds))}]")
    for i, kind in enumerate(names):
        if str(kind) not in kinds:
            raise place.child(i).error(
                f"is {short(kind)}, no kind of device: {_suggestion(kind, kinds)}"
            )
    return [kinds[str(kind)] for kind in names]


def _link(data: object, place: Place) -> Link:
    """Reads the link between the devices of a node."""
    optional = ("duplex", "shared", "efficiency", "groups")
    fields = _fields(data, place, required=("bandwidth", "latency"), optional=optional)
    groups = None
    if fields.get("groups") is not None:
        groups = _groups(fields["groups"], place.child("groups"))
    return Link(
        bandwidth=_number(fields, "bandwidth", RATE, place),
        latency=_number(fields, "latency", TIME, place),
        duplex=_flag(fields, "duplex", True, place),
        shared=_flag(fields, "shared", False, place),
        efficiency=_efficiency(fields, place),
        groups=groups,
    )


def _groups(data: object, place: Place) -> Group:
    """Reads the groups of devices inside a node that have a link of their own."""
    required = ("size", "bandwidth", "latency")
    fields = _fields(data, place, required=required, optional=("duplex", "uplink"))
    return Group(
        size=_count(fields, "size", 1, place),
        bandwidth=_number(fields, "bandwidth", RATE, place),
        latency=_number(fields, "latency", TIME, place),
        duplex=_flag(fields, "duplex", True, place),
        uplink=_flag(fields, "uplink", False, place),
    )


def _network(data: object, place: Place) -> Network:
    """Reads a network, of one node or of the cluster."""
    optional = ("duplex", "per_device", "adapters", "efficiency", "leaf", "oversubscription")
    fields = _fields(data, place, required=("bandwidth", "latency"), optional=optional)
    return Network(
        bandwidth=_number(fields, "bandwidth", RATE, place),
        latency=_number(fields, "latency", TIME, place),
        duplex=_flag(fields, "duplex", True, place),
        per_device=_flag(fields, "per_device", False, place),
        efficiency=_efficiency(fields, place),
        adapters=_count(fields, "adapters", 1, place),
        leaf=_count(fields, "leaf", 0, place),
        oversubscription=_count(fields, "oversubscription", 1, place),
    )


def _collectives(data: object, place: Place) -> Collectives:
    """Reads how collectives run; data: the value at `place`, None if there is none."""
    if data is None:
        return PLAIN
    fields = _fields(data, place, optional=("library", "nvls", "sharp"))
    library = fields.get("library", Library.PLAIN.value)
    if library not in [kind.value for kind in Library]:
        raise place.child("library").error(
            f"is {short(library)}: {_suggestion(library, [kind.value for kind in Library])}"
        )
    nvls, sharp = _flag(fields, "nvls", False, place), _flag(fields, "sharp", False, place)
    if (nvls or sharp) and library != Library.NCCL.value:
        raise place.error(f"has reducing switches with library {library}: write library: nccl.")
    return Collectives(Library(library), nvls, sharp)


def _efficiency(fields: Mapping[str, Any], place: Place) -> float:
    """Returns the efficiency of a link or network; 1 if it is not given."""
    return _number(fields, "efficiency", FRACTION, place) if "efficiency" in fields else 1.0


def _count(fields: Mapping[str, Any], key: str, minimum: int, place: Place) -> int:
    """Returns the whole number at a key, or the minimum if the key is missing. place: of `fields`."""
    value = fields.get(key, minimum)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise place.child(key).error(f"is {short(value)}: write a whole number from {minimum} on.")
    return value


def _fields(
    data: object, place: Place, *, required: Sequence[str] = (), optional: Iterable[str] = ()
) -> Mapping[str, Any]:
    """Returns `data` after checking that it is a mapping with all required and no unknown keys."""
    allowed = list(dict.fromkeys([*required, *optional]))
    if not isinstance(data, Mapping):
        raise place.error(f"is {short(data)}: write keys and values, of {', '.join(allowed)}.")
    for key in data:
        if key not in allowed:
            raise place.error(f"has an unknown key {short(key)}: {_suggestion(key, allowed)}")
    for key in required:
        if key not in data:
            raise place.error(f"has no {key}: add it.")
    return data


def _number(fields: Mapping[str, Any], key: str, quantity: Quantity, place: Place) -> float:
    """Returns the number at a key, in the base unit of the quantity. place: of the mapping `fields`."""
    try:
        return parse_quantity(fields[key], quantity)
    except ValueError as error:
        raise place.child(key).error(f"is {short(fields[key])}: {error}.") from None


def _flag(fields: Mapping[str, Any], key: str, default: bool, place: Place) -> bool:
    """Returns the true or false at a key, or the default. place: of the mapping `fields`."""
    value = fields.get(key, default)
    if not isinstance(value, bool):
        raise place.child(key).error(f"is {short(value)}: write true or false.")
    return value


def _list(data: object, place: Place, advice: str) -> list[Any]:
    """Returns `data` after checking that it is a list with an entry. advice: ends the error's "list …"."""
    if not isinstance(data, list | tuple) or not data:
        raise place.error(f"is {short(data)}: list {advice}.")
    return list(data)


def _suggestion(name: object, allowed: Iterable[str]) -> str:
    """Returns the end of a sentence about an unknown name: the closest allowed name, or all of them."""
    names = list(allowed)
    close = get_close_matches(str(name), names, n=1, cutoff=0.5)
    return (
        f"did you mean {shorten(close[0])}?" if close else f"there is {shorten(', '.join(names))}."
    )
