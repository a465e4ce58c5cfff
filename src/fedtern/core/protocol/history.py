"""The newest broadcasts, as many as are of use and fit into a given number of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from fedtern.core.protocol.catchup import CatchUpBuilder, encode_sum
from fedtern.core.protocol.events import How
from fedtern.core.protocol.messages import Broadcast
from fedtern.core.protocol.replica import Replica
from fedtern.core.protocol.terms import Terms
from fedtern.core.updates import Signs, Update, count_entries, estimate_nbytes
from fedtern.core.updates.sums import SignCounts, merge_updates

_MOST_SUMS = 16


@dataclass
class CachedBroadcast:
    """A broadcast of which its update may have been forgotten: its bytes can be read again."""

    round: int
    stamp: bytes  # of the history before it
    counted: frozenset[int]
    data: bytes
    update: Update | None
    update_bytes: int  # as they were counted: updates grow as they are used
    touches: int  # of positions; more than there are where it cannot be merged with others


class History:
    """Broadcasts of consecutive rounds; the oldest go first.

    One half of ``limit`` is for their bytes, the other for updates that have been read. Which of
    those are there makes no difference to what clients are sent.
    """

    def __init__(self, limit: int, terms: Terms) -> None:
        if limit < 0:
            raise ValueError(f"cache_bytes must not be negative, got {limit}")
        self.limit = limit
        self.terms = terms
        self._past: deque[CachedBroadcast] = deque()
        self._read: deque[CachedBroadcast] = deque()  # those whose updates are there
        self._data_bytes = self._update_bytes = self._touches = 0
        self._sums: dict[int, bytes | None] = {}  # by the round they start from

    @property
    def nbytes(self) -> int:
        """What is held, about."""
        return self._data_bytes + self._update_bytes

    def append(self, broadcast: Broadcast) -> None:
        """Add the broadcast of the round that has just ended."""
        self._sums = {}
        head, update = broadcast.head, broadcast.update
        past = CachedBroadcast(
            head.round,
            head.stamp,
            broadcast.counted,
            broadcast.data,
            update,
            estimate_nbytes(update),
            self._count_touches(update),
        )
        self._past.append(past)
        self._read.append(past)
        self._data_bytes += len(past.data)
        self._update_bytes += past.update_bytes
        self._touches += past.touches
        while self._update_bytes > self.limit // 2:
            self._forget_update()
        while self._data_bytes > self.limit // 2 or self._oldest_is_of_no_use():
            self._forget_oldest()

    def _count_touches(self, update: Update) -> int:
        if isinstance(update, Signs):
            return 0  # they are counted, however many
        touches = count_entries(update)
        return self.terms.layout.size + 1 if touches is None else touches

    def _oldest_is_of_no_use(self) -> bool:
        """Whether from there the model is shorter than a replay, and there is no sum."""
        size = self.terms.layout.size
        return len(self._past) > 1 and self._data_bytes > 4 * size and self._touches > size

    def _forget_oldest(self) -> None:
        if self._read and self._read[0] is self._past[0]:
            self._forget_update()
        oldest = self._past.popleft()
        self._data_bytes -= len(oldest.data)
        self._touches -= oldest.touches

    def _forget_update(self) -> None:
        past = self._read.popleft()
        past.update = None
        self._update_bytes -= past.update_bytes

    @property
    def newest(self) -> CachedBroadcast | None:
        """The last broadcast, if there is one and it fits."""
        return self._past[-1] if self._past else None

    def since(self, round: int) -> list[CachedBroadcast] | None:
        """The broadcasts from a round that has ended on; None where some of them are gone."""
        if not self._past or round < self._past[0].round:
            return None
        # From the end, which is where most of them are asked for.
        count = max(self._past[-1].round + 1 - round, 0)
        return list(islice(reversed(self._past), count))[::-1]

    def sum_of(self, missed: Sequence[CachedBroadcast], replica: Replica) -> bytes | None:
        """The encoded sum of what ``since`` gave and led to a replica, where there is one.

        Clients that were away equally long get the same one: it is worked out once a round.
        """
        round = missed[0].round
        if round not in self._sums:
            if len(self._sums) >= _MOST_SUMS:
                self._sums.clear()
            merged = None
            # More are not merged in any case: they need not be read to find that out.
            if sum(past.touches for past in missed) <= self.terms.layout.size:
                merged = merge_updates([self._update_of(past) for past in missed])
            if isinstance(merged, SignCounts) and merged.num_updates > replica.num_sign_updates:
                merged = None  # some were counted on an earlier base
            self._sums[round] = None if merged is None else encode_sum(merged, self.terms.layout)
        return self._sums[round]

    def _update_of(self, past: CachedBroadcast) -> Update:
        if past.update is not None:
            return past.update
        return Broadcast.open(past.data, self.terms).update

    def counted(self, client_id: int, round: int) -> bool | None:
        """Whether a client's upload to a round counted; None where that is no longer known."""
        first = self._past[0].round if self._past else round + 1
        if not 0 <= first <= round < first + len(self._past):
            return None
        return client_id in self._past[round - first].counted

    def lead(self, builder: CatchUpBuilder, replica: Replica) -> tuple[bytes, How]:
        """Build the shortest catch-up that leads to a replica: replay, sum or model."""
        if builder.since == builder.round:
            return builder.replay([], replica.stamp), How.REPLAY
        sizes = {How.MODEL: 21 + 4 * builder.terms.layout.size}
        missed = (self.since(builder.since) if builder.since >= 0 else None) or []
        payload = self.sum_of(missed, replica) if missed else None
        if missed:
            sizes[How.REPLAY] = builder.replay_size([past.data for past in missed])
        if payload is not None:
            sizes[How.SUM] = 24 + len(payload)
        shortest = min(sizes, key=lambda how: sizes[how])
        if shortest == How.SUM and payload is not None:
            return builder.sum(payload, missed[0].stamp, replica.stamp), shortest
        if shortest == How.REPLAY:
            return builder.replay([past.data for past in missed], missed[0].stamp), shortest
        return builder.model(replica.parts(), replica.stamp), How.MODEL

    def data(self) -> list[bytes]:
        """Everything there is, oldest first."""
        return [past.data for past in self._past]
