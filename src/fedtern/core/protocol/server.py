"""The server side of the protocol: bytes in, events and bytes out, no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtern.core.carried import (
    NO_VALUES,
    Values,
    changed_values,
    check_carried,
    combine_carried,
    round_to_float16,
)
from fedtern.core.codecs import NothingCodec
from fedtern.core.compressors import check_finite
from fedtern.core.dtypes import Overflow
from fedtern.core.errors import (
    DecodeError,
    DuplicateUpload,
    LateUpload,
    LocalProtocolError,
    RemoteProtocolError,
)
from fedtern.core.feedback import EMPTY, State
from fedtern.core.layout import Layout, Vector, copy_vector, read_only
from fedtern.core.methods import Aggregate, Method
from fedtern.core.protocol import records
from fedtern.core.protocol.catchup import CatchUpBuilder
from fedtern.core.protocol.events import Accepted, CatchUp, How
from fedtern.core.protocol.history import History
from fedtern.core.protocol.initial import Precision, encode_initial, read_initial
from fedtern.core.protocol.messages import Broadcast, Upload
from fedtern.core.protocol.replica import Replica
from fedtern.core.protocol.seeded_rng import check_seed, seeded_rng
from fedtern.core.protocol.terms import Header, Terms, initial_stamp
from fedtern.core.snapshot import Snapshot, pack_blobs, unpack_blobs
from fedtern.core.template import STATISTICS, Arrays, Carry, NamedModel, Template, Ties
from fedtern.core.updates import Sparse
from fedtern.core.wire import Reader, check_id


class Server:
    """Collects a cohort's uploads and ends each round with one broadcast for all clients.

    Args:
        weights: the initial model, as one flat vector.
        method: how updates are compressed and combined; see ``fedtern.core.methods``.
        layout: the model's tensors; by default a single one.
        carried: initial values of the layout's carried tensors.
        initial: how precisely clients download the initial model: "exact", "float16" or "int8".
            The server itself starts from the rounded weights.
        carried_float16: whether broadcasts round carried float32 and float64 tensors to float16,
            with values beyond 65504 becoming that value.
        federation: a name that keeps messages of different federations apart.
        seed: random seed of the methods that use one.
        cohort: the clients that may upload in the first round; None if all may.
        cache_bytes: size limit of the cache of past broadcasts, from which returning clients
            catch up.
        copy: False to let the server change ``weights`` itself, if they are a float32 vector. This
            saves memory.

    """

    def __init__(
        self,
        weights: ArrayLike,
        method: Method,
        layout: Layout | None = None,
        *,
        carried: Mapping[str, ArrayLike] | None = None,
        initial: Precision = "exact",
        carried_float16: bool = False,
        federation: str = "",
        seed: int = 0,
        cohort: Iterable[int] | None = None,
        cache_bytes: int | None = None,
        copy: bool = True,
    ) -> None:
        vector = copy_vector(weights, layout, copy=copy)
        self.terms = Terms(layout or Layout.flat(vector.size), method)
        check_finite(vector, self.terms.layout)
        values = check_carried(carried, self.terms.layout)
        self.carried_float16 = carried_float16
        # Kept for clients that join later.
        self._initial = encode_initial(vector, self.terms.layout, initial)
        if self._initial is not None:
            vector = read_initial(Reader(self._initial), self.terms.layout)
        self.federation = federation
        self.seed = check_seed(seed)
        self.round = 0
        self.cohort = None if cohort is None else frozenset(map(check_id, cohort))
        self._replica = Replica(vector, initial_stamp(federation, vector, values), values)
        self._feedback: State = EMPTY
        self._uploads: dict[int, Accepted] = {}
        self._last_counted: dict[int, int] = {}  # the last round that counted each client
        if cache_bytes is None:
            cache_bytes = 16 * vector.size + 4 * self.terms.layout.carried_nbytes + (1 << 20)
        self._history = History(cache_bytes, self.terms)
        self._model: NamedModel | None = None

    @classmethod
    def from_arrays(
        cls,
        arrays: Arrays,
        method: Method,
        *,
        carry: Carry = "average",
        carried: Sequence[str] = STATISTICS,
        trainable: Sequence[str] = ("*",),
        detect_ties: Ties = True,
        overflow: Overflow = "refuse",
        bfloat16: Sequence[str] = (),
        **options: Any,
    ) -> Server:
        """Make a server from named arrays of any dtype, such as a state dict in NumPy.

        Args:
            arrays: the initial model.
            method: how updates are compressed and combined.
            carry: see ``Template.of``, like the following ones.
            carried: patterns of the names of floating-point tensors that are not trained.
            trainable: patterns of the names of trained tensors.
            detect_ties: which tensors are one tensor with several names.
            overflow: what to do with a weight that is too large for the dtype of its tensor.
            bfloat16: patterns of the names of uint16 arrays that hold the bits of bfloat16 values.
            options: further arguments of ``Server``.

        Returns:
            A server whose ``arrays`` have the names and dtypes of the given ones.

        """
        template = Template.of(
            arrays,
            carry=carry,
            carried=carried,
            trainable=trainable,
            detect_ties=detect_ties,
            overflow=overflow,
            bfloat16=bfloat16,
        )
        parts = template.split(arrays)
        options = {**options, "carried": parts.carried, "copy": False}
        server = cls(parts.weights, method, template.layout, **options)
        server._model = NamedModel(template, parts.local, template.fixed(arrays))
        return server

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of the model's arrays, for a server that was made with ``from_arrays``."""
        if self._model is None:
            raise LocalProtocolError("this server has a flat vector; make it with from_arrays")
        return self._model.join(self._replica.weights, self._replica.carried)

    @property
    def weights(self) -> Vector:
        """The model: a read-only view that changes with each round; copy it to keep it."""
        return read_only(self._replica.weights)

    @property
    def stamp(self) -> bytes:
        """The stamp of the history up to this round."""
        return self._replica.stamp

    @property
    def residual(self) -> Vector:
        """The part of all aggregates that no broadcast has sent yet; read-only."""
        return read_only(self._feedback.get("residual", np.zeros_like(self._replica.weights)))

    @property
    def carried(self) -> dict[str, NDArray[Any]]:
        """The values of the carried tensors; read-only views."""
        return {name: read_only(values) for name, values in self._replica.carried.items()}

    @property
    def uploaded(self) -> frozenset[int]:
        """The clients whose uploads of this round have been accepted."""
        return frozenset(self._uploads)

    def uploads(self) -> list[Accepted]:
        """Return the accepted uploads of this round, with their updates, sorted by client.

        An application that aggregates in its own way passes the result to ``finish_round``.
        """
        return [self._uploads[client_id] for client_id in sorted(self._uploads)]

    def receive(self, client_id: int, data: bytes, num_examples: float = 1) -> Accepted:
        """Accept an upload for this round, or refuse it and change nothing.

        Args:
            client_id: the client that sent it, as the transport has authenticated it.
            data: the upload.
            num_examples: the number of examples it was trained on, for weighted methods; any
                positive weight.

        Returns:
            The accepted upload and the update in it.

        Raises:
            DuplicateUpload: the same upload has already been accepted.
            LateUpload: the upload's round is over.
            RemoteProtocolError: the upload is refused for any other reason.

        """
        client_id = check_id(client_id)
        data = bytes(data)
        try:
            upload = Upload.open(data, self.terms)
            self._check_upload(client_id, upload.header, data)
        except (DecodeError, RemoteProtocolError) as error:
            kind = type(error) if isinstance(error, RemoteProtocolError) else RemoteProtocolError
            raise kind(f"client {client_id}: {error}") from error
        examples = _check_examples(client_id, num_examples)
        accepted = Accepted(client_id, self.round, examples, data, upload.update, upload.carried)
        self._uploads[client_id] = accepted
        return accepted

    def _check_upload(self, client_id: int, header: Header, data: bytes) -> None:
        if header.round != self.round:
            kind = LateUpload if header.round < self.round else RemoteProtocolError
            raise kind(f"upload is for round {header.round}, the server is at {self.round}")
        if (accepted := self._uploads.get(client_id)) is not None:
            if accepted.data != data:
                raise RemoteProtocolError(f"another upload of round {header.round} was accepted")
            raise DuplicateUpload(f"this upload of round {header.round} has already been accepted")
        header.check_history(self._replica.stamp, "the server")
        if self.cohort is not None and client_id not in self.cohort:
            raise RemoteProtocolError(f"not in the cohort of round {self.round}")

    def discard(self, client_id: int) -> None:
        """Drop an accepted upload of this round.

        The client learns from the broadcast that its upload was not counted.

        Raises:
            LocalProtocolError: the client has no accepted upload.

        """
        if self._uploads.pop(client_id, None) is None:
            raise LocalProtocolError(f"client {client_id} has no upload in round {self.round}")

    def finish_round(
        self,
        next_cohort: Iterable[int] | None = None,
        *,
        delta: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
        counted: Iterable[int] | None = None,
        aggregate: Aggregate | None = None,
    ) -> Broadcast:
        """Aggregate the accepted uploads, advance the model and return the broadcast.

        Args:
            next_cohort: the clients that may upload in the next round; None if all may.
            delta: a change of the weights that was computed elsewhere, for example from
                ``uploads``. It replaces the method's aggregation and is compressed like it.
            carried: values of all carried tensors that were computed elsewhere.
            counted: the clients whose uploads count; by default all that were accepted. The others
                return to their clients' residuals.
            aggregate: how to combine the uploads, in the place of the method's own aggregation.

        Returns:
            The round's broadcast. It is empty, but valid, if no upload was accepted and no delta
            was given.

        Raises:
            LocalProtocolError: a client in ``counted`` has no accepted upload.
            NonFiniteError: a value cannot be sent; the message names its tensor.
            ValueError: an argument does not fit the layout.

        """
        uploads = self._counted_uploads(counted)
        cohort = None if next_cohort is None else frozenset(map(check_id, next_cohort))
        down = self.terms.method.down
        layout = self.terms.layout
        state = self._feedback
        combine = aggregate or self.terms.method.aggregate
        values = self._next_carried(carried, uploads, combine)
        payload = NothingCodec().encode(Sparse.empty(layout.size), layout)
        change = None
        if delta is not None:
            change = copy_vector(delta, layout, "delta")
        elif uploads:
            change = _combine(uploads, combine)
        if change is not None:
            rng = seeded_rng(self.seed, 0, self.round)
            update, state = down.feedback.step(change, state, layout, rng)
            payload = down.codec.encode(update, layout)
        stamp = self._replica.stamp
        data = Broadcast.seal(
            stamp,
            self.round,
            payload,
            frozenset(upload.client_id for upload in uploads),
            cohort,
            self.terms,
            values,
        )
        # The server applies the update that it decodes from the bytes, like every client.
        broadcast = Broadcast.open(data, self.terms)
        self._advance(broadcast, state)
        return broadcast

    def _counted_uploads(self, counted: Iterable[int] | None) -> list[Accepted]:
        """Return the uploads that count, sorted by client.

        Sorted, because the rounding of a sum must not depend on the order of arrival.
        """
        if counted is None:
            return self.uploads()
        chosen = frozenset(counted)
        if absent := chosen - self.uploaded:
            raise LocalProtocolError(
                f"clients {sorted(absent)} have no upload in round {self.round}"
            )
        return [upload for upload in self.uploads() if upload.client_id in chosen]

    def combined(self, aggregate: Aggregate, counted: Iterable[int] | None = None) -> Vector | None:
        """Return the change of the weights that an aggregation of the uploads gives.

        Args:
            aggregate: how to combine the uploads.
            counted: the clients whose uploads count; by default all that were accepted.

        Returns:
            The change; None without uploads.

        """
        uploads = self._counted_uploads(counted)
        return _combine(uploads, aggregate) if uploads else None

    def _next_carried(
        self,
        given: Mapping[str, ArrayLike] | None,
        uploads: Sequence[Accepted],
        aggregate: Aggregate,
    ) -> Values:
        """Return the carried tensors that change in this round."""
        layout = self.terms.layout
        before = self._replica.carried
        if given is not None:
            values = check_carried(given, layout)
        elif uploads and layout.carried:
            shares = aggregate.shares([upload.num_examples for upload in uploads])
            clients = [upload.client_id for upload in uploads]
            counted = frozenset(clients)
            # The uploads are in the order of acceptance.
            newest = next(client for client in reversed(self._uploads) if client in counted)
            latest = clients.index(newest)
            values = combine_carried([u.carried for u in uploads], shares, latest, before, layout)
        else:
            return NO_VALUES
        changed: Values = changed_values(values, before)
        if self.carried_float16:
            changed = changed_values(round_to_float16(changed, layout), before)
        return changed

    def _advance(self, broadcast: Broadcast, state: State) -> None:
        """Apply a broadcast and start the next round."""
        self._feedback = state
        self._replica.advance(broadcast.update, broadcast.next_stamp, broadcast.carried)
        self._last_counted.update(dict.fromkeys(broadcast.counted, self.round))
        self._history.append(broadcast)
        if not self._history.is_complete:
            self._initial = None  # of no use without all broadcasts since
        self._uploads = {}
        self.cohort = broadcast.cohort
        self.round += 1

    def newest_broadcast(self, since: int) -> bytes | None:
        """Return the last broadcast if a client at round ``since`` has missed only that one."""
        newest = self._history.newest
        return newest.data if newest is not None and since == newest.round else None

    def download(self, client_id: int, since: int) -> CatchUp:
        """Like ``catch_up``, but return the plain broadcast if the client missed only one."""
        data = self.newest_broadcast(since)
        if data is not None:
            return CatchUp(since, self.round, How.BROADCAST, data)
        return self.catch_up(client_id, since)

    def catch_up(self, client_id: int, since: int) -> CatchUp:
        """Make the shortest message that takes a client from round ``since`` to this one.

        Args:
            client_id: the client that asks.
            since: the client's round; -1 for a client without weights.

        Raises:
            RemoteProtocolError: ``since`` is later than this server's round.

        """
        client_id = check_id(client_id)
        if not -1 <= since <= self.round:
            raise RemoteProtocolError(
                f"client {client_id}: asks to catch up from round {since},"
                f" the server is at {self.round}"
            )
        counted = self._history.was_counted(client_id, since)
        if counted is None:
            # The round is no longer cached. If a later upload was counted, the client has already
            # learnt about this one.
            counted = since >= 0 and self._last_counted.get(client_id, -1) >= since
        builder = CatchUpBuilder(since, self.round, counted, self.terms)
        data, how = self._history.shortest_catch_up(builder, self._replica, self._initial)
        return CatchUp(since, self.round, how, data)

    def snapshot(self, *, copy: bool = True) -> Snapshot:
        """Return the whole state, for ``restore``.

        Args:
            copy: whether the snapshot stays valid when the server changes.

        """
        uploads = [records.upload_record(upload) for upload in self._uploads.values()]
        blobs = {"history": self._history.encoded_broadcasts(), "uploads": uploads}
        if self._initial is not None:
            blobs["initial"] = [self._initial]
        arrays = {
            **self._replica.to_arrays(copy=copy),
            **{f"feedback.{name}": vector for name, vector in self._feedback.items()},
            "counted.clients": np.array(list(self._last_counted), np.uint64),
            "counted.rounds": np.array(list(self._last_counted.values()), np.int64),
            **pack_blobs(blobs),
        }
        cohort = None if self.cohort is None else sorted(self.cohort)
        return Snapshot(arrays, {**self._identity, "round": self.round, "cohort": cohort})

    @property
    def _identity(self) -> dict[str, object]:
        return {
            "kind": "server",
            "federation": self.federation,
            "method": self.terms.method.spec.to_json(),
            "terms": self.terms.digest.hex(),
            "seed": self.seed,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole state by that of a snapshot.

        Raises:
            ValueError: the snapshot is of another federation, model or method.

        """
        snapshot.check_meta(self._identity)
        arrays = snapshot.arrays
        cohort = snapshot.meta["cohort"]
        round = snapshot.meta["round"]
        replica = Replica.from_arrays(arrays, copy=not snapshot.is_owner)
        history = History(self._history.limit, self.terms)
        clients = arrays["counted.clients"].tolist()
        rounds = arrays["counted.rounds"].tolist()
        for data in unpack_blobs(arrays, "history"):
            history.append(Broadcast.open(data, self.terms))
        self.round = round
        self._replica = replica
        self._history = history
        self._initial = unpack_blobs(arrays, "initial")[0] if "initial" in arrays else None
        self.cohort = None if cohort is None else frozenset(cohort)
        self._feedback = snapshot.copies_with_prefix("feedback.")
        self._last_counted = dict(zip(clients, rounds, strict=True))
        self._uploads = {}
        for record in unpack_blobs(arrays, "uploads"):
            self.replay(record)

    def replay(self, record: bytes) -> None:
        """Repeat a change from the record that a store has kept.

        Raises:
            LocalProtocolError: the record does not fit this state.

        """
        tag = record[:1]
        reader = Reader(record[1:])
        if tag == records.UPLOAD:
            client_id = reader.varint()
            num_examples = reader.varint()
            self.receive(client_id, reader.rest(), num_examples)
        elif tag == records.WEIGHTED_UPLOAD:
            client_id = reader.varint()
            (weight,) = records.WEIGHT.unpack(reader.take(records.WEIGHT.size))
            self.receive(client_id, reader.rest(), weight)
        elif tag == records.DISCARD:
            self.discard(reader.varint())
        elif tag == records.BROADCAST:
            self._replay_broadcast(Broadcast.open(reader.rest(), self.terms))
        elif tag == records.EXTERNAL_BROADCAST:
            delta = reader.floats(self.terms.layout.size)
            self._replay_broadcast(Broadcast.open(reader.rest(), self.terms), delta)
        else:
            raise LocalProtocolError(f"unknown record {tag!r}")

    def _replay_broadcast(self, broadcast: Broadcast, delta: Vector | None = None) -> None:
        if broadcast.round != self.round or not broadcast.counted <= self.uploaded:
            raise LocalProtocolError(
                f"the record is of round {broadcast.round} with uploads of"
                f" {sorted(broadcast.counted)}, the server is at round {self.round} with uploads of"
                f" {sorted(self.uploaded)}"
            )
        broadcast.header.check_history(self._replica.stamp, "the server")
        state = self._feedback
        if delta is None and broadcast.counted:
            delta = self.combined(self.terms.method.aggregate, broadcast.counted)
        if delta is not None:
            state = self.terms.method.down.feedback.follow(delta, state, broadcast.update)
        self._advance(broadcast, state)


def _combine(uploads: Sequence[Accepted], aggregate: Aggregate) -> Vector:
    updates = [upload.update for upload in uploads]
    return aggregate.combine(updates, [upload.num_examples for upload in uploads])


def _check_examples(client_id: int, num_examples: float) -> float:
    """Return a number of examples, as an int if it is a whole number."""
    # Whole numbers beyond the largest float cannot be converted.
    number = float(num_examples) if abs(num_examples) < 1 << 53 else math.inf
    if not 0 < number < 1 << 53 or not math.isfinite(1 / number):
        raise RemoteProtocolError(
            f"client {client_id}: claims {num_examples} examples, expected more than 0 and less"
            " than 2**53"
        )
    return int(num_examples) if number.is_integer() else number
