"""Reads the text files of PipeDream's profiler (https://github.com/msr-fiddle/pipedream) as `Layers`.

The file has one line for each layer, and one line, indented by a tab, for each edge of the graph:

    node2 -- Conv2d(3, 64) -- forward_compute_time=1.5, backward_compute_time=3.0 (ms),
                              activation_size=100.0, parameter_size=8.0 (bytes; on the same line)
        node1 -- node2

As in PipeDream's optimizer, two kinds of nodes are left out: the inputs of the model, and `__getitem__`
nodes whose result no layer reads.
"""

from __future__ import annotations

import re

from raddle.searches.pipeline.layers import Layers

NODE = re.compile(
    # what: the type of the layer, such as Conv2d(3, 64)
    r"(?P<name>\w+) -- (?P<what>.*) -- forward_compute_time=(?P<forward>[^,]+), "
    r"backward_compute_time=(?P<backward>[^,]+), activation_size=(?P<activation>[^,]+), "
    r"parameter_size=(?P<parameters>[^, ]+)"
)


def read_profile(text: str) -> Layers:
    """Return the layers in the order of the lines; milliseconds become seconds."""
    nodes = {m["name"]: m for line in text.splitlines() if (m := NODE.match(line))}
    # (name of a layer, name of a layer that reads it)
    pairs = [line.strip().split(" -- ") for line in text.splitlines() if line.startswith("\t")]
    sources, targets = {u for u, _ in pairs}, {v for _, v in pairs}
    used = [
        name
        for name, node in nodes.items()
        if not (node["what"].startswith("Input") and name not in targets)
        and not (node["what"].startswith("__getitem__") and name not in sources)
    ]
    number = {name: v for v, name in enumerate(used)}
    successors: list[list[int]] = [[] for _ in used]
    for u, v in pairs:
        if u in number and v in number:
            successors[number[u]].append(number[v])
    return Layers(
        forward=tuple(float(nodes[name]["forward"]) / 1e3 for name in used),
        backward=tuple(float(nodes[name]["backward"]) / 1e3 for name in used),
        activation=tuple(_total(nodes[name]["activation"]) for name in used),
        parameters=tuple(float(nodes[name]["parameters"]) for name in used),
        successors=tuple(tuple(readers) for readers in successors),
    )


def _total(sizes: str) -> float:
    """Add up the sizes of all outputs: "2.0" -> 2.0, "[1.0; 2.0]" -> 3.0."""
    return sum(float(size) for size in sizes.strip("[]").split(";"))
