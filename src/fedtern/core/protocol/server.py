"""The server side of the protocol: bytes in, events and bytes out, no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
    BudgetExceeded,
    DecodeError,
    DuplicateUpload,
    LateUpload,
    LocalProtocolError,
    NonFiniteError,
    RemoteProtocolError,
)
from fedtern.core.feedback import EMPTY, State
from fedtern.core.layout import Layout, Vector, copy_vector, read_only
from fedtern.core.methods import Aggregate, Method
from fedtern.core.protocol import records
from fedtern.core.protocol.catchup import Addressee, CatchUpBuilder
from fedtern.core.protocol.events import Accepted, CatchUp, How
from fedtern.core.protocol.history import History, Origin, Stamps
from fedtern.core.protocol.influence import DEFAULT_CAP, Bounded, NormCap, NormHistory
from fedtern.core.protocol.initial import Precision, encode_initial, read_initial
from fedtern.core.protocol.messages import Broadcast, Upload
from fedtern.core.protocol.privacy import CentralMechanism, PrivacySpent
from fedtern.core.protocol.replica import Replica
from fedtern.core.protocol.seeded_rng import check_seed, seeded_rng
from fedtern.core.protocol.terms import MAX_ROUND, Header, Terms, initial_stamp
from fedtern.core.snapshot import Snapshot, pack_blobs, unpack_blobs
from fedtern.core.template import STATISTICS, Arrays, Carry, NamedModel, Template, Ties
from fedtern.core.updates import Sparse, Steps, Update
from fedtern.core.updates.steps import MAX_WEIGHT
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
        cache_bytes: memory limit of the cache of past broadcasts, from which returning clients
            catch up. Three bytes per round, which identify the history, do not count.
        privacy: differential privacy, such as ``fedtern.privacy.CentralPrivacy``: clips each
            upload and adds noise to each aggregate.
        copy: False to let the server change ``weights`` itself, if they are a float32 vector. This
            saves memory.
        aggregate: how to combine the uploads, in the place of the method's own aggregation; see
            ``fedtern.core.methods.robust``.
        cap: how much a single upload may change the model; None for no limit. With ``privacy`` it
            is not used: the norm of each upload is clipped.
        on_upload: called with each upload before it is accepted. It can raise ``UploadDenied`` to
            refuse the upload.

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
        privacy: CentralMechanism | None = None,
        copy: bool = True,
        aggregate: Aggregate | None = None,
        cap: NormCap | None = DEFAULT_CAP,
        on_upload: Callable[[Accepted], None] | None = None,
    ) -> None:
        vector = copy_vector(weights, layout, copy=copy)
        self.terms = Terms(layout or Layout.flat(vector.size), method)
        if privacy is not None:
            privacy.check(self.terms)
        self.privacy = privacy
        self._participations: dict[int, int] = {}  # rounds that counted each client, under privacy
        self._released: Vector | None = None
        check_finite(vector, self.terms.layout)
        values = check_carried(carried, self.terms.layout)
        self.carried_float16 = carried_float16
        # Kept for clients that join later.
        self._initial = encode_initial(vector, self.terms.layout, initial)
        if self._initial is not None:
            vector = read_initial(Reader(self._initial), self.terms.layout)
        vector = self.terms.initial_weights(vector)
        self.federation = federation
        self.seed = check_seed(seed)
        self.round = 0
        self.cohort = None if cohort is None else frozenset(map(check_id, cohort))
        stamp = initial_stamp(federation, vector, values)
        self._replica = Replica(vector, stamp, values)
        self._stamps = Stamps()
        self._stamps.append(stamp)
        # Clients that still have these weights download the difference to them.
        self._origin = Origin(vector.copy(), stamp) if self.terms.has_steps else None
        self._feedback: State = EMPTY
        self._optimizer: State = EMPTY
        self._uploads: dict[int, Accepted] = {}
        self._last_counted: dict[int, int] = {}  # the last round that counted each client
        if cache_bytes is None:
            cache_bytes = 16 * vector.size + 4 * self.terms.layout.carried_nbytes + (1 << 20)
        self._history = History(cache_bytes, self.terms)
        self._model: NamedModel | None = None
        if privacy is not None and aggregate is not None:
            raise ValueError("a server with privacy aggregates by itself: omit aggregate")
        self.aggregate = aggregate or method.aggregate
        # The median of norms depends on all clients, which the accounting does not cover. Privacy
        # bounds each upload by its own rule.
        self.cap = None if privacy is not None else cap
        self.on_upload = on_upload
        self._norms = NormHistory(self.terms.layout)

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

    @property
    def released(self) -> Vector | None:
        """The noised aggregate of the last round; None without privacy or without uploads.

        A store must keep it: the noise cannot be drawn again.
        """
        return self._released

    @property
    def privacy_spent(self) -> PrivacySpent | None:
        """The largest privacy loss of any client so far; None without privacy."""
        if self.privacy is None:
            return None
        return self.privacy.spent(max(self._participations.values(), default=0))

    def allows_round(self, counted: Iterable[int] = ()) -> bool:
        """Whether the privacy budget allows another round, whichever clients take part in it.

        Args:
            counted: clients to count first, for the question whether this round is the last one.

        """
        if self.privacy is None:
            return True
        clients = frozenset(counted)
        most = max(self._participations.values(), default=0)
        most = max(most, 1 + max((self._participations.get(c, 0) for c in clients), default=-1))
        return self.privacy.allows(most + 1)

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
            UploadDenied: ``on_upload`` refused it.
            LateUpload: the upload's round is over.
            RemoteProtocolError: the upload is refused for any other reason.

        """
        accepted = self._read_upload(client_id, data, num_examples)
        if self.on_upload is not None:
            try:
                self.on_upload(accepted)
            except RemoteProtocolError as error:
                raise type(error)(f"client {accepted.client_id}: {error}") from error
        self._uploads[accepted.client_id] = accepted
        return accepted

    def _read_upload(self, client_id: int, data: bytes, num_examples: float) -> Accepted:
        client_id = check_id(client_id)
        data = bytes(data)
        try:
            header, reader = Upload.open_header(data, self.terms)
            self._check_header(client_id, header, data)  # cheap, so before the update is decoded
            upload = Upload.read(header, reader, self.terms)
        except (DecodeError, RemoteProtocolError) as error:
            kind = type(error) if isinstance(error, RemoteProtocolError) else RemoteProtocolError
            raise kind(f"client {client_id}: {error}") from error
        examples = _check_examples(client_id, num_examples)
        return Accepted(client_id, self.round, examples, data, upload.update, upload.carried)

    def _check_header(self, client_id: int, header: Header, data: bytes) -> None:
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
                ``uploads``. It replaces the method's aggregation. The method's server optimiser and
                its compression are applied to it.
            carried: values of all carried tensors that were computed elsewhere.
            counted: the clients whose uploads count; by default all that were accepted. The others
                return to their clients' residuals. With a delta, clients of the cohort may count
                whose uploads the server has never seen, as in secure aggregation.
            aggregate: how to combine the uploads, in the place of the method's own aggregation.

        Returns:
            The round's broadcast. It is empty, but valid, if no upload was accepted and no delta
            was given.

        Raises:
            BudgetExceeded: the round would exceed the privacy budget of a client.
            LocalProtocolError: a client in ``counted`` has no accepted upload or is not in the
                cohort, the server has
                ``privacy`` and another aggregation was given, or the federation has finished
                ``MAX_ROUND`` rounds.
            NonFiniteError: a value cannot be sent; the message names its tensor.
            ValueError: an argument does not fit the layout.

        """
        if self.round >= MAX_ROUND:
            raise LocalProtocolError(
                f"the federation has finished {self.round} rounds, and the format has no number for"
                " another one; start a new federation from these weights"
            )
        chosen = None if counted is None else frozenset(counted)
        unseen: frozenset[int] = frozenset()
        if delta is not None and chosen is not None:
            unseen = self._unseen_clients(chosen)
            chosen -= unseen
        uploads = self._counted_uploads(chosen)
        if self.privacy is not None:
            if not (delta is None and carried is None and aggregate is None):
                raise LocalProtocolError(
                    "a server with privacy aggregates by itself: omit delta, carried and aggregate"
                )
            self._check_budget(uploads)
        cohort = None if next_cohort is None else frozenset(map(check_id, next_cohort))
        down = self.terms.method.down
        layout = self.terms.layout
        state = self._feedback
        combine = aggregate or self.aggregate
        bounded = self._bound(uploads, combine)
        values = self._next_carried(carried, bounded.uploads, combine)
        optimizer_state = self._optimizer
        payload = NothingCodec().encode(Sparse.empty(layout.size), layout)
        change = None
        released = None
        if delta is not None:
            change = copy_vector(delta, layout, "delta")
        elif uploads and self.privacy is not None:
            updates = [upload.update for upload in uploads]
            change = self.privacy.release(updates, layout.size, self.round)
            released = change.copy()  # the feedback may overwrite the other one
        elif uploads:
            change = _combine(bounded.uploads, combine)
        if change is not None:
            change, optimizer_state = self._optimize(change)
            rng = seeded_rng(self.seed, 0, self.round)
            update, state = down.feedback.step(change, state, layout, rng)
            self._check_steps(update)
            payload = down.codec.encode(update, layout)
        stamp = self._replica.stamp
        data = Broadcast.seal(
            stamp,
            self.round,
            payload,
            frozenset(upload.client_id for upload in uploads) | unseen,
            cohort,
            self.terms,
            values,
        )
        # The server applies the update that it decodes from the bytes, like every client.
        broadcast = Broadcast.open(data, self.terms)
        self._advance(broadcast, state, optimizer_state)
        self._released = released
        return broadcast if delta is not None else replace(broadcast, capped=bounded.capped)

    def _check_budget(self, uploads: Sequence[Accepted]) -> None:
        assert self.privacy is not None
        for upload in uploads:
            rounds = self._participations.get(upload.client_id, 0) + 1
            if not self.privacy.allows(rounds):
                raise BudgetExceeded(
                    f"client {upload.client_id} would spend {self.privacy.spent(rounds)} in round"
                    f" {self.round}; stop the federation, or raise the budget"
                )

    def _optimize(self, change: Vector) -> tuple[Vector, State]:
        """Apply the method's server optimiser; return the change and the optimiser's next state."""
        optimizer = self.terms.method.server_optimizer
        if optimizer is None:
            return change, EMPTY
        check_finite(change, self.terms.layout)  # an optimiser may hide an invalid value
        return optimizer.step(change, self._optimizer)

    def _check_steps(self, update: Update) -> None:
        """Check that no weight grows beyond the range of exact replicas."""
        if isinstance(update, Steps):
            weights = self._replica.exact_weights(update.indices) + update.exact_values
            beyond = np.flatnonzero(np.abs(weights) >= MAX_WEIGHT)
            if beyond.size:
                name = self.terms.layout.name_at(int(update.indices[beyond[0]]))
                raise NonFiniteError(
                    f"weight {weights[beyond[0]]} at {name} is too large: this method's limit is"
                    " 2**23; lower the learning rate, or clip the update"
                )

    def _unseen_clients(self, counted: frozenset[int]) -> frozenset[int]:
        """Return the clients without an upload; check that they are in the cohort."""
        unseen = frozenset(map(check_id, counted)) - self.uploaded
        if self.cohort is not None and (strangers := unseen - self.cohort):
            raise LocalProtocolError(
                f"clients {sorted(strangers)} are not in the cohort of round {self.round}"
            )
        return unseen

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
            The change, with the server's cap; None without uploads.

        """
        uploads = self._bound(self._counted_uploads(counted), aggregate).uploads
        return _combine(uploads, aggregate) if uploads else None

    def bounded(
        self, aggregate: Aggregate | None = None, counted: Iterable[int] | None = None
    ) -> Bounded:
        """Return the accepted uploads of this round as they count, with the server's cap.

        Args:
            aggregate: how the uploads are combined; by default as the server does.
            counted: the clients whose uploads count; by default all that were accepted.

        """
        return self._bound(self._counted_uploads(counted), aggregate or self.aggregate)

    def _bound(self, uploads: Sequence[Accepted], aggregate: Aggregate) -> Bounded:
        if self.cap is None or not uploads:
            return Bounded(uploads, {})
        return self._norms.bound(
            uploads,
            self.cap,
            aggregate,
            self._replica.carried,
            updates=not self.terms.has_one_magnitude,
        )

    @property
    def typical_norm(self) -> float:
        """The norm that the cap is a multiple of, given the uploads so far; 0 if unknown."""
        return self._norms.typical_norm(self.uploads())

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

    def _advance(self, broadcast: Broadcast, state: State, optimizer_state: State) -> None:
        """Apply a broadcast and start the next round."""
        self._feedback = state
        if self.cap is not None:
            seen = self._counted_uploads(broadcast.counted & self.uploaded)
            self._norms.append(seen, self._replica.carried)
        self._optimizer = optimizer_state
        self._replica.advance(broadcast.update, broadcast.next_stamp, broadcast.carried)
        self._stamps.append(broadcast.next_stamp)
        self._last_counted.update(dict.fromkeys(broadcast.counted, self.round))
        if self.privacy is not None:
            for client_id in broadcast.counted:
                self._participations[client_id] = self._participations.get(client_id, 0) + 1
        self._history.append(broadcast)
        if not self._history.is_complete and self._origin is None:
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
            RemoteProtocolError: ``since`` is later than this server's round, or this server does
                not know the history of that round.

        """
        client_id = check_id(client_id)
        if not -1 <= since <= self.round:
            raise RemoteProtocolError(
                f"client {client_id}: asks to catch up from round {since},"
                f" the server is at {self.round}; if the server was restored from an old state,"
                " delete the client's state, so that it joins as a new client"
            )
        last = self._last_counted.get(client_id, -1)
        stamp = b"" if since < 0 else self._stamps.at(since)
        if stamp is None:
            raise RemoteProtocolError(
                f"client {client_id}: asks to catch up from round {since}, but the server's state,"
                " from an earlier version, does not say which history this round belongs to;"
                " delete the client's state, so that it joins as a new client"
            )
        addressee = Addressee(client_id, stamp, uploaded_later=0 <= since < last)
        counted = since >= 0 and last == since
        return self._shortest(CatchUpBuilder(since, self.round, counted, self.terms, addressee))

    def first_download(self) -> CatchUp:
        """Make a message for any client without weights.

        Like ``catch_up`` from round -1, but the message names no client, so that a transport can
        make and keep it once for many clients.
        """
        return self._shortest(CatchUpBuilder(-1, self.round, counted=False, terms=self.terms))

    def _shortest(self, builder: CatchUpBuilder) -> CatchUp:
        data, how = self._history.shortest_catch_up(
            builder, self._replica, self._initial, self._origin
        )
        return CatchUp(builder.since, self.round, how, data)

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
            **{f"optimizer.{name}": vector for name, vector in self._optimizer.items()},
            "counted.clients": np.array(list(self._last_counted), np.uint64),
            "stamps": np.frombuffer(bytes(self._stamps.data), np.uint8),
            "counted.rounds": np.array(list(self._last_counted.values()), np.int64),
            **pack_blobs(blobs),
        }
        if self._origin is not None:
            arrays["origin.weights"] = self._origin.weights
            arrays["origin.stamp"] = np.frombuffer(self._origin.stamp, np.uint8)
        if self._norms.rows.size:
            arrays["norms"] = self._norms.rows
        cohort = None if self.cohort is None else sorted(self.cohort)
        meta = {
            **self._identity,
            "round": self.round,
            "cohort": cohort,
            "first_stamp": self._stamps.first,
        }
        if self.privacy is None:
            del meta["privacy"]
        else:
            times = [self._participations[client] for client in self._last_counted]
            arrays["counted.times"] = np.array(times, np.int64)
        return Snapshot(arrays, meta)

    @property
    def _identity(self) -> dict[str, object]:
        return {
            "kind": "server",
            "federation": self.federation,
            "method": self.terms.method.spec.to_json(),
            "terms": self.terms.digest.hex(),
            "seed": self.seed,
            "privacy": None if self.privacy is None else self.privacy.describe(),
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
        # A snapshot of an earlier version has only the stamps of cached broadcasts.
        stamps = Stamps(round)
        for data in unpack_blobs(arrays, "history"):
            broadcast = Broadcast.open(data, self.terms)
            history.append(broadcast)
            stamps.first = min(stamps.first, broadcast.round)
            stamps.append(broadcast.header.stamp)
        stamps.append(replica.stamp)
        if "stamps" in arrays:
            stamps = Stamps(int(snapshot.meta["first_stamp"]), arrays["stamps"].tobytes())
        self.round = round
        self._stamps = stamps
        self._replica = replica
        self._history = history
        self._initial = unpack_blobs(arrays, "initial")[0] if "initial" in arrays else None
        if "origin.weights" in arrays:
            self._origin = Origin(arrays["origin.weights"].copy(), arrays["origin.stamp"].tobytes())
        self.cohort = None if cohort is None else frozenset(cohort)
        self._feedback = snapshot.copies_with_prefix("feedback.")
        self._optimizer = snapshot.copies_with_prefix("optimizer.")
        self._last_counted = dict(zip(clients, rounds, strict=True))
        self._participations = {}
        if self.privacy is not None:
            times = arrays["counted.times"].tolist()
            self._participations = dict(zip(clients, times, strict=True))
        self._released = None
        norms = arrays["norms"].copy() if "norms" in arrays else None
        self._norms = NormHistory(self.terms.layout, norms)
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
            self._replay_upload(client_id, reader.rest(), num_examples)
        elif tag == records.WEIGHTED_UPLOAD:
            client_id = reader.varint()
            (weight,) = records.WEIGHT.unpack(reader.take(records.WEIGHT.size))
            self._replay_upload(client_id, reader.rest(), weight)
        elif tag == records.DISCARD:
            self.discard(reader.varint())
        elif tag == records.BROADCAST:
            self._replay_broadcast(Broadcast.open(reader.rest(), self.terms))
        elif tag == records.EXTERNAL_BROADCAST:
            delta = reader.floats(self.terms.layout.size)
            self._replay_broadcast(Broadcast.open(reader.rest(), self.terms), delta)
        else:
            raise LocalProtocolError(f"unknown record {tag!r}")

    def _replay_upload(self, client_id: int, data: bytes, num_examples: float) -> None:
        # Without ``on_upload``, which has accepted it before.
        self._uploads[client_id] = self._read_upload(client_id, data, num_examples)

    def _replay_broadcast(self, broadcast: Broadcast, delta: Vector | None = None) -> None:
        is_known = delta is not None or broadcast.counted <= self.uploaded
        if broadcast.round != self.round or not is_known:
            raise LocalProtocolError(
                f"the record is of round {broadcast.round} with uploads of"
                f" {sorted(broadcast.counted)}, the server is at round {self.round} with uploads of"
                f" {sorted(self.uploaded)}"
            )
        broadcast.header.check_history(self._replica.stamp, "the server")
        state = self._feedback
        optimizer_state = self._optimizer
        if delta is None and broadcast.counted:
            if self.privacy is not None:
                raise LocalProtocolError(
                    f"the record of round {broadcast.round} has no noised aggregate"
                )
            delta = self.combined(self.aggregate, broadcast.counted)
        if delta is not None:
            change, optimizer_state = self._optimize(delta)
            state = self.terms.method.down.feedback.follow(change, state, broadcast.update)
        self._advance(broadcast, state, optimizer_state)


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
