"""Which clients are present, as far as a server can tell, and which of them are reliable."""

from __future__ import annotations

_MAX_DOUBLINGS = 7  # of the rest of a client that keeps missing deadlines


class Presence:
    """Clients that are present, that left, and that do not upload.

    A client that was selected and did not upload in time is unresponsive. It is not selected again
    before it sends another message: a broker can report a lost client as present for minutes.

    A message alone does not make a client useful. A client that misses deadlines although it is
    present *rests*: it is not eligible for a number of rounds, which doubles with each deadline
    that it misses in a row. An accepted upload ends this. The first missed deadline after an
    accepted upload has no consequence.

    Args:
        max_clients: number of clients that are recorded; others are ignored.

    """

    def __init__(self, max_clients: int) -> None:
        self.max_clients = max_clients
        self.present: set[int] = set()
        self.known: set[int] = set()  # clients that were ever present
        self.left: set[int] = set()  # clients that left since the open round started
        self.unresponsive: set[int] = set()
        self._trusted: set[int] = set()  # clients whose last deadline was met
        self._misses: dict[int, int] = {}  # deadlines missed in a row that count, by client
        self._rests_until: dict[int, int] = {}  # first round in which a client is eligible again

    def reset(self) -> None:
        """Drop everything but known clients and missed deadlines, as after a new connection."""
        self.present = set()
        self.left = set()
        self.unresponsive = set()

    def add(self, client: int) -> None:
        """Record a message of a client."""
        if client in self.present or len(self.present) < self.max_clients:
            self.present.add(client)
        if len(self.known) < self.max_clients:
            self.known.add(client)
        self.left.discard(client)
        self.unresponsive.discard(client)

    def remove(self, client: int) -> None:
        """Record that a client left or lost its connection."""
        if client in self.present:
            self.left.add(client)
        self.present.discard(client)
        self.unresponsive.discard(client)

    def mark_unresponsive(self, clients: set[int]) -> None:
        """Record that these clients were selected and did not upload in time."""
        self.unresponsive |= clients & self.present

    def upload_accepted(self, client: int) -> None:
        """Record an accepted upload, which ends a client's rest."""
        self.add(client)
        if len(self._trusted) < self.max_clients:
            self._trusted.add(client)
        self._misses.pop(client, None)
        self._rests_until.pop(client, None)

    def deadline_missed(self, client: int, round: int, first_rest: int) -> int:
        """Record that a round waited for a client until its deadline, in vain.

        Args:
            client: client that did not upload.
            round: number of that round.
            first_rest: number of rounds of the first rest; 0 for no rests.

        Returns:
            Number of rounds for which the client rests.

        """
        if client in self._trusted:
            self._trusted.remove(client)
            return 0
        if first_rest == 0 or (client not in self._misses and self._is_full):
            return 0
        misses = self._misses.get(client, 0) + 1
        self._misses[client] = misses
        rest: int = first_rest << min(misses - 1, _MAX_DOUBLINGS)
        self._rests_until[client] = round + 1 + rest
        return rest

    @property
    def _is_full(self) -> bool:
        return len(self._misses) >= self.max_clients

    @property
    def count(self) -> int:
        """Number of clients that can be selected, resting ones included."""
        # Called for every message, so it builds no sets.
        return len(self.present) - len(self.unresponsive)

    @property
    def available(self) -> list[int]:
        """Clients that can be selected, resting ones included, in ascending order."""
        return sorted(self.present - self.unresponsive)

    def eligible(self, round: int) -> list[int]:
        """Return the available clients that do not rest in a round, in ascending order."""
        available = self.available
        if not self._rests_until:
            return available
        return [c for c in available if self._rests_until.get(c, 0) <= round]

    def count_resting(self, round: int) -> int:
        """Return the number of clients that are present and rest in a round."""
        return sum(c in self.present and until > round for c, until in self._rests_until.items())
