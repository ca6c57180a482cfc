"""Receives that are posted before they are needed, so that messages arrive while a rank computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raddle.runtime.actions import Receive

MAX_POSTED = 32  # receives that are posted ahead
MAX_BYTES = 8 * 2**20  # bytes of them, unless fewer than two would be


class EarlyReceives:
    """The receives of one order of actions."""

    def __init__(self, receives: Sequence[Receive], post: Callable[[Receive], None]) -> None:
        self.receives, self.post = receives, post
        self.position = {receive.number: index for index, receive in enumerate(receives)}
        self.begin()

    def begin(self) -> None:
        self.next = 0
        self.posted_bytes: dict[int, int] = {}  # bytes of those that are posted, by number

    def post_early(self) -> None:
        """Posts those that come next: many small ones, of large ones the next and one more."""
        while self.next < len(self.receives):
            nbytes, count = self.receives[self.next].nbytes, len(self.posted_bytes)
            fits = sum(self.posted_bytes.values()) + nbytes <= MAX_BYTES or count < 2
            if count >= MAX_POSTED or not fits:
                return
            self._post_next()

    def ensure_posted(self, receive: Receive) -> None:
        """It has to be posted by now."""
        while self.next <= self.position[receive.number]:
            self._post_next()

    def mark_received(self, receive: Receive) -> None:
        self.posted_bytes.pop(receive.number, None)
        self.post_early()

    def _post_next(self) -> None:
        receive = self.receives[self.next]
        self.posted_bytes[receive.number] = receive.nbytes
        self.next += 1
        self.post(receive)
