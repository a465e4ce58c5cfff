"""A server's side of the conversation, without the network and without a clock.

Whatever happens is told to a ``Coordinator`` with the time it happens at; what it returns is to be
published. ``serve`` is the loop around it.
"""

from __future__ import annotations

import logging

from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.core.protocol import CohortNotice
from fedtern.federation.interfaces import ServerLike
from fedtern.federation.presence import Presence
from fedtern.federation.round_policy import RoundPolicy
from fedtern.transports.mqtt.limits import Allowance, Limits
from fedtern.transports.mqtt.stats import Stats, reason_of
from fedtern.transports.mqtt.topics import (
    ALIVE,
    ASK,
    UP,
    Announcement,
    Publish,
    Topics,
    chunks_of,
    read_ask,
    read_upload,
)

log = logging.getLogger("fedtern.mqtt")

_NOBODY: frozenset[int] = frozenset()


class Coordinator:
    """Calls cohorts, collects their uploads, ends rounds and answers those who were away."""

    def __init__(
        self,
        server: ServerLike,
        plan: RoundPolicy | None = None,
        limits: Limits | None = None,
        stats: Stats | None = None,
    ) -> None:
        self.server = server
        self.terms = server.terms
        self.plan, self.limits = plan or RoundPolicy(), limits or Limits()
        self.stats = stats or Stats()
        self.topics = Topics(server.federation)
        self.presence = Presence(self.limits.clients)
        self._allowance = Allowance(self.limits)
        self._payload = self.limits.longest_payload(None)
        self._called = _NOBODY
        self._missing: set[int] = set()  # who of them has not uploaded yet
        self._calling = False  # whether anybody was called to this round
        self._since = 0.0  # when that was
        self._waiting = False  # whether it was said that there are too few to call
        self._earliest = 0.0  # before which nobody is called
        self._ticked = -1.0  # when it was last looked whether there is something to do

    @property
    def ended(self) -> bool:
        """Whether no other round will follow."""
        return self.plan.rounds is not None and self.server.round >= self.plan.rounds

    @property
    def deserted(self) -> bool:
        """Whether all who ever were here have left since the end, and so know of it."""
        known = self.presence.known
        return self.ended and bool(known) and known <= self.presence.left

    @property
    def wakes(self) -> float | None:
        """When ``tick`` has something to do if nothing else happens before."""
        if self.ended:
            return None
        at: float | None = self._earliest
        if self._calling:
            at = None if self.plan.deadline is None else self._since + self.plan.deadline
        # What was not done then waits for somebody to be heard.
        return at if at is not None and at > self._ticked else None

    def connected(self, now: float, longest: int | None = None) -> list[Publish]:
        """There is a connection, perhaps again: say where things stand.

        ``longest`` is what the broker says that it carries, if it does, in bytes.
        Uploads may have been lost with the last one. Whoever hears the announcement sends again.
        """
        self.stats.connections += 1
        self._payload = self.limits.longest_payload(longest)
        self.presence.forget()
        self._earliest = now + self.plan.grace
        cohort = self.server.cohort
        if not self._calling and cohort and not self.ended:  # it was called by another process
            self._calling, self._called = True, cohort
        self._missing, self._since = set(self._called - self.server.uploaded), now
        # Even if nobody is called yet: another federation of this name may have left its last word.
        return [self._announce(self.server.newest_broadcast(self.server.round - 1))]

    def held_up(self, seconds: float) -> None:
        """Nothing could be heard for so long: who was called has the time all the same."""
        self._since += seconds

    def heard(self, kind: str, client: int, payload: bytes, now: float) -> list[Publish]:
        """A client has published something under its own id."""
        self.stats.up_bytes += len(payload)
        answers: list[Publish] = []
        longest = self.limits.longest_upload(self.terms.layout) if kind == UP else 16
        if len(payload) > longest:
            self.stats.refuse(
                "size", client, f"{len(payload)} bytes under {kind}/, {longest} allowed"
            )
        elif kind == ALIVE:
            # Whatever else a client has sent: who is not known to be there is never called.
            (self.presence.heard if payload else self.presence.leave)(client)
        elif not self._allowance.spend(client, now):
            self.stats.refuse("rate", client, f"more than {self.limits.burst} messages at once")
        elif kind == UP:
            self._upload(client, payload)
        elif kind == ASK:
            answers = self._catch_up(client, payload)
        self.stats.present = len(self.presence.here)
        return answers + self.tick(now)

    def _upload(self, client: int, payload: bytes) -> None:
        barred = not self.plan.cohorts.open and client not in self._called
        try:
            with self.stats.phase("decode"):
                examples, data = read_upload(payload)
                if barred and self.server.cohort is None:  # or the server says so itself
                    raise RemoteProtocolError(f"not called to round {self.server.round}")
                self.server.receive(client, data, examples)
        except (DecodeError, RemoteProtocolError) as error:
            reason = reason_of(error, barred)
            self.stats.refuse(reason, client, error)
            if reason in ("garbage", "foreign"):
                return
        else:
            self._allowance.refund(client)
            self._missing.discard(client)
        self.presence.heard(client)

    def _catch_up(self, client: int, payload: bytes) -> list[Publish]:
        try:
            with self.stats.phase("catch-up"):
                data = self.server.catch_up(client, read_ask(payload)).data
        except (DecodeError, RemoteProtocolError) as error:
            garbage = isinstance(error, DecodeError)
            self.stats.refuse("garbage" if garbage else "foreign", client, error)
            return []
        self.presence.heard(client)
        self.stats.catch_ups += 1
        called = self._calling and (self.plan.cohorts.open or client in self._called)
        topic = self.topics.of("down", client)
        parts = chunks_of(data, self._payload, called=called and not self.ended, ended=self.ended)
        answers = [Publish(topic, parcel.write()) for parcel in parts]
        self.stats.catch_up_bytes += sum(len(answer.payload) for answer in answers)
        return answers

    def tick(self, now: float) -> list[Publish]:
        """Begin or end a round if it is time to."""
        self._ticked = now
        if self.ended:
            return []
        if not self._calling:
            return self._call(now) if now >= self._earliest else []
        late = self.plan.deadline is not None and now >= self._since + self.plan.deadline
        if self._awaiting() and not late:
            return []
        if len(self.server.uploaded) >= self.plan.quorum:
            return self._finish(now)
        # Another plan's cohort, from before a restart: all of it would be too few.
        hopeless = not self.plan.cohorts.open and len(self._called) < self.plan.quorum
        if not late and not hopeless:
            return []  # those who left may be back before the deadline
        # A round that cannot count is better left open than followed by another.
        self._give_up()
        return self._finish(now) if self._choose() else []

    def _awaiting(self) -> bool:
        """Whether an upload may still come."""
        # Asked with every message, so not by making sets.
        if self.plan.deadline is None or not self._missing:
            return bool(self._missing)
        return not self._missing <= self.presence.left

    def _give_up(self) -> None:
        """Wait no longer for those who were called and have not answered."""
        self.presence.unanswered(self._missing - self.presence.left)
        self._missing.clear()

    def _choose(self) -> frozenset[int]:
        return self.plan.choose(self.server.round + 1, self.presence)

    def _call(self, now: float) -> list[Publish]:
        """Call a cohort to a round that has none, if enough are present."""
        if self.presence.count < self.plan.needed:
            return self._wait()
        if self.server.cohort is not None:
            # Nobody could upload to this one: a round without uploads takes its place.
            return self._finish(now) if self._choose() else self._wait()
        if not (cohort := self.plan.choose(self.server.round, self.presence)):
            return self._wait()
        self._begin(cohort, now)
        return [self._announce(None)]

    def _wait(self) -> list[Publish]:
        if not self._waiting:  # or every sign of life would be a line
            here, needed, quorum = self.presence.count, self.plan.needed, self.plan.quorum
            said = "round %s: waiting for clients: %s present, least %s, quorum %s"
            log.info(said, self.server.round, here, needed, quorum)
        self._waiting = True
        return []

    def _begin(self, cohort: frozenset[int], now: float) -> None:
        self._calling, self._called, self._since = bool(cohort), cohort, now
        self._missing = set(cohort - self.server.uploaded)
        self._waiting = False
        self.presence.left.clear()
        self.stats.cohort = len(cohort)
        log.debug("round %s: called %s of %s", self.server.round, len(cohort), self.stats.present)

    def _finish(self, now: float) -> list[Publish]:
        uploaded = self.server.uploaded
        void = len(uploaded) < self.plan.quorum
        if void and self._calling:
            self.stats.void += 1
            got, called = len(uploaded), len(self._called)
            log.warning("round %s: void, %s of %s uploads", self.server.round, got, called)
            for client in uploaded:
                self.server.discard(client)
        self._give_up()
        last = self.plan.rounds is not None and self.server.round + 1 >= self.plan.rounds
        cohort = _NOBODY if last else self._choose()
        everybody = self.plan.cohorts.open and cohort
        with self.stats.phase("aggregate"):
            broadcast = self.server.finish_round(None if everybody else cohort)
        self._allowance.round_ended()
        self.stats.ended(broadcast, self._called, now - self._since)
        self._begin(cohort, now)
        return [self._announce(broadcast.data)]

    def _announce(self, message: bytes | None) -> Publish:
        """Where things stand, for everybody."""
        if message is None or len(message) > self._payload:
            cohort = None if self.plan.cohorts.open and self._called else self._called
            message = CohortNotice.seal(self.server.stamp, self.server.round, cohort, self.terms)
        payload = Announcement(message, self.plan.deadline, self.ended).write()
        self.stats.announced_bytes += len(payload)
        return Publish(self.topics.round, payload, qos=1, retain=True)
