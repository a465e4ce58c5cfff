"""Cache of the newest broadcasts, from which clients catch up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from fedtern.core.carried import encode_carried
from fedtern.core.layout import Layout, Vector
from fedtern.core.protocol.catchup import CatchUpBuilder, encode_sum
from fedtern.core.protocol.events import How
from fedtern.core.protocol.messages import Broadcast
from fedtern.core.protocol.replica import Replica
from fedtern.core.protocol.terms import STAMP_BYTES, Terms
from fedtern.core.updates import Signs, Steps, Update, count_entries, estimate_nbytes
from fedtern.core.updates.steps import difference_in_steps
from fedtern.core.updates.sums import MAX_UPDATES, SignCounts, merge_updates

# Memory of the objects around the data, measured with tracemalloc. Constants, because the messages
# to clients must not depend on the version of Python.
_BROADCAST_OVERHEAD = 384
_UPDATE_OVERHEAD = 1536
_SUM_OVERHEAD = 512


@dataclass(slots=True)
class CachedBroadcast:
    """A broadcast in the cache.

    Attributes:
        round: the round that the broadcast ends.
        data: the message.
        update: the decoded update; None if it was dropped to save memory.
        update_bytes: the estimated size of the update when it was added. Updates grow with use.
        num_entries: the number of entries that it adds to a sum. It is larger than the model if
            the update cannot be merged with others.
        carried: the names of the carried tensors that the round has changed.

    """

    round: int
    data: bytes
    update: Update | None
    update_bytes: int
    num_entries: int
    carried: frozenset[str]

    @property
    def data_bytes(self) -> int:
        """The memory of the broadcast without its update, in bytes."""
        return len(self.data) + _BROADCAST_OVERHEAD


class Stamps:
    """The stamps of the history at all rounds: three bytes each, so that they are never dropped.

    Args:
        first: the first known round. It is above 0 only for a server that was restored from a
            snapshot of an earlier version.
        data: the stamps of the rounds from ``first`` on.

    """

    def __init__(self, first: int = 0, data: bytes = b"") -> None:
        self.first = first
        self.data = bytearray(data)

    def append(self, stamp: bytes) -> None:
        """Add the stamp of the next round."""
        self.data += stamp

    def at(self, round: int) -> bytes | None:
        """Return the stamp of a round; None if it is not known."""
        start = (round - self.first) * STAMP_BYTES
        if not 0 <= start < len(self.data):
            return None
        return bytes(self.data[start : start + STAMP_BYTES])


@dataclass(frozen=True)
class Origin:
    """The weights at round 0, from which the sum of all steps follows without any broadcast.

    Attributes:
        weights: the weights.
        stamp: the stamp of the history at round 0.

    """

    weights: Vector
    stamp: bytes

    def encoded_sum(self, replica: Replica, layout: Layout) -> bytes | None:
        """Return the sum of all updates since round 0; None if it cannot be encoded."""
        total = difference_in_steps(self.weights, replica.exact_weights())
        return None if total is None else encode_sum(total, layout)


class History:
    """The broadcasts of consecutive rounds. The oldest are dropped first.

    One half of the limit is for broadcasts, a quarter for decoded updates, and a quarter for sums
    of broadcasts. The messages to clients do not depend on which updates are decoded.

    Args:
        limit: the maximum size in bytes, of real memory: objects and lists count, too. A message
            that is being made does not count.
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
        self._sum_bytes = 0
        self._num_entries = 0
        self._sums: dict[int, bytes | None] = {}  # encoded sums by the round they start from
        self._summed_steps: dict[int, Steps] = {}  # the same sums of steps, as updates

    @property
    def nbytes(self) -> int:
        """The approximate size in bytes."""
        return self._data_bytes + self._update_bytes + self._sum_bytes

    def append(self, broadcast: Broadcast) -> None:
        """Add the broadcast of the round that has just ended."""
        self._clear_sums()
        update = broadcast.update
        num_entries = self._count_entries(update)
        # An update that cannot be a part of a sum is never needed again.
        has_use = num_entries <= self.terms.layout.size
        cached = CachedBroadcast(
            round=broadcast.round,
            data=broadcast.data,
            update=update if has_use else None,
            update_bytes=_update_memory(update) if has_use else 0,
            num_entries=num_entries,
            carried=frozenset(broadcast.carried),
        )
        self._broadcasts.append(cached)
        if has_use:
            self._decoded.append(cached)
        self._data_bytes += cached.data_bytes
        self._update_bytes += cached.update_bytes
        self._num_entries += cached.num_entries
        while self._update_bytes > self.limit // 4:
            self._drop_oldest_update()
        while self._data_bytes > self.limit // 2 or self._oldest_is_useless():
            self._drop_oldest()

    def _count_entries(self, update: Update) -> int:
        if isinstance(update, Signs | Steps):
            return 0  # any number of these updates can be summed
        num_entries = count_entries(update)
        return self.terms.layout.size + 1 if num_entries is None else num_entries

    def _oldest_is_useless(self) -> bool:
        """Whether the model is shorter than a replay from the oldest round, and no sum exists."""
        size = self.terms.layout.size
        replay_bytes = self._data_bytes - _BROADCAST_OVERHEAD * len(self._broadcasts)
        model_is_shorter = replay_bytes > 4 * size + self.terms.layout.carried_nbytes
        no_sum_exists = self._num_entries > size
        return len(self._broadcasts) > 1 and model_is_shorter and no_sum_exists

    def _drop_oldest(self) -> None:
        if self._decoded and self._decoded[0] is self._broadcasts[0]:
            self._drop_oldest_update()
        oldest = self._broadcasts.popleft()
        self._data_bytes -= oldest.data_bytes
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
            merged = None
            # Updates with more entries cannot be merged. Check this before decoding them.
            num_entries = sum(cached.num_entries for cached in missed)
            if num_entries <= self.terms.layout.size and len(missed) <= MAX_UPDATES:
                merged = merge_updates(self._updates_of(missed))
            if isinstance(merged, SignCounts) and merged.num_updates > replica.num_sign_updates:
                merged = None  # the replica has changed its base in between
            encoded = None if merged is None else encode_sum(merged, self.terms.layout)
            self._keep_sum(round, encoded, merged if isinstance(merged, Steps) else None)
            return encoded
        return self._sums[round]

    def _keep_sum(self, round: int, encoded: bytes | None, steps: Steps | None = None) -> None:
        """Keep a sum for other clients at the same round, if there is memory for it."""
        limit = self.limit // 4
        for is_optional in (True, False):
            nbytes = _SUM_OVERHEAD + len(encoded or b"")
            nbytes += 0 if steps is None else _update_memory(steps)
            if nbytes <= limit or not is_optional:
                break
            steps = None  # the encoded sum is of more use
        if nbytes > limit:
            return
        if self._sum_bytes + nbytes > limit:
            self._clear_sums()
        self._sums[round] = encoded
        if steps is not None:
            self._summed_steps[round] = steps
        self._sum_bytes += nbytes

    def _clear_sums(self) -> None:
        self._sums = {}
        self._summed_steps = {}
        self._sum_bytes = 0

    def _carried_section(self, missed: Sequence[CachedBroadcast], replica: Replica) -> bytes:
        """Encode the newest values of the carried tensors that broadcasts have changed."""
        names = frozenset[str]().union(*(cached.carried for cached in missed))
        if not missed:  # the rounds are no longer known, so all tensors may have changed
            names = frozenset(replica.carried)
        changed = {name: values for name, values in replica.carried.items() if name in names}
        return encode_carried(changed, self.terms.layout)

    def _updates_of(self, missed: Sequence[CachedBroadcast]) -> list[Update]:
        """Return updates with the same sum as all broadcasts since a round.

        Sums of steps are exact in any order. So a sum for a client that missed fewer rounds is a
        part of the sum for one that missed more.
        """
        first = missed[0].round
        known = min((round for round in self._summed_steps if round > first), default=None)
        if known is None:
            return [self._update_of(cached) for cached in missed]
        earlier = [self._update_of(cached) for cached in missed[: known - first]]
        return [*earlier, self._summed_steps[known]]

    def _update_of(self, cached: CachedBroadcast) -> Update:
        if cached.update is not None:
            return cached.update
        return Broadcast.open(cached.data, self.terms).update

    def shortest_catch_up(
        self,
        builder: CatchUpBuilder,
        replica: Replica,
        initial: bytes | None = None,
        origin: Origin | None = None,
    ) -> tuple[bytes, How]:
        """Build the shortest catch-up that leads to a replica: replay, sum, model or start.

        Args:
            builder: builds the messages for a client.
            replica: the replica that the client should have.
            initial: the encoded initial model, if it is shorter than an exact one.
            origin: the weights at round 0, if broadcasts are steps.

        """
        if builder.since == builder.round:
            return builder.replay([], replica.stamp), How.REPLAY
        if builder.since < 0:
            return self._whole_model(builder, replica, initial, origin)
        stamp = b"" if builder.addressee is None else builder.addressee.stamp
        missed = self.broadcasts_since(builder.since) or []
        payload = self.encoded_sum(missed, replica) if missed else None
        if builder.since == 0 and not missed and origin is not None:
            payload = self._encoded_total(origin, replica)
        # Sizes to within a few bytes.
        layout = builder.terms.layout
        sizes = {How.MODEL: 25 + 4 * layout.size + layout.carried_nbytes}
        if missed:
            sizes[How.REPLAY] = builder.replay_size([cached.data for cached in missed])
        if payload is not None:
            payload = self._carried_section(missed, replica) + payload
            sizes[How.SUM] = 24 + len(payload)
        shortest = min(sizes, key=lambda how: sizes[how])
        if shortest == How.SUM and payload is not None:
            return builder.sum(payload, stamp, replica.stamp), shortest
        if shortest == How.REPLAY:
            return builder.replay([cached.data for cached in missed], stamp), shortest
        return self._whole_model(builder, replica, None, None)

    def _encoded_total(self, origin: Origin, replica: Replica) -> bytes | None:
        """Return the sum of all updates since round 0, computed once per round."""
        if 0 not in self._sums:
            encoded = origin.encoded_sum(replica, self.terms.layout)
            self._keep_sum(0, encoded)
            return encoded
        return self._sums[0]

    def _whole_model(
        self,
        builder: CatchUpBuilder,
        replica: Replica,
        initial: bytes | None,
        origin: Origin | None,
    ) -> tuple[bytes, How]:
        """Build a catch-up for a client whose own weights are of no use."""
        # None if broadcasts since the initial model are no longer in the cache.
        missed = self.broadcasts_since(0) if builder.round else []
        if initial is not None:
            most = 4 * builder.terms.layout.size - len(initial)
            payload = None
            if missed is not None:
                payload = self.encoded_sum(missed, replica) if missed else b""
            elif origin is not None:
                payload = self._encoded_total(origin, replica)
            if payload is not None and len(payload) < most:
                data = builder.start(initial, payload, replica.stamp, replica.carried)
                return data, How.START
            broadcasts = None if missed is None else [cached.data for cached in missed]
            if broadcasts is not None and builder.replay_size(broadcasts) < most:
                data = builder.start_with_replay(
                    initial, broadcasts, replica.stamp, replica.carried
                )
                return data, How.START
        weights, sign_counts = replica.base_and_signs()
        low = replica.low_parts
        data = builder.model(weights, sign_counts, replica.stamp, replica.carried, low)
        return data, How.MODEL

    def encoded_broadcasts(self) -> list[bytes]:
        """Return all cached broadcasts as bytes, oldest first."""
        return [cached.data for cached in self._broadcasts]


def _update_memory(update: Update) -> int:
    return estimate_nbytes(update) + _UPDATE_OVERHEAD
