"""What searches are made of: groups, configurations, tables, chains, starts, and nodes of a pipeline."""

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
    "PipelineRequest", "Chain", "Configuration", "LayerCostModel", "Group", "PlanSpace", "Tables", "Tiles", "start_chain",
    "choose_configurations", "copies", "build_device_chain", "build_layer_graph", "split_one_letter", "optcnn_paper", "random_start", "spatial",
    "stage_op_names", "stage_of_groups", "build_tables",
]  # fmt: skip
