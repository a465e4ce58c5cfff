"""A server and a client whose state survives a killed process.

Both have the interface of ``Server`` and ``Client``. Calls that change the state also write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike, NDArray

from fedtern.core.feedback import Feedback
from fedtern.core.layout import Vector, copy_vector
from fedtern.core.methods import Aggregate
from fedtern.core.protocol import (
    Accepted,
    Bounded,
    Broadcast,
    CatchUp,
    Client,
    PrivacySpent,
    Received,
    Sent,
    Server,
    Terms,
    broadcast_record,
    discard_record,
    external_record,
    upload_record,
)
from fedtern.core.template import Arrays
from fedtern.core.updates import Update
from fedtern.store.directory import Store


class DurableServer:
    """A server that writes accepted uploads and finished rounds to disk before it returns them.

    An accepted upload survives a killed process. A broadcast, and every upload that it
    acknowledges, also survives a power failure.

    Args:
        server: a new server, which is brought to the recorded state.
        store: the store.

    Attributes:
        recovered: whether the store had a recorded state.

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
        """The model: a read-only view that changes with each round; copy it to keep it."""
        return self.server.weights

    @property
    def residual(self) -> Vector:
        """The part of all aggregates that no broadcast has sent yet; read-only."""
        return self.server.residual

    @property
    def carried(self) -> dict[str, NDArray[Any]]:
        """The values of the carried tensors; read-only views."""
        return self.server.carried

    @property
    def stamp(self) -> bytes:
        """The stamp of the history up to this round."""
        return self.server.stamp

    @property
    def cohort(self) -> frozenset[int] | None:
        """The clients that may upload in this round; None if all may."""
        return self.server.cohort

    @property
    def uploaded(self) -> frozenset[int]:
        """The clients whose uploads of this round have been accepted."""
        return self.server.uploaded

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of the model's arrays, for a server that was made with ``from_arrays``."""
        return self.server.arrays

    @property
    def typical_norm(self) -> float:
        """The norm that the cap is a multiple of, given the uploads so far; 0 if unknown."""
        return self.server.typical_norm

    def bounded(
        self, aggregate: Aggregate | None = None, counted: Iterable[int] | None = None
    ) -> Bounded:
        """Return the accepted uploads of this round as they count; see ``Server.bounded``."""
        return self.server.bounded(aggregate, counted)

    def uploads(self) -> list[Accepted]:
        """Return the accepted uploads of this round, sorted by client."""
        return self.server.uploads()

    def receive(self, client_id: int, data: bytes, num_examples: float = 1) -> Accepted:
        """Accept an upload for this round; see ``Server.receive``."""
        # Not synced: if a power failure loses the upload, the broadcast does not count it, and its
        # client adds it to its residual.
        return self.store.record(
            lambda: self.server.receive(client_id, data, num_examples), upload_record, sync=False
        )

    def discard(self, client_id: int) -> None:
        """Drop an accepted upload of this round; see ``Server.discard``."""
        self.store.record(
            lambda: self.server.discard(client_id),
            lambda _: discard_record(int(client_id)),
            sync=False,
        )

    def finish_round(
        self,
        next_cohort: Iterable[int] | None = None,
        *,
        delta: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
        counted: Iterable[int] | None = None,
        aggregate: Aggregate | None = None,
    ) -> Broadcast:
        """Aggregate the accepted uploads and advance the model; see ``Server.finish_round``."""
        clients = None if counted is None else frozenset(counted)
        # A delta that is not of the method cannot be computed again from the uploads: the log must
        # have it.
        given = None if delta is None else copy_vector(delta, self.terms.layout, "delta")
        capped: Mapping[int, float] = {}
        if given is None:
            combine = aggregate or self.server.aggregate
            capped = self.server.bounded(combine, clients).capped
            # A later process may have another cap or another aggregation.
            if capped or combine != self.terms.method.aggregate:
                given = self.server.combined(combine, clients)
        broadcast = self.store.record(
            lambda: self.server.finish_round(
                next_cohort, delta=given, carried=carried, counted=clients, aggregate=aggregate
            ),
            lambda b: self._round_record(b, given),
            sync=True,
        )
        if self.store.snapshot_is_due:
            self.store.checkpoint(self.server.snapshot(copy=False))
        return replace(broadcast, capped=capped)

    def _round_record(self, broadcast: Broadcast, given: Vector | None) -> bytes:
        # Noise cannot be drawn again, either.
        delta = self.server.released if given is None else given
        return broadcast_record(broadcast) if delta is None else external_record(broadcast, delta)

    @property
    def privacy_spent(self) -> PrivacySpent | None:
        """The largest privacy loss of any client so far; None without privacy."""
        return self.server.privacy_spent

    def allows_round(self, counted: Iterable[int] = ()) -> bool:
        """Whether the privacy budget allows another round; see ``Server.allows_round``."""
        return self.server.allows_round(counted)

    def newest_broadcast(self, since: int) -> bytes | None:
        """Return the last broadcast if a client at round ``since`` has missed only that one."""
        self.store.check()
        return self.server.newest_broadcast(since)

    def download(self, client_id: int, since: int) -> CatchUp:
        """Like ``catch_up``, but return the plain broadcast if the client missed only one."""
        self.store.check()
        return self.server.download(client_id, since)

    def catch_up(self, client_id: int, since: int) -> CatchUp:
        """Make the shortest message that takes a client from round ``since`` to this one."""
        self.store.check()  # after a failed write, the last round may not be on disk
        return self.server.catch_up(client_id, since)

    def first_download(self) -> CatchUp:
        """Make a message for any client without weights."""
        self.store.check()
        return self.server.first_download()


