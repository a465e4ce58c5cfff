"""Counters and log lines of a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fedtern.core.errors import (
    DecodeError,
    DuplicateUpload,
    LateUpload,
    RemoteProtocolError,
    UploadDenied,
)
from fedtern.core.protocol import PrivacySpent
from fedtern.federation.meter import Phase
from fedtern.federation.round_controller import RoundFinished

log = logging.getLogger("fedtern.mqtt")

PHASES = ("waiting", "decode", "aggregate", "catch-up", "publish")
REASONS = (
    "duplicate",
    "late",
    "not in cohort",
    "malformed",
    "incompatible",
    "denied",
    "size",
    "rate",
    "queue",
    "muted",
)
# A network causes these without any fault, and a client that sends too much must not fill the log.
_QUIET_REASONS = ("duplicate", "late", "not in cohort", "rate", "muted")
_LOG_BURST = 20  # lines about clients' faults at once
_LOG_INTERVAL = 5.0  # seconds after which one more line may follow


class LogLimiter:
    """Token bucket for log lines, so that no client can fill a disk.

    Args:
        clock: returns the time in seconds.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = float(_LOG_BURST)
        self._filled_at = clock()
        self._omitted = 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, with the number of omitted ones, or omit it."""
        now = self._clock()
        gained = (now - self._filled_at) / _LOG_INTERVAL
        self._tokens = min(self._tokens + gained, float(_LOG_BURST))
        self._filled_at = now
        if self._tokens < 1:
            self._omitted += 1
            return
        self._tokens -= 1
        if self._omitted:
            text += f" ({self._omitted} similar lines omitted)"
            self._omitted = 0
        log.warning(text, *arguments)


@dataclass
class Stats:
    """Counters of a server.

    Only ``present``, ``cohort``, ``muted``, ``resting`` and ``scores`` can decrease.

    Attributes:
        rounds: finished rounds.
        void: rounds without a quorum.
        counted: uploads that are part of a broadcast.
        refused: messages by reason. An ``incompatible`` message is of another model, method or
            history, or a second and different upload for a round. A ``denied`` one is refused by
            the operator's ``on_upload``.
        capped: counted uploads whose influence was limited.
        catch_ups: answered requests to catch up.
        connections: connections to the broker.
        up_bytes: payload bytes that the server received, refused ones included.
        dropped_bytes: payload bytes of messages that were dropped before they were queued.
        floods: number of times that a client was muted because it flooded.
        announced_bytes: payload bytes of announcements; each counts once, for all clients.
        catch_up_bytes: payload bytes of catch-ups.
        abandoned: secure rounds without a sum; they are among the void ones.
        secure_bytes: payload bytes of messages to clients in secure rounds.
        seconds: time by phase.
        present: clients that are present.
        cohort: clients that are selected for the open round.
        privacy: largest privacy loss of any client so far; None without privacy.
        muted: clients whose topics are not received.
        resting: clients that are present and not selected, because they missed deadlines.
        scores: loss and metrics of the last evaluation; empty before the first one.
        evaluated_round: round of the last evaluation; None before the first one.

    """

    rounds: int = 0
    void: int = 0
    counted: int = 0
    capped: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    catch_ups: int = 0
    connections: int = 0
    up_bytes: int = 0
    dropped_bytes: int = 0
    floods: int = 0
    announced_bytes: int = 0
    catch_up_bytes: int = 0
    abandoned: int = 0
    secure_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    present: int = 0
    cohort: int = 0
    privacy: PrivacySpent | None = None
    muted: int = 0
    resting: int = 0
    _refusal_log: LogLimiter = field(default_factory=LogLimiter, repr=False, compare=False)
    _measure_log: LogLimiter = field(default_factory=LogLimiter, repr=False, compare=False)
    scores: dict[str, float] = field(default_factory=dict)
    evaluated_round: int | None = None

    def phase(self, name: str) -> Phase:
        """Return a timer that adds to a phase."""
        return Phase(self.seconds, name)

    def refuse(self, reason: str, client: int, detail: object, dropped_bytes: int = 0) -> None:
        """Count and log a refused message.

        Args:
            reason: one of ``REASONS``.
            client: client of the topic.
            detail: explanation for the log.
            dropped_bytes: length of the payload, if it was dropped before it was queued.

        """
        self.refused[reason] += 1
        self.dropped_bytes += dropped_bytes
        if reason in _QUIET_REASONS:
            log.debug("refused client %s: %s", client, detail)
        else:
            self._refusal_log.warn("refused client %s: %s", client, detail)

    def flooded(self, client: int, refused: int, seconds: float, muted: int) -> None:
        """Count and log that a client is muted."""
        self.floods += 1
        self.muted = muted
        self._measure_log.warn(
            "client %s floods: %s messages refused; ignoring its topics for %.0f s",
            client,
            refused,
            seconds,
        )

    def missed_deadline(self, client: int, rounds: int) -> None:
        """Log that a client rests because it missed deadlines."""
        self._measure_log.warn(
            "client %s missed its deadline: not selected for %s rounds", client, rounds
        )

    def round_abandoned(self, round: int, reason: str) -> None:
        """Count and log a secure round without a sum."""
        self.abandoned += 1
        self._measure_log.warn("round %s: abandoned, no update is lost: %s", round, reason)

    def round_finished(self, finished: RoundFinished) -> None:
        """Count and log a finished round."""
        broadcast = finished.broadcast
        counted = len(broadcast.counted)
        cohort = len(finished.cohort)
        self.rounds += 1
        self.counted += counted
        self.capped += len(broadcast.capped)
        self.seconds["waiting"] += finished.seconds
        if broadcast.capped:
            log.warning(
                "round %s: capped uploads of %s",
                broadcast.round,
                ", ".join(f"client {c} to {s:.2g}" for c, s in sorted(broadcast.capped.items())),
            )
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
    if isinstance(error, UploadDenied):
        return "denied"
    if isinstance(error, LateUpload):
        return "late"
    if isinstance(error, DecodeError) or isinstance(error.__cause__, DecodeError):
        return "malformed"
    return "incompatible" if in_cohort else "not in cohort"
