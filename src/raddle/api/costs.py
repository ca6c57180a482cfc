"""Seconds of operators, measured or by a roofline, and bytes of synchronisation."""

from __future__ import annotations

from raddle.costs.collectives import server_bytes
from raddle.costs.compute import Compute
from raddle.costs.profile import Profile, distinct, load_profile, measure

__all__ = ["Compute", "Profile", "distinct", "load_profile", "measure", "server_bytes"]
