"""Costs: seconds of operators, measured or from a roofline model, and bytes of synchronisation.

`measure` times tiles (boxes of operators) on this machine and returns a `Profile`; `distinct_tiles` lists
the tiles of a plan that it must time. `ComputeCosts` gives the seconds of an operator: from the profile or,
where that has no measurement, from the roofline model. `server_bytes` counts bytes to and from a parameter
server.
"""

from __future__ import annotations

from raddle.costs.collectives import server_bytes
from raddle.costs.compute import ComputeCosts
from raddle.costs.profile import Profile, distinct_tiles, load_profile, measure

__all__ = [
    "ComputeCosts", "Profile", "distinct_tiles", "load_optional_profile", "load_profile", "measure",
    "server_bytes",
]  # fmt: skip


def load_optional_profile(profile: Profile | str | None) -> Profile | None:
    """Return the profile of a file; a profile and None are returned as they are."""
    return load_profile(profile) if isinstance(profile, str) else profile
