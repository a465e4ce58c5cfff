"""The newest broadcasts, as many as fit into a given number of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from fedtern.layout import Layout
from fedtern.protocol.catchup import MODEL, REPLAY, SUM, Way, encode_sum
from fedtern.protocol.messages import Broadcast
from fedtern.protocol.replica import Replica
from fedtern.sums import merge
from fedtern.updates import nbytes

_MOST_SUMS = 16


class History:
    """Broadcasts of consecutive rounds, read and unread; the oldest go first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._broadcasts: deque[Broadcast] = deque()
        self._sums: dict[int, bytes | None] = {}  # by the round they start from

    def append(self, broadcast: Broadcast) -> None:
        """Add the broadcast of the round that has just ended."""
        self._sums = {}
        self._broadcasts.append(broadcast)
        self.nbytes += _size(broadcast)
        while self.nbytes > self.limit:
            self.nbytes -= _size(self._broadcasts.popleft())

    @property
    def newest(self) -> Broadcast | None:
        """The last broadcast, if there is one and it fits."""
        return self._broadcasts[-1] if self._broadcasts else None

    def since(self, round: int) -> list[Broadcast] | None:
        """The broadcasts from a round that has ended on; None where some of them are gone."""
        if not self._broadcasts or round < self._broadcasts[0].round:
            return None
        # From the end, which is where most of them are asked for.
        count = max(self._broadcasts[-1].round + 1 - round, 0)
        return list(islice(reversed(self._broadcasts), count))[::-1]

    def sum_of(self, missed: Sequence[Broadcast], layout: Layout) -> bytes | None:
        """The encoded sum of what ``since`` gave, where there is one.

        Clients that were away equally long get the same one: it is worked out once a round.
        """
        round = missed[0].round
        if round not in self._sums:
            if len(self._sums) >= _MOST_SUMS:
                self._sums.clear()
            merged = merge([broadcast.update for broadcast in missed])
            self._sums[round] = None if merged is None else encode_sum(merged, layout)
        return self._sums[round]

    def counted(self, client_id: int, round: int) -> bool | None:
        """Whether a client's upload to a round counted; None where that is no longer known."""
        first = self._broadcasts[0].round if self._broadcasts else round + 1
        if not 0 <= first <= round < first + len(self._broadcasts):
            return None
        return client_id in self._broadcasts[round - first].counted

    def lead(self, way: Way, replica: Replica) -> bytes:
        """The shortest catch-up that leads to a replica: replay, sum or model."""
        if way.since == way.round:
            return way.replay([], replica.stamp)
        sizes = {MODEL: 21 + 4 * way.terms.layout.size}
        missed = (self.since(way.since) if way.since >= 0 else None) or []
        payload = self.sum_of(missed, way.terms.layout) if missed else None
        if missed:
            sizes[REPLAY] = way.replay_size([broadcast.data for broadcast in missed])
        if payload is not None:
            sizes[SUM] = 24 + len(payload)
        shortest = min(sizes, key=lambda mode: sizes[mode])
        if shortest == SUM and payload is not None:
            return way.sum(payload, missed[0].head.stamp, replica.stamp)
        if shortest == REPLAY:
            return way.replay([broadcast.data for broadcast in missed], missed[0].head.stamp)
        return way.model(replica.parts(), replica.stamp)

    def data(self) -> list[bytes]:
        """Everything there is, oldest first."""
        return [broadcast.data for broadcast in self._broadcasts]


def _size(broadcast: Broadcast) -> int:
    return len(broadcast.data) + nbytes(broadcast.update)
