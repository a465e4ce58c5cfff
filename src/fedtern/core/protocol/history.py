"""Cache of the newest broadcasts, from which clients catch up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from fedtern.core.carried import encode_carried
from fedtern.core.protocol.catchup import CatchUpBuilder, encode_sum
from fedtern.core.protocol.events import How
from fedtern.core.protocol.messages import Broadcast
from fedtern.core.protocol.replica import Replica
from fedtern.core.protocol.terms import Terms
from fedtern.core.updates import Signs, Update, count_entries, estimate_nbytes
from fedtern.core.updates.sums import SignCounts, merge_updates

_MAX_CACHED_SUMS = 16


@dataclass
class CachedBroadcast:
    """A broadcast in the cache.

    Attributes:
        round: the round that the broadcast ends.
        stamp: the stamp of the history before the broadcast.
        counted: the clients whose uploads were counted.
        data: the message.
        update: the decoded update; None if it was dropped to save memory.
        update_bytes: the estimated size of the update when it was added. Updates grow with use.
        num_entries: the number of entries that it adds to a sum. It is larger than the model if
            the update cannot be merged with others.
        carried: the names of the carried tensors that the round has changed.

    """

    round: int
    stamp: bytes
    counted: frozenset[int]
    data: bytes
    update: Update | None
    update_bytes: int
    num_entries: int
    carried: frozenset[str]


class History:
    """The broadcasts of consecutive rounds. The oldest are dropped first.

    One half of the limit is for the bytes of broadcasts, the other half for decoded updates. The
    messages to clients do not depend on which updates are decoded.

    Args:
        limit: the maximum size in bytes.
        terms: model and method.

    """

    def __init__(self, limit: int, terms: Terms) -> None:
        if limit < 0:
            raise ValueError(f"cache_bytes must not be negative, got {limit}")
        self.limit = limit
        self.terms = terms
        self._broadcasts: deque[CachedBroadcast] = deque()
        self._decoded: deque[CachedBroadcast] = deque()  # those that still have their update
        self._data_bytes = 0
        self._update_bytes = 0
        self._num_entries = 0
        self._sums: dict[int, bytes | None] = {}  # encoded sums by the round they start from

    @property
    def nbytes(self) -> int:
        """The approximate size in bytes."""
        return self._data_bytes + self._update_bytes

    def append(self, broadcast: Broadcast) -> None:
        """Add the broadcast of the round that has just ended."""
        self._sums = {}
        update = broadcast.update
        num_entries = self._count_entries(update)
        # An update that cannot be a part of a sum is never needed again.
        has_use = num_entries <= self.terms.layout.size
        cached = CachedBroadcast(
            round=broadcast.round,
            stamp=broadcast.header.stamp,
            counted=broadcast.counted,
            data=broadcast.data,
            update=update if has_use else None,
            update_bytes=estimate_nbytes(update) if has_use else 0,
            num_entries=num_entries,
            carried=frozenset(broadcast.carried),
        )
        self._broadcasts.append(cached)
        if has_use:
            self._decoded.append(cached)
        self._data_bytes += len(cached.data)
        self._update_bytes += cached.update_bytes
        self._num_entries += cached.num_entries
        while self._update_bytes > self.limit // 2:
            self._drop_oldest_update()
        while self._data_bytes > self.limit // 2 or self._oldest_is_useless():
            self._drop_oldest()

    def _count_entries(self, update: Update) -> int:
        if isinstance(update, Signs):
            return 0  # any number of sign updates can be counted
        num_entries = count_entries(update)
        return self.terms.layout.size + 1 if num_entries is None else num_entries

    def _oldest_is_useless(self) -> bool:
        """Whether the model is shorter than a replay from the oldest round, and no sum exists."""
        size = self.terms.layout.size
        model_is_shorter = self._data_bytes > 4 * size + self.terms.layout.carried_nbytes
        no_sum_exists = self._num_entries > size
        return len(self._broadcasts) > 1 and model_is_shorter and no_sum_exists

    def _drop_oldest(self) -> None:
        if self._decoded and self._decoded[0] is self._broadcasts[0]:
            self._drop_oldest_update()
        oldest = self._broadcasts.popleft()
        self._data_bytes -= len(oldest.data)
        self._num_entries -= oldest.num_entries

    def _drop_oldest_update(self) -> None:
        oldest = self._decoded.popleft()
        oldest.update = None
        self._update_bytes -= oldest.update_bytes

    @property
    def newest(self) -> CachedBroadcast | None:
        """The last broadcast; None if there is none or it did not fit."""
        return self._broadcasts[-1] if self._broadcasts else None

    @property
    def is_complete(self) -> bool:
        """Whether the cache has all broadcasts since round 0."""
        return bool(self._broadcasts) and self._broadcasts[0].round == 0

    def broadcasts_since(self, round: int) -> list[CachedBroadcast] | None:
        """Return the broadcasts from a finished round on; None if some are no longer cached."""
        if not self._broadcasts or round < self._broadcasts[0].round:
            return None
        # Most clients missed few rounds, so count from the end.
        count = max(self._broadcasts[-1].round + 1 - round, 0)
        return list(islice(reversed(self._broadcasts), count))[::-1]

    def encoded_sum(self, missed: Sequence[CachedBroadcast], replica: Replica) -> bytes | None:
        """Return the carried tensors and the sum of broadcasts; None if they cannot be merged.

        Clients that missed the same rounds get the same sum. It is computed once per round.

        Args:
            missed: all broadcasts since a round, at least one.
            replica: the replica after the last broadcast.

        """
        round = missed[0].round
        if round not in self._sums:
            if len(self._sums) >= _MAX_CACHED_SUMS:
                self._sums.clear()
            merged = None
            # Updates with more entries cannot be merged. Check this before decoding them.
            if sum(cached.num_entries for cached in missed) <= self.terms.layout.size:
                merged = merge_updates([self._update_of(cached) for cached in missed])
            if isinstance(merged, SignCounts) and merged.num_updates > replica.num_sign_updates:
                merged = None  # the replica has changed its base in between
            self._sums[round] = None if merged is None else encode_sum(merged, self.terms.layout)
        return self._sums[round]

    def _carried_section(self, missed: Sequence[CachedBroadcast], replica: Replica) -> bytes:
        """Encode the newest values of the carried tensors that broadcasts have changed."""
        names = frozenset[str]().union(*(cached.carried for cached in missed))
        changed = {name: values for name, values in replica.carried.items() if name in names}
        return encode_carried(changed, self.terms.layout)

    def _update_of(self, cached: CachedBroadcast) -> Update:
        if cached.update is not None:
            return cached.update
        return Broadcast.open(cached.data, self.terms).update

    def was_counted(self, client_id: int, round: int) -> bool | None:
        """Whether a client's upload to a round was counted; None if it is no longer known."""
        first = self._broadcasts[0].round if self._broadcasts else round + 1
        if not 0 <= first <= round < first + len(self._broadcasts):
            return None
        return client_id in self._broadcasts[round - first].counted

    def shortest_catch_up(
        self, builder: CatchUpBuilder, replica: Replica, initial: bytes | None = None
    ) -> tuple[bytes, How]:
        """Build the shortest catch-up that leads to a replica: replay, sum, model or start.

        Args:
            builder: builds the messages for a client.
            replica: the replica that the client should have.
            initial: the encoded initial model, if it is shorter than an exact one.

        """
        if builder.since == builder.round:
            return builder.replay([], replica.stamp), How.REPLAY
        if builder.since < 0:
            return self._whole_model(builder, replica, initial)
        missed = self.broadcasts_since(builder.since) or []
        payload = self.encoded_sum(missed, replica) if missed else None
        # Sizes to within a few bytes.
        layout = builder.terms.layout
        sizes = {How.MODEL: 21 + 4 * layout.size + layout.carried_nbytes}
        if missed:
            sizes[How.REPLAY] = builder.replay_size([cached.data for cached in missed])
        if payload is not None:
            payload = self._carried_section(missed, replica) + payload
            sizes[How.SUM] = 24 + len(payload)
        shortest = min(sizes, key=lambda how: sizes[how])
        if shortest == How.SUM and payload is not None:
            return builder.sum(payload, missed[0].stamp, replica.stamp), shortest
        if shortest == How.REPLAY:
            return builder.replay([cached.data for cached in missed], missed[0].stamp), shortest
        return self._whole_model(builder, replica, None)

    def _whole_model(
        self, builder: CatchUpBuilder, replica: Replica, initial: bytes | None
    ) -> tuple[bytes, How]:
        """Build a catch-up for a client whose own weights are of no use."""
        # None if broadcasts since the initial model are no longer in the cache.
        missed = self.broadcasts_since(0) if builder.round else []
        if initial is not None and missed is not None:
            most = 4 * builder.terms.layout.size - len(initial)
            payload = self.encoded_sum(missed, replica) if missed else b""
            broadcasts = [cached.data for cached in missed]
            if payload is not None and len(payload) < most:
                data = builder.start(initial, payload, replica.stamp, replica.carried)
                return data, How.START
            if builder.replay_size(broadcasts) < most:
                data = builder.start_with_replay(
                    initial, broadcasts, replica.stamp, replica.carried
                )
                return data, How.START
        weights, sign_counts = replica.base_and_signs()
        return builder.model(weights, sign_counts, replica.stamp, replica.carried), How.MODEL

    def encoded_broadcasts(self) -> list[bytes]:
        """Return all cached broadcasts as bytes, oldest first."""
        return [cached.data for cached in self._broadcasts]
