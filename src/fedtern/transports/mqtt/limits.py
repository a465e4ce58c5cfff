"""Limits on the messages of clients, checked before a message is read."""

from __future__ import annotations

from dataclasses import dataclass

from fedtern.core.layout import Layout

MIN_PACKET_BYTES = 1024  # with smaller packets, most bytes would be overhead
_PACKET_OVERHEAD = 300  # largest part of a packet that is not its payload: mainly the topic
MESSAGE_OVERHEAD = 256  # bytes of memory for each waiting message in addition to its payload
RECEIVE_MAXIMUM = 100  # unacknowledged messages of QoS 1 that a broker may send
_MESSAGES_PER_ROUND = 2.0  # legitimate ones besides the upload: its repetition, and a request


@dataclass(frozen=True)
class Limits:
    """Sizes and rates.

    Args:
        upload_bytes: largest upload; by default, the size of an uncompressed one and 1 kB.
        rate: messages per second of each client, on average, in addition to two per round.
            Accepted uploads do not count. Presence messages have the same limit of their own.
        burst: number of messages that a client may send at once.
        packet_bytes: largest packet that the server publishes. The broker's own limit applies if it
            is smaller.
        clients: number of clients that the server keeps track of.
        queue_bytes: received messages that wait in memory, in bytes, for all clients together; at
            least four uploads of the largest size. One client has room for two such uploads.
        flood: number of refused messages within ten seconds after which the server stops to
            receive a client's messages for a while; None for never.

    Raises:
        ValueError: a limit is too small.

    """

    upload_bytes: int | None = None
    rate: float = 2.0
    burst: int = 20
    packet_bytes: int = 1 << 20
    clients: int = 100_000
    queue_bytes: int = 16 << 20
    flood: int | None = 100

    def __post_init__(self) -> None:
        minimum = {"rate": 0.001, "burst": 1, "packet_bytes": MIN_PACKET_BYTES, "clients": 1}
        minimum |= {"queue_bytes": 1} | ({} if self.flood is None else {"flood": 1})
        for name, least in minimum.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def max_upload_bytes(self, layout: Layout) -> int:
        """Return the largest payload of an upload."""
        if self.upload_bytes is not None:
            return self.upload_bytes
        return 4 * layout.size + 8 * len(layout.names) + 1024

    def max_client_queue_bytes(self, layout: Layout) -> int:
        """Return the bytes of one client's messages that may wait in memory."""
        return 2 * self.max_upload_bytes(layout) + self.burst * MESSAGE_OVERHEAD

    def max_queue_bytes(self, layout: Layout) -> int:
        """Return the bytes of all clients' messages that may wait in memory."""
        return max(self.queue_bytes, 2 * self.max_client_queue_bytes(layout))

    def max_received_packet_bytes(self, layout: Layout) -> int:
        """Return the largest packet that the server lets the broker send."""
        return max(self.max_upload_bytes(layout) + _PACKET_OVERHEAD, MIN_PACKET_BYTES)

    def max_payload_bytes(self, broker_limit: int | None) -> int:
        """Return the largest payload of the server, given the broker's limit on packets."""
        packet = min(self.packet_bytes, broker_limit or self.packet_bytes)
        return packet - _PACKET_OVERHEAD


class RateLimiter:
    """Token bucket for each client, filled at a steady rate and with every round."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._round_tokens = 0.0
        # For each client: tokens in use, and the tokens given to everybody at that time.
        self._used: dict[int, tuple[float, float]] = {}

    def round_finished(self) -> None:
        """Give each client the tokens of a round: fast rounds need more messages."""
        self._round_tokens += _MESSAGES_PER_ROUND

    def allow(self, client: int, now: float) -> bool:
        """Take a token for a message; return False if the client has none left."""
        given = now * self.limits.rate + self._round_tokens
        used = self._tokens_in_use(client, given)
        if used + 1 > self.limits.burst:
            return False
        if client not in self._used and len(self._used) >= self.limits.clients:
            # Clients with a full bucket need no entry.
            self._used = {c: v for c, v in self._used.items() if self._tokens_in_use(c, given)}
            if len(self._used) >= self.limits.clients:
                return False
        self._used[client] = used + 1, given
        return True

    def refund(self, client: int) -> None:
        """Return the token of the last message."""
        used, given = self._used[client]
        self._used[client] = max(used - 1, 0.0), given

    def _tokens_in_use(self, client: int, given: float) -> float:
        used, given_before = self._used.get(client, (0.0, given))
        return max(used - (given - given_before), 0.0)