class DurableClient:
    """A client that writes weights, residual and pending upload to disk before it returns them.

    Args:
        client: a new client, which is brought to the recorded state.
        store: the store.
        defer: whether messages that the client receives are written only by its next upload, or by
            ``flush``. If the process is killed before, the client has not received them. An upload
            writes the whole state anyway, so this saves a write of each message.

    Attributes:
        recovered: whether the store had a recorded state.

    """

    def __init__(self, client: Client, store: Store, *, defer: bool = False) -> None:
        self.client = client
        self.store = store
        self.defer = defer
        self.recovered = store.recover(client, can_restart=True)
        self._deferred: list[bytes] = []

    @property
    def client_id(self) -> int:
        """The id of this client on the server."""
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
    def seed(self) -> int:
        """Random seed of the methods that use one."""
        return self.client.seed

    @property
    def round(self) -> int:
        """The round of the weights; -1 for a client without weights."""
        return self.client.round

    @property
    def weights(self) -> Vector:
        """The model at this client's round: a read-only view that changes with the client."""
        return self.client.weights

    @property
    def carried(self) -> dict[str, NDArray[Any]]:
        """The values of the carried tensors at this client's round; read-only views."""
        return self.client.carried

    @property
    def residual(self) -> Vector:
        """The part of all deltas that no upload has sent yet; read-only."""
        return self.client.residual

    @property
    def stamp(self) -> bytes:
        """The stamp of this client's history up to its round."""
        return self.client.stamp

    @property
    def pending(self) -> bytes | None:
        """The unacknowledged upload of this round, to be sent again if it may be lost."""
        return self.client.pending

    @property
    def privacy_spent(self) -> PrivacySpent | None:
        """The privacy loss of this client's uploads so far; None without privacy."""
        return self.client.privacy_spent

    def pending_update(self) -> Update | None:
        """Decode the update in the unacknowledged upload; None if there is none."""
        return self.client.pending_update()

    def send(
        self,
        new_weights: ArrayLike,
        moments: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
    ) -> Sent:
        """Make the upload for this round; see ``Client.send``."""
        # A snapshot, because every entry of the residual has changed: a record would be as long.
        return self._record_upload(lambda: self.client.send(new_weights, moments, carried))

    def send_delta(
        self,
        delta: ArrayLike,
        moments: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
        *,
        overwrite: bool = False,
        feedback: Feedback | None = None,
    ) -> Sent:
        """Like ``send``, given the change of the weights."""
        return self._record_upload(
            lambda: self.client.send_delta(
                delta, moments, carried, overwrite=overwrite, feedback=feedback
            )
        )

    def _record_upload(self, send: Callable[[], Sent]) -> Sent:
        sent = self.store.record_snapshot(send, self.client)
        self._deferred = []
        return sent

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of the model's arrays, for a client that was made with ``from_arrays``."""
        return self.client.arrays

    def send_arrays(self, arrays: Arrays) -> Sent:
        """Make the upload for this round, given the arrays after training."""
        return self._record_upload(lambda: self.client.send_arrays(arrays))

    def restriction(self) -> Callable[[Vector], None] | None:
        """Return a function that projects a gradient, in place, onto this round's subspace."""
        return self.client.restriction()

    def receive(self, data: bytes) -> Received:
        """Apply a message from the server; see ``Client.receive``."""
        if self.defer:
            self.store.check()
            received = self.client.receive(data)
            if received.is_new:
                self._deferred.append(bytes(data))
            return received
        # Not synced: after a power failure, the client catches up again.
        received = self.store.record(
            lambda: self.client.receive(data),
            lambda received: bytes(data) if received.is_new else None,
            sync=False,
        )
        if received.is_new and self.store.snapshot_is_due:
            self.store.checkpoint(self.client.snapshot(copy=False))
        return received

    def flush(self) -> None:
        """Write the messages that were received since the last upload, if they were deferred."""
        deferred, self._deferred = self._deferred, []
        if sum(map(len, deferred)) > self.store.largest_log:
            self.store.record_snapshot(lambda: None, self.client)
            return
        for data in deferred:
            self.store.append(data)
        if deferred and self.store.snapshot_is_due:
            self.store.checkpoint(self.client.snapshot(copy=False))
