"""A server and a client that are still there after the process was killed.

Both speak like the ones they keep; only the calls that change a state also write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from numpy.typing import ArrayLike

from fedtern.core.layout import Vector
from fedtern.core.protocol import (
    Accepted,
    Broadcast,
    CatchUp,
    Client,
    Received,
    Sent,
    Server,
    Terms,
    broadcast_record,
    discard_record,
    upload_record,
)
from fedtern.core.updates import Update
from fedtern.store.directory import Store


class DurableServer:
    """A server whose accepted uploads and finished rounds are on disk before anyone hears of them.

    An upload survives a kill; a broadcast, and with it every upload that it acknowledges, a power
    cut.
    """

    def __init__(self, server: Server, store: Store) -> None:
        self.server = server
        self.store = store
        self.recovered = store.recover(server)

    @property
    def terms(self) -> Terms:
        """Model and method of the federation."""
        return self.server.terms

    @property
    def federation(self) -> str:
        """Name of the federation."""
        return self.server.federation

    @property
    def round(self) -> int:
        """The number of finished rounds."""
        return self.server.round

    @property
    def weights(self) -> Vector:
        """The model: a view that changes with each round, and is read-only."""
        return self.server.weights

    @property
    def residual(self) -> Vector:
        """What the broadcasts so far have left out; read-only."""
        return self.server.residual

    @property
    def stamp(self) -> bytes:
        """The stamp of the history so far."""
        return self.server.stamp

    @property
    def cohort(self) -> frozenset[int] | None:
        """Who may upload in this round; None for anybody."""
        return self.server.cohort

    @property
    def uploaded(self) -> frozenset[int]:
        """The clients whose uploads of this round have been accepted."""
        return self.server.uploaded

    def receive(self, client_id: int, data: bytes, num_examples: int = 1) -> Accepted:
        """Accept an upload for this round, or refuse it and change nothing."""
        # Not synced: until a broadcast counts it, its client can still take it back.
        return self.store.record(
            lambda: self.server.receive(client_id, data, num_examples), upload_record, sync=False
        )

    def discard(self, client_id: int) -> None:
        """Drop an accepted upload of this round; its client learns that it did not count."""
        self.store.record(
            lambda: self.server.discard(client_id),
            lambda _: discard_record(int(client_id)),
            sync=False,
        )

    def finish_round(self, next_cohort: Iterable[int] | None = None) -> Broadcast:
        """Aggregate what has arrived, advance the model and return the round's broadcast."""
        broadcast = self.store.record(
            lambda: self.server.finish_round(next_cohort), broadcast_record, sync=True
        )
        if self.store.wants_snapshot:
            self.store.checkpoint(self.server.snapshot())
        return broadcast

    def newest_broadcast(self, since: int) -> bytes | None:
        """Return the last broadcast if it is all that a client at ``since`` has missed."""
        self.store.check()
        return self.server.newest_broadcast(since)

    def download(self, client_id: int, since: int) -> CatchUp:
        """Like ``catch_up``, but the bare broadcast where a client has missed only that."""
        self.store.check()
        return self.server.download(client_id, since)

    def catch_up(self, client_id: int, since: int) -> CatchUp:
        """Make the shortest message that takes a client from round ``since`` to this one."""
        self.store.check()  # a round that is not on disk must not be sent
        return self.server.catch_up(client_id, since)


class DurableClient:
    """A client whose weights, residual and pending upload are on disk before anything is sent."""

    def __init__(self, client: Client, store: Store) -> None:
        self.client = client
        self.store = store
        self.recovered = store.recover(client)

    @property
    def client_id(self) -> int:
        """What the server knows this client by."""
        return self.client.client_id

    @property
    def terms(self) -> Terms:
        """Model and method of the federation."""
        return self.client.terms

    @property
    def federation(self) -> str:
        """Name of the federation."""
        return self.client.federation

    @property
    def round(self) -> int:
        """The round that the weights are of."""
        return self.client.round

    @property
    def weights(self) -> Vector:
        """The model at this client's round: a view that changes with it, and is read-only."""
        return self.client.weights

    @property
    def residual(self) -> Vector:
        """What the uploads so far have left out; read-only."""
        return self.client.residual

    @property
    def stamp(self) -> bytes:
        """The stamp of the history that this client has followed."""
        return self.client.stamp

    @property
    def pending(self) -> bytes | None:
        """The upload of this round, to be sent again where it may not have arrived."""
        return self.client.pending

    def pending_update(self) -> Update | None:
        """Decode the update in the unacknowledged upload; None if there is none."""
        return self.client.pending_update()

    def send(self, new_weights: ArrayLike, moments: ArrayLike | None = None) -> Sent:
        """Make the upload for this round; see ``Client.send``."""
        # Every entry of the residual has changed: no record is shorter than a snapshot.
        return self.store.record_all(lambda: self.client.send(new_weights, moments), self.client)

    def send_delta(self, delta: ArrayLike, moments: ArrayLike | None = None) -> Sent:
        """Like ``send``, given the change of the weights."""
        return self.store.record_all(lambda: self.client.send_delta(delta, moments), self.client)

    def restriction(self) -> Callable[[Vector], None] | None:
        """What makes a flat gradient, in place, one that this round's upload can tell of."""
        return self.client.restriction()

    def receive(self, data: bytes) -> Received:
        """Apply a message from the server; see ``Client.receive``."""
        # Not synced: after a power cut, the client catches up again.
        received = self.store.record(
            lambda: self.client.receive(data),
            lambda received: bytes(data) if received.is_new else None,
            sync=False,
        )
        if received.is_new and self.store.wants_snapshot:
            self.store.checkpoint(self.client.snapshot())
        return received
