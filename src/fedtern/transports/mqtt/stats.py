"""What a server has done so far, as lines of a log and as counters: two of them may shrink."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fedtern.core.errors import DecodeError, DuplicateUpload, LateUpload, RemoteProtocolError
from fedtern.core.protocol import Broadcast
from fedtern.federation.meter import Phase

log = logging.getLogger("fedtern.mqtt")

PHASES = ("waiting", "decode", "aggregate", "catch-up", "publish")
REASONS = ("duplicate", "late", "not called", "garbage", "foreign", "size", "rate")


@dataclass
class Stats:
    """Counters of a server.

    ``refused`` counts messages by the reason: those of another model, method or history, and
    other uploads of a round that has one already, are foreign. Bytes are those of payloads, as
    the server sees them: a broadcast counts once, however many hear it.
    """

    rounds: int = 0
    void: int = 0  # rounds without a quorum
    counted: int = 0  # uploads
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
        """Time what happens inside."""
        return Phase(self.seconds, name)

    def refuse(self, reason: str, client: int, why: object) -> None:
        """A message was not listened to."""
        self.refused[reason] += 1
        # A network does these by itself; and who floods a server should not flood its log.
        usual = reason in ("duplicate", "late", "not called", "rate")
        log.log(logging.DEBUG if usual else logging.WARNING, "refused client %s: %s", client, why)

    def ended(self, broadcast: Broadcast, called: frozenset[int], waited: float) -> None:
        """A round has ended, so many seconds after somebody was called to it."""
        self.rounds += 1
        self.counted += len(broadcast.counted)
        self.seconds["waiting"] += waited
        counted, missing = len(broadcast.counted), len(called - broadcast.counted)
        said = "round %s: counted %s, missing %s, %s bytes"
        log.debug(said, broadcast.round, counted, missing, len(broadcast.data))


def reason_of(error: DecodeError | RemoteProtocolError, barred: bool) -> str:
    """Why an upload was refused, by the name that statistics have for it."""
    if isinstance(error, DuplicateUpload):
        return "duplicate"
    if isinstance(error, LateUpload):
        return "late"
    if isinstance(error, DecodeError) or isinstance(error.__cause__, DecodeError):
        return "garbage"
    return "not called" if barred else "foreign"
