"""Building blocks of searches: groups, configurations, cost tables, Markov chains, starts, layers.

A start is a plan from which a search begins. A `Chain` is a Markov chain of plans (FlexFlow's search),
while `build_device_chain` lists the devices of a pipeline with the links between neighbours. `copies` puts
a whole operator on each of some devices. `optcnn_paper` searches with the costs of the OptCNN paper.
`stage_of_groups` divides the groups into consecutive stages of about equal work.

`PlanSpace` has the groups of a graph and the configurations that they may have; `Tables` has the seconds of
each configuration and of the transfers between groups, from which `choose_configurations` takes the
cheapest combination. `Tiles` maps operators to tilings. A `PipelineRequest` has the properties of a
pipeline that the user fixes, such as the number of stages. A `LayerCostModel` estimates times and sizes of
layers, from which stages are made.
"""

from __future__ import annotations

from raddle.searches.baselines.spatial import spatial
from raddle.searches.configurations import Configuration
from raddle.searches.flexflow.chain import Chain, start_chain
from raddle.searches.grids import Tiles, copies
from raddle.searches.groups import Group
from raddle.searches.optcnn.method import choose_configurations, optcnn_paper
from raddle.searches.optcnn.tables import Tables, build_tables
from raddle.searches.pipeline.layer_graph import (
    LayerCostModel,
    build_device_chain,
    build_layer_graph,
    stage_op_names,
)
from raddle.searches.pipeline.request import PipelineRequest
from raddle.searches.plan_space import PlanSpace
from raddle.searches.starts import random_start, split_one_letter, stage_of_groups

__all__ = [
    "Chain",
    "Configuration",
    "Group",
    "LayerCostModel",
    "PipelineRequest",
    "PlanSpace",
    "Tables",
    "Tiles",
    "build_device_chain",
    "build_layer_graph",
    "build_tables",
    "choose_configurations",
    "copies",
    "optcnn_paper",
    "random_start",
    "spatial",
    "split_one_letter",
    "stage_of_groups",
    "stage_op_names",
    "start_chain",
]  # fmt: skip
