"""Receives that are posted before they are needed, so that messages arrive while a rank computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raddle.runtime.actions import Receive

WINDOW = 32  # receives that are posted ahead
AHEAD = 8 * 2**20  # bytes of them, unless fewer than two would be


class Posting:
    """The receives of one order of actions."""

    def __init__(self, receives: Sequence[Receive], post: Callable[[Receive], None]) -> None:
        self.receives, self.post = receives, post
        self.place = {receive.number: at for at, receive in enumerate(receives)}
        self.begin()

    def begin(self) -> None:
        self.next = 0
        self.waiting: dict[int, int] = {}  # bytes of those that are posted, by number

    def ahead(self) -> None:
        """Posts those that come next: many small ones, of large ones the next and one more."""
        while self.next < len(self.receives):
            nbytes, count = self.receives[self.next].nbytes, len(self.waiting)
            room = sum(self.waiting.values()) + nbytes <= AHEAD or count < 2
            if count >= WINDOW or not room:
                return
            self._post_next()

    def reach(self, receive: Receive) -> None:
        """It has to be posted by now."""
        while self.next <= self.place[receive.number]:
            self._post_next()

    def arrived(self, receive: Receive) -> None:
        self.waiting.pop(receive.number, None)
        self.ahead()

    def _post_next(self) -> None:
        receive = self.receives[self.next]
        self.waiting[receive.number] = receive.nbytes
        self.next += 1
        self.post(receive)
