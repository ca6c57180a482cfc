"""A bundle of slices: ranges of rows of parameters that are synchronised together.

A message costs time at both ends, however small it is. So small slices, such as a bias and the last rows of
its weight, share one message (parameter_slices.py joins them).
"""

from __future__ import annotations

from typing import NamedTuple

from raddle.graph.box import Box
from raddle.program.parameter_region import ParameterRegion


class Bundle(NamedTuple):
    """Slices that are synchronised together: in one message to one server, or in one all-reduce.

    A slice is a range of rows of a parameter, with its holders and its server. All slices of a bundle have
    the same holders, server and dtype. A large slice is a bundle of its own.
    """

    parameters: tuple[str, ...]  # the parameter of each slice, in the order of use in a forward
    slices: tuple[ParameterRegion, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        return self.slices[0].devices

    @property
    def server(self) -> int:
        return self.slices[0].server

    @property
    def boxes(self) -> tuple[Box, ...]:
        return tuple(slice_.box for slice_ in self.slices)

    @property
    def needs_sync(self) -> bool:
        return self.slices[0].needs_sync

    def with_devices(self, devices: tuple[int, ...]) -> Bundle:
        """Returns the same slices with other holders."""
        return self._replace(slices=tuple(s._replace(devices=devices) for s in self.slices))
