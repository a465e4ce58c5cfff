"""What a server has done so far: counters that only grow, and two that do not."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedtern.engines.meter import Phase
from fedtern.errors import DecodeError, DuplicateUpload, LateUpload, RemoteProtocolError

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


def reason_of(error: DecodeError | RemoteProtocolError, barred: bool) -> str:
    """Why an upload was refused, by the name that statistics have for it."""
    if isinstance(error, DuplicateUpload):
        return "duplicate"
    if isinstance(error, LateUpload):
        return "late"
    if isinstance(error, DecodeError) or isinstance(error.__cause__, DecodeError):
        return "garbage"
    return "not called" if barred else "foreign"
