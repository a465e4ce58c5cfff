"""What a server lets clients send before it looks at a message."""

from __future__ import annotations

from dataclasses import dataclass

from fedtern.core.layout import Layout

_AROUND = 300  # bytes of a packet that are not its payload, at most: the topic, mostly
LEAST = 1024  # bytes of a packet with which there is something to gain


@dataclass(frozen=True)
class Limits:
    """Sizes and rates.

    Args:
        upload_bytes: the longest upload; by default what an uncompressed one takes, and some.
        rate: messages a second that a client may send on average, besides two a round; uploads
            that were accepted are not counted.
        burst: how many of them it may send at once.
        packet_bytes: the longest message; less where the broker says that it carries less.
        clients: how many a server keeps track of.

    """

    upload_bytes: int | None = None
    rate: float = 2.0
    burst: int = 20
    packet_bytes: int = 1 << 20
    clients: int = 100_000

    def __post_init__(self) -> None:
        for name, least in (("rate", 0.001), ("burst", 1), ("packet_bytes", LEAST), ("clients", 1)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def longest_upload(self, layout: Layout) -> int:
        """What an upload may take, its number of examples included."""
        if self.upload_bytes is not None:
            return self.upload_bytes
        return 4 * layout.size + 8 * len(layout.names) + 1024

    def longest_payload(self, carried: int | None) -> int:
        """What a server's message may take, given the longest that the broker carries."""
        return min(self.packet_bytes, carried or self.packet_bytes) - _AROUND


_A_ROUND = 2.0  # messages for which there may be a reason: a repeated upload, a question


class Allowance:
    """How many messages each client may still send: a bucket that fills at a steady rate."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._bonus = 0.0
        self._spent: dict[int, tuple[float, float]] = {}  # tokens spent, and those given by then

    def round_ended(self) -> None:
        """The faster rounds are, the more there is to say."""
        self._bonus += _A_ROUND

    def spend(self, client: int, now: float) -> bool:
        """Whether a client may send one more message; if so, it has."""
        given = self._given(now)
        spent = self._left_of(client, given)
        if spent + 1 > self.limits.burst:
            return False
        if client not in self._spent and len(self._spent) >= self.limits.clients:
            # Those who have their whole burst again are as if never heard of.
            self._spent = {c: v for c, v in self._spent.items() if self._left_of(c, given)}
            if len(self._spent) >= self.limits.clients:
                return False
        self._spent[client] = spent + 1, given
        return True

    def refund(self, client: int) -> None:
        """The last message was welcome, however many there are of its kind."""
        spent, given = self._spent[client]
        self._spent[client] = max(spent - 1, 0.0), given

    def _given(self, now: float) -> float:
        return now * self.limits.rate + self._bonus

    def _left_of(self, client: int, given: float) -> float:
        """What a client has spent, less what everybody was given since."""
        spent, before = self._spent.get(client, (0.0, given))
        return max(spent - (given - before), 0.0)
