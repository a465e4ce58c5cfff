"""The newest broadcasts, as many as fit into a given number of bytes."""

from __future__ import annotations

from collections import deque
from itertools import islice

from fedtern.layout import Layout
from fedtern.protocol.catchup import encode_sum
from fedtern.protocol.messages import Broadcast
from fedtern.sums import merge


class History:
    """Broadcasts of consecutive rounds; the oldest go first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._broadcasts: deque[Broadcast] = deque()
        self._sums: dict[int, bytes | None] = {}  # by the round they start from

    def append(self, broadcast: Broadcast) -> None:
        """Add the broadcast of the round that has just ended."""
        self._sums = {}
        self._broadcasts.append(broadcast)
        self.nbytes += len(broadcast.data)
        while self.nbytes > self.limit:
            self.nbytes -= len(self._broadcasts.popleft().data)

    @property
    def newest(self) -> bytes | None:
        """The last broadcast, if there is one and it fits."""
        return self._broadcasts[-1].data if self._broadcasts else None

    def between(self, since: int, now: int) -> list[Broadcast] | None:
        """The broadcasts of these rounds; None where some of them are gone."""
        if since == now:
            return []
        if not self._broadcasts or not self._broadcasts[0].round <= since:
            return None
        return list(islice(self._broadcasts, since - self._broadcasts[0].round, None))

    def sum_since(self, since: int, layout: Layout) -> bytes | None:
        """The encoded sum of the broadcasts from a round on, where they have one.

        Clients that were away equally long get the same one: it is worked out once a round.
        """
        if since not in self._sums:
            missed = self.between(since, -1) or []
            merged = merge([broadcast.update for broadcast in missed])
            self._sums[since] = None if merged is None else encode_sum(merged, layout)
        return self._sums[since]

    def data(self) -> list[bytes]:
        """Everything there is, oldest first."""
        return [broadcast.data for broadcast in self._broadcasts]
