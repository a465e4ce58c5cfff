"""Counters and log lines of a server."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fedtern.core.errors import DecodeError, DuplicateUpload, LateUpload, RemoteProtocolError
from fedtern.federation.meter import Phase
from fedtern.federation.round_controller import RoundFinished

log = logging.getLogger("fedtern.mqtt")

PHASES = ("waiting", "decode", "aggregate", "catch-up", "publish")
REASONS = ("duplicate", "late", "not in cohort", "malformed", "incompatible", "size", "rate")
# A network causes these without any fault, and a client that sends too much must not fill the log.
_QUIET_REASONS = ("duplicate", "late", "not in cohort", "rate")


@dataclass
class Stats:
    """Counters of a server. Only ``present`` and ``cohort`` can decrease.

    Attributes:
        rounds: finished rounds.
        void: rounds without a quorum.
        counted: uploads that are part of a broadcast.
        refused: messages by reason. An ``incompatible`` message is of another model, method or
            history, or a second and different upload for a round.
        catch_ups: answered requests to catch up.
        connections: connections to the broker.
        up_bytes: payload bytes that the server received.
        announced_bytes: payload bytes of announcements; each counts once, for all clients.
        catch_up_bytes: payload bytes of catch-ups.
        seconds: time by phase.
        present: clients that are present.
        cohort: clients that are selected for the open round.

    """

    rounds: int = 0
    void: int = 0
    counted: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    catch_ups: int = 0
    connections: int = 0
    up_bytes: int = 0
    announced_bytes: int = 0
    catch_up_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    present: int = 0
    cohort: int = 0

    def phase(self, name: str) -> Phase:
        """Return a timer that adds to a phase."""
        return Phase(self.seconds, name)

    def refuse(self, reason: str, client: int, detail: object) -> None:
        """Count and log a refused message."""
        self.refused[reason] += 1
        level = logging.DEBUG if reason in _QUIET_REASONS else logging.WARNING
        log.log(level, "refused client %s: %s", client, detail)

    def round_finished(self, finished: RoundFinished) -> None:
        """Count and log a finished round."""
        broadcast = finished.broadcast
        counted = len(broadcast.counted)
        cohort = len(finished.cohort)
        self.rounds += 1
        self.counted += counted
        self.seconds["waiting"] += finished.seconds
        if finished.void:
            self.void += 1
            log.warning(
                "round %s: void, %s of %s uploads arrived",
                broadcast.round,
                finished.discarded,
                cohort,
            )
        log.debug(
            "round %s: %s uploads counted, %s missing, broadcast of %s bytes",
            broadcast.round,
            counted,
            len(finished.cohort - broadcast.counted),
            len(broadcast.data),
        )


def refusal_reason(error: DecodeError | RemoteProtocolError, *, in_cohort: bool) -> str:
    """Return the reason, one of ``REASONS``, why an upload was refused."""
    if isinstance(error, DuplicateUpload):
        return "duplicate"
    if isinstance(error, LateUpload):
        return "late"
    if isinstance(error, DecodeError) or isinstance(error.__cause__, DecodeError):
        return "malformed"
    return "incompatible" if in_cohort else "not in cohort"
