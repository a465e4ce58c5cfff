"""Interfaces of the two sides of a federation, as transports use them.

``Server`` and ``DurableServer`` satisfy ``ServerLike``; ``Client`` and ``DurableClient`` satisfy
``ClientLike``. Both are structural: a class that has these members satisfies the interface without
inheriting from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from numpy.typing import ArrayLike, NDArray

from fedtern.core.feedback import Feedback
from fedtern.core.layout import Vector
from fedtern.core.methods import Aggregate
from fedtern.core.protocol import (
    Accepted,
    Bounded,
    Broadcast,
    CatchUp,
    PrivacySpent,
    Received,
    Sent,
    Terms,
)
from fedtern.core.updates import Update


class RoundServer(Protocol):
    """Server interface of ``RoundController``: a ``ServerLike``, or ``SecureRounds``."""

    @property
    def terms(self) -> Terms:
        """Model and method of the federation."""
        ...

    @property
    def round(self) -> int:
        """Number of finished rounds, which is also the number of the open round."""
        ...

    @property
    def stamp(self) -> bytes:
        """Stamp of the history so far."""
        ...

    @property
    def cohort(self) -> frozenset[int] | None:
        """Clients that may upload in the open round; None for all clients."""
        ...

    @property
    def uploaded(self) -> frozenset[int]:
        """Clients whose uploads for the open round have been accepted."""
        ...

    def receive(self, client_id: int, data: bytes, num_examples: float = 1) -> Accepted:
        """Accept an upload for the open round, or raise and change nothing."""
        ...

    def discard(self, client_id: int) -> None:
        """Drop an accepted upload of the open round."""
        ...

    def finish_round(self, next_cohort: Iterable[int] | None = None) -> Broadcast:
        """Aggregate the accepted uploads, advance the model and return the broadcast."""
        ...

    def allows_round(self, counted: Iterable[int] = ()) -> bool:
        """Whether the privacy budget allows another round, after one that counts some clients."""
        ...


class ServerLike(RoundServer, Protocol):
    """Collects uploads and answers each round with one broadcast; see ``Server``."""

    @property
    def federation(self) -> str:
        """Name of the federation."""
        ...

    @property
    def weights(self) -> Vector:
        """Weights of the model, read-only."""
        ...

    @property
    def residual(self) -> Vector:
        """Difference between the exact updates and the broadcasts so far, read-only."""
        ...

    @property
    def carried(self) -> dict[str, NDArray[Any]]:
        """Values of the carried tensors, read-only."""
        ...

    def uploads(self) -> list[Accepted]:
        """Return the accepted uploads of the open round, sorted by client."""
        ...

    def bounded(
        self, aggregate: Aggregate | None = None, counted: Iterable[int] | None = None
    ) -> Bounded:
        """Return the accepted uploads as they count, with the server's cap."""
        ...

    def finish_round(
        self,
        next_cohort: Iterable[int] | None = None,
        *,
        delta: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
        counted: Iterable[int] | None = None,
        aggregate: Aggregate | None = None,
    ) -> Broadcast:
        """Aggregate the accepted uploads, advance the model and return the broadcast."""
        ...

    @property
    def privacy_spent(self) -> PrivacySpent | None:
        """The largest privacy loss of any client so far; None without privacy."""
        ...

    def newest_broadcast(self, since: int) -> bytes | None:
        """Return the last broadcast if it is the only one that a client missed, else None."""
        ...

    def download(self, client_id: int, since: int) -> CatchUp:
        """Like ``catch_up``, but the bare broadcast where a client has missed only that."""
        ...

    def catch_up(self, client_id: int, since: int) -> CatchUp:
        """Make the shortest message that takes a client from round ``since`` to this one."""
        ...

    def first_download(self) -> CatchUp:
        """Make a message for any client without weights, which names no client."""
        ...


class ClientLike(Protocol):
    """Follows the server's weights and uploads its own updates; see ``Client``."""

    @property
    def client_id(self) -> int:
        """Number by which the server knows this client."""
        ...

    @property
    def terms(self) -> Terms:
        """Model and method of the federation."""
        ...

    @property
    def federation(self) -> str:
        """Name of the federation."""
        ...

    @property
    def seed(self) -> int:
        """Random seed of the methods that use one."""
        ...

    @property
    def round(self) -> int:
        """Round of the weights; -1 for a client that has none yet."""
        ...

    @property
    def weights(self) -> Vector:
        """Weights of the model at this client's round, read-only."""
        ...

    @property
    def residual(self) -> Vector:
        """Difference between the exact updates and the uploads so far, read-only."""
        ...

    @property
    def stamp(self) -> bytes:
        """Stamp of the history that this client has followed."""
        ...

    @property
    def pending(self) -> bytes | None:
        """Unacknowledged upload of this round, if there is one."""
        ...

    @property
    def carried(self) -> dict[str, NDArray[Any]]:
        """Values of the carried tensors at this client's round, read-only."""
        ...

    def send(
        self,
        new_weights: ArrayLike,
        moments: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
    ) -> Sent:
        """Make the upload for this round, given the weights after training."""
        ...

    def send_delta(
        self,
        delta: ArrayLike,
        moments: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
        *,
        overwrite: bool = False,
        feedback: Feedback | None = None,
    ) -> Sent:
        """Like ``send``, given the change of the weights, which may be overwritten.

        ``feedback`` takes the place of the method's rule for this upload.
        """
        ...

    def restriction(self) -> Callable[[Vector], None] | None:
        """Return a function that restricts a flat gradient, in place, to what can be sent."""
        ...

    def pending_update(self) -> Update | None:
        """Decode the update in the unacknowledged upload; None if there is none."""
        ...

    def receive(self, data: bytes) -> Received:
        """Apply a message from the server and return what happened."""
        ...
