"""Which messages the server reads at all, decided when they are taken off the socket.

A message passes ``Admission.admit`` before it is queued. The queue is bounded for each client and
in total. A client that keeps sending refused messages floods: the server then subscribes to the
topics of all other clients by name, so that the broker drops the flood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedtern.core.layout import Layout
from fedtern.transports.mqtt.limits import MESSAGE_OVERHEAD, Limits, RateLimiter
from fedtern.transports.mqtt.stats import Stats
from fedtern.transports.mqtt.topics import ALIVE, UP

_MAX_SHORT_BYTES = 16  # of a message that is not an upload
_WINDOW = 10.0  # seconds in which refused messages of a client are counted
# Seconds for which a client that floods is muted. Each further time doubles them.
_FIRST_MUTE = 30.0
_LAST_MUTE = 240.0


@dataclass(frozen=True)
class Mute:
    """A client whose topics are not received.

    Attributes:
        until: time at which the server tries to receive its messages again.
        seconds: duration.

    """

    until: float
    seconds: float


class Admission:
    """Applies the limits on size, rate and memory, and finds clients that flood.

    It keeps no clock: ``now`` is in seconds from any start and never decreases.

    Args:
        limits: sizes and rates.
        layout: layout of the model, which limits the size of an upload.
        stats: counters of refused messages.

    """

    def __init__(self, limits: Limits, layout: Layout, stats: Stats) -> None:
        self.limits = limits
        self.muted: Mapping[int, Mute] = {}  # replaced, never changed
        self.on_mute: Callable[[], None] | None = None  # called after a client is muted
        self._stats = stats
        self._max_upload = limits.max_upload_bytes(layout)
        self._max_queued = limits.max_queue_bytes(layout)
        self._max_client_queued = limits.max_client_queue_bytes(layout)
        self._rate_limiter = RateLimiter(limits)
        # Presence has a limit of its own: a client whose presence is unknown is never selected.
        self._presence_limiter = RateLimiter(limits)
        self._queued: dict[int, int] = {}  # bytes by client
        self._queued_total = 0
        self._window_end = 0.0
        self._refused: dict[int, int] = {}  # refused messages in this window, by client
        self._last_mutes: dict[int, Mute] = {}

    def admit(self, kind: str, client: int, size: int, now: float) -> bool:
        """Decide about a message and reserve memory for it; count and log it if it is refused.

        Args:
            kind: kind of the topic.
            client: client of the topic.
            size: length of the payload in bytes.
            now: current time.

        Returns:
            Whether to queue the message. Call ``release`` when it leaves the queue.

        """
        self._stats.up_bytes += size
        if client in self.muted:
            self._stats.refuse("muted", client, "its topics are muted", size)
            return False
        limit = self._max_upload if kind == UP else _MAX_SHORT_BYTES
        if size > limit:
            detail = f"{size} bytes on topic {kind}/{client}, at most {limit} are allowed"
            self._refuse("size", client, detail, size, now)
            return False
        memory = size + MESSAGE_OVERHEAD
        queued = self._queued.get(client, 0)
        if queued + memory > self._max_client_queued:
            detail = f"{queued} bytes of its messages wait, at most {self._max_client_queued}"
            self._refuse("queue", client, detail, size, now)
            return False
        if self._queued_total + memory > self._max_queued:
            # Not a fault of this client, so it does not count as a flood.
            detail = f"{self._queued_total} bytes of messages wait, at most {self._max_queued}"
            self._stats.refuse("queue", client, detail, size)
            return False
        limiter = self._presence_limiter if kind == ALIVE else self._rate_limiter
        if not limiter.allow(client, now):
            detail = f"more than {self.limits.burst} messages at once on topic {kind}/{client}"
            self._refuse("rate", client, detail, size, now)
            return False
        self._queued[client] = queued + memory
        self._queued_total += memory
        return True

    def release(self, client: int, size: int) -> None:
        """Return the memory of a message that left the queue."""
        memory = size + MESSAGE_OVERHEAD
        self._queued_total -= memory
        left = self._queued[client] - memory
        if left:
            self._queued[client] = left
        else:
            del self._queued[client]

    def connection_lost(self) -> None:
        """Return the memory of all messages, after their queue was dropped."""
        self._queued.clear()
        self._queued_total = 0

    def refund(self, client: int) -> None:
        """Return the rate token of an accepted upload."""
        self._rate_limiter.refund(client)

    def round_finished(self) -> None:
        """Give each client the tokens of a round."""
        self._rate_limiter.round_finished()
        self._presence_limiter.round_finished()

    def unusable(self, client: int, now: float) -> None:
        """Count an admitted message of which the server had no use towards a flood."""
        self._count(client, now)

    @property
    def next_unmute(self) -> float | None:
        """Time at which to call ``unmute``; None for never."""
        return min((mute.until for mute in self.muted.values()), default=None)

    def unmute(self, now: float) -> None:
        """Receive messages again from clients whose time is over."""
        due = self.next_unmute
        if due is not None and now >= due:
            self.muted = {c: mute for c, mute in self.muted.items() if mute.until > now}
            self._stats.muted = len(self.muted)

    def _refuse(self, reason: str, client: int, detail: str, size: int, now: float) -> None:
        self._stats.refuse(reason, client, detail, size)
        self._count(client, now)

    def _count(self, client: int, now: float) -> None:
        if self.limits.flood is None:
            return
        if now >= self._window_end:
            self._window_end = now + _WINDOW
            self._refused.clear()
        if client not in self._refused and len(self._refused) >= self.limits.clients:
            return
        count = self._refused.get(client, 0) + 1
        self._refused[client] = count
        if count >= self.limits.flood:
            del self._refused[client]
            self._mute(client, now)

    def _mute(self, client: int, now: float) -> None:
        last = self._last_mutes.pop(client, None)
        seconds = _FIRST_MUTE
        # A client that behaved for longer than it was muted starts again at the shortest time.
        if last is not None and now < last.until + last.seconds:
            seconds = min(2 * last.seconds, _LAST_MUTE)
        mute = Mute(now + seconds, seconds)
        self.muted = {**self.muted, client: mute}
        while len(self._last_mutes) >= self.limits.clients:
            del self._last_mutes[next(iter(self._last_mutes))]
        self._last_mutes[client] = mute
        self._stats.flooded(client, self.limits.flood or 0, seconds, len(self.muted))
        if self.on_mute is not None:
            self.on_mute()
