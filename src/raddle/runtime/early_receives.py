"""Posts receives before they are needed, so that messages arrive while the rank computes.

To post a receive is to start it: the transport then has a buffer for the message. Only transports with
`early_receives` (gloo, not NCCL), which match messages by their tags, allow this long before the send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raddle.runtime.actions import Receive

MAX_POSTED = 32  # receives posted early, at most
MAX_BYTES = 8 * 2**20  # of all receives posted early; two may always be posted, however large


class EarlyReceives:
    """Posts a list of receives in order, some of them before the actions that need their messages."""

    def __init__(self, receives: Sequence[Receive], post: Callable[[Receive], None]) -> None:
        self.receives, self.post = receives, post
        self.position = {receive.number: index for index, receive in enumerate(receives)}
        self.begin()

    def begin(self) -> None:
        """Starts again with the first receive."""
        self.next = 0  # index of the next receive to post
        self.posted_bytes: dict[int, int] = {}  # number of a posted receive -> its bytes

    def post_early(self) -> None:
        """Posts the next receives, up to the limits: many small ones, or two large ones."""
        while self.next < len(self.receives):
            nbytes, count = self.receives[self.next].nbytes, len(self.posted_bytes)
            fits = sum(self.posted_bytes.values()) + nbytes <= MAX_BYTES or count < 2
            if count >= MAX_POSTED or not fits:
                return
            self._post_next()

    def ensure_posted(self, receive: Receive) -> None:
        """Posts all receives up to this one, if they are not posted yet."""
        while self.next <= self.position[receive.number]:
            self._post_next()

    def mark_received(self, receive: Receive) -> None:
        """Notes that a message has arrived, and posts further receives within the limits."""
        self.posted_bytes.pop(receive.number, None)
        self.post_early()

    def _post_next(self) -> None:
        receive = self.receives[self.next]
        self.posted_bytes[receive.number] = receive.nbytes
        self.next += 1
        self.post(receive)
