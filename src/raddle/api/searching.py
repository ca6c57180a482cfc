"""What searches are made of: groups, configurations, tables, chains, starts, and nodes of a pipeline."""

from __future__ import annotations

from raddle.searches.baselines.spatial import spatial
from raddle.searches.configurations import Configuration
from raddle.searches.flexflow.chain import Chain, chain
from raddle.searches.grids import Tiles, copies
from raddle.searches.groups import Group
from raddle.searches.optcnn.method import choose, optcnn_paper
from raddle.searches.optcnn.tables import Tables, tables
from raddle.searches.pipeline.asked import Asked
from raddle.searches.pipeline.nodes import Costs, line_of, nodes_of, stage_names
from raddle.searches.planspace import PlanSpace
from raddle.searches.starts import one_letter, random_start, stages_of

__all__ = [
    "Asked", "Chain", "Configuration", "Costs", "Group", "PlanSpace", "Tables", "Tiles", "chain",
    "choose", "copies", "line_of", "nodes_of", "one_letter", "optcnn_paper", "random_start", "spatial",
    "stage_names", "stages_of", "tables",
]  # fmt: skip
