"""A client's side of the conversation, without the network and without a clock.

Like ``Coordinator``, it is told what is heard and when, and returns what is to be published.
"""

from __future__ import annotations

import logging
import math

from fedtern.core.envelope import BROADCAST
from fedtern.core.errors import DecodeError, MissedRounds
from fedtern.core.protocol import CohortNotice
from fedtern.federation.interfaces import ClientLike
from fedtern.transports.mqtt.reassembly import Reassembly
from fedtern.transports.mqtt.topics import (
    ALIVE,
    ASK,
    GONE,
    HERE,
    UP,
    Announcement,
    Chunk,
    Publish,
    Topics,
    write_ask,
    write_upload,
)

log = logging.getLogger("fedtern.mqtt")

_RETRY, _MOST = 5.0, 300.0  # seconds before a question is asked again, at first and at most
# Seconds after which the server may have lost sight of us: by the last will of an older connection,
# if nothing else.
_SIGN = 120.0


class Member:
    """Follows the announcements, asks for what it missed and knows when it is called."""

    def __init__(self, client: ClientLike, examples: int = 1) -> None:
        if not 0 < examples < 1 << 53:
            raise ValueError(f"examples must be at least 1, got {examples}")
        self.client = client
        self.terms = client.terms
        self.examples = examples
        self.topics = Topics(client.federation)
        self._called_to = -1  # the last round that this client is known to be called to
        self._last: int | None = None  # the round that the federation has ended at
        self.assembly = Reassembly(client.terms.layout)
        self._deadline: float | None = None
        self._heard = 0.0  # when the last announcement came
        self._said = 0.0  # when the server last heard that this client is there
        self._asked: float | None = None  # when the last question was asked, if it is open
        self._retry = _RETRY

    @property
    def wanted(self) -> bool:
        """Whether the client is to train now."""
        called = self.client.round >= 0 and self._called_to == self.client.round
        return called and self.client.pending is None and self._last is None

    @property
    def ended(self) -> bool:
        """Whether the federation has ended and the client is where it ended."""
        return self._last is not None and self.client.round >= self._last

    @property
    def wakes(self) -> float | None:
        """When ``tick`` has something to do if nothing else happens before."""
        if self._asked is not None:
            return self._asked + self._retry
        if self._last is not None:
            return None
        return min(self._said + _SIGN, self._doubts)

    @property
    def _doubts(self) -> float:
        """When an announcement should have come: after a round and a half, even if it was void."""
        if self._deadline is None:
            return math.inf
        return self._heard + 1.5 * self._deadline + self._retry

    def connected(self, now: float) -> list[Publish]:
        """There is a connection, perhaps again."""
        self._heard, self._asked = now, None
        self.assembly.clear()
        here = self._here(now)
        return here if self.client.round >= 0 else here + self._ask(now)

    def farewell(self) -> Publish:
        """What the last will says, said in person."""
        return self._sign(GONE)

    def _here(self, now: float) -> list[Publish]:
        self._said = now
        return [self._sign(HERE)]

    def _sign(self, payload: bytes) -> Publish:
        topic = self.topics.of(ALIVE, self.client.client_id)
        return Publish(topic, payload, qos=1, retain=True)

    def tick(self, now: float) -> list[Publish]:
        """Ask, or ask again, if it has been quiet for too long; say that somebody is here."""
        if self.wakes is None or now < self.wakes:
            return []
        if self._asked is not None:
            self._retry = min(2 * self._retry, _MOST)
            log.warning("no answer in %.0f s: asking again", now - self._asked)
        elif now < self._doubts:
            return self._here(now)
        self._asked = None
        return self._ask(now)

    def _ask(self, now: float) -> list[Publish]:
        if self._asked is not None:
            return []
        self._asked = self._said = now
        self.assembly.asked()
        topic = self.topics.of(ASK, self.client.client_id)
        return [Publish(topic, write_ask(self.client.round), qos=1)]

    def heard(self, topic: str, payload: bytes, now: float) -> list[Publish]:
        """Something was published for everybody, or for this client.

        What cannot be read is left alone; what was made under other terms, or in another history,
        is a ``RemoteProtocolError``: going on would not mend it.
        """
        try:
            if topic == self.topics.round:
                return self._announced(Announcement.read(payload), now)
            return self._parcel(Chunk.read(payload), now)
        except DecodeError as error:
            # If it was the answer to a question, that is still open, since when it was asked.
            log.warning("ignored %s bytes on %s: %s", len(payload), topic, error)
            return []

    def _announced(self, news: Announcement, now: float) -> list[Publish]:
        call = CohortNotice.open(news.message, self.terms)
        here, called = self.client.round, self._called_to == self.client.round
        if call.head.round < here:
            return []  # what the broker kept from before
        self._deadline, self._heard = news.deadline, now
        self._last = call.head.round if news.ended else None
        if call.head.round > here:
            try:
                self.client.receive(news.message)  # which a call is not, and then it is missed
            except (MissedRounds, DecodeError):
                return self._ask(now)
        call.head.check_history(self.client.stamp, f"client {self.client.client_id}")
        self._settled()
        if call.cohort is None or self.client.client_id in call.cohort:
            self._called_to = self.client.round
            if here == call.head.round and self.client.pending is not None:
                return [self.upload(self.client.pending)]  # it may not have arrived
        if not called or here == self.client.round:
            return []
        self._said = now
        # Not counted: the server may think that nobody is here.
        return [] if self._counted(news.message) else self._here(now)

    def _counted(self, broadcast: bytes) -> bool:
        _, reader = self.terms.open(broadcast, BROADCAST)
        return self.client.client_id in reader.ids()

    def _settled(self) -> None:
        self._asked, self._retry = None, _RETRY
        self.assembly.clear()

    def _parcel(self, parcel: Chunk, now: float) -> list[Publish]:
        if self.assembly.add(parcel) and self._asked is not None:
            self._asked = now  # it takes as long as it takes, while it comes nearer
        if (data := self.assembly.take(parcel.of)) is None:
            return []
        try:
            self.client.receive(data)
        except MissedRounds:
            self._asked = None
            return self._ask(now)
        self._heard = now
        self._settled()
        if parcel.ended:
            self._last = self.client.round
        if parcel.called:
            self._called_to = self.client.round
            if self.client.pending is not None:
                return [self.upload(self.client.pending)]
        return []

    def upload(self, data: bytes) -> Publish:
        """An upload on its way."""
        topic = self.topics.of(UP, self.client.client_id)
        return Publish(topic, write_upload(self.examples, data), qos=1)
