"""The client side of the protocol: bytes in, events and bytes out, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtern.core.carried import changed_values, check_carried
from fedtern.core.compressors import check_finite
from fedtern.core.dtypes import Overflow
from fedtern.core.envelope import CATCH_UP
from fedtern.core.errors import (
    BudgetExceeded,
    LocalProtocolError,
    MisdeliveredMessage,
    MissedRounds,
    RemoteProtocolError,
)
from fedtern.core.feedback import Feedback
from fedtern.core.layout import Layout, Vector, copy_vector, read_only
from fedtern.core.methods import Method
from fedtern.core.protocol.catchup import (
    Addressee,
    Model,
    Replay,
    Start,
    Sum,
    read_server_message,
)
from fedtern.core.protocol.events import How, Received, Sent
from fedtern.core.protocol.initial import Precision, round_initial
from fedtern.core.protocol.messages import Broadcast, CohortNotice
from fedtern.core.protocol.privacy import LocalMechanism, PrivacySpent
from fedtern.core.protocol.replica import Replica
from fedtern.core.protocol.terms import Header, Terms, initial_stamp
from fedtern.core.protocol.uplink import Uplink
from fedtern.core.snapshot import Snapshot, pack_blobs, unpack_blobs
from fedtern.core.template import STATISTICS, Arrays, Carry, NamedModel, Template, Ties
from fedtern.core.updates import Update
from fedtern.core.wire import check_id


class Client:
    """Keeps an exact copy of the server's weights, and uploads the changes from training.

    Args:
        client_id: the id of this client on the server.
        method: the same method as the server's.
        layout: the model's tensors; optional if ``weights`` are given.
        weights: the federation's initial model. A client without it starts at round -1 and must
            catch up first.
        carried: initial values of the layout's carried tensors; given if ``weights`` are.
        initial: the same precision of the initial weights as the server's.
        federation: the same name as the server's.
        seed: random seed of the methods that use one.
        privacy: differential privacy, such as ``fedtern.privacy.LocalPrivacy``: clips each delta
            and adds noise to it before compression.
        copy: False to let the client change ``weights`` itself, if they are a float32 vector. This
            saves memory.

    """

    def __init__(
        self,
        client_id: int,
        method: Method,
        layout: Layout | None = None,
        weights: ArrayLike | None = None,
        *,
        carried: Mapping[str, ArrayLike] | None = None,
        initial: Precision = "exact",
        federation: str = "",
        seed: int = 0,
        privacy: LocalMechanism | None = None,
        copy: bool = True,
    ) -> None:
        if layout is None and weights is None:
            raise ValueError("Pass the layout or the initial weights, which determine the size.")
        vector = None if weights is None else copy_vector(weights, layout, copy=copy)
        if layout is None and vector is not None:
            layout = Layout.flat(vector.size)
        assert layout is not None  # one of the two was given
        if vector is not None:
            check_finite(vector, layout)
            vector = round_initial(vector, layout, initial)
        self.client_id = check_id(client_id)
        self.federation = federation
        self.terms = Terms(layout, method)
        if privacy is not None:
            privacy.check(self.terms)
        self._noised_uploads = 0
        self.round = -1 if vector is None else 0
        values = {} if vector is None else check_carried(carried, layout)
        if vector is None:
            vector = np.zeros(layout.size, np.float32)
        vector = self.terms.initial_weights(vector)
        self._replica = Replica(vector, initial_stamp(federation, vector, values), values)
        # A pending upload always belongs to the weights of this round.
        self._uplink = Uplink(self.client_id, self.terms, seed, privacy=privacy)
        self._model: NamedModel | None = None

    @classmethod
    def from_arrays(
        cls,
        client_id: int,
        arrays: Arrays,
        method: Method,
        *,
        is_initial: bool = True,
        carry: Carry = "average",
        carried: Sequence[str] = STATISTICS,
        trainable: Sequence[str] = ("*",),
        detect_ties: Ties = True,
        overflow: Overflow = "refuse",
        bfloat16: Sequence[str] = (),
        **options: Any,
    ) -> Client:
        """Make a client from named arrays of any dtype, such as a state dict in NumPy.

        Args:
            client_id: the id of this client on the server.
            arrays: the model.
            method: the same method as the server's.
            is_initial: whether the arrays are the federation's initial model. If not, the client
                must catch up first; fixed and local tensors are taken from the arrays in any case.
            carry: see ``Template.of``, like the following ones; the same as on the server.
            carried: patterns of the names of floating-point tensors that are not trained.
            trainable: patterns of the names of trained tensors.
            detect_ties: which tensors are one tensor with several names.
            overflow: what to do with a weight that is too large for the dtype of its tensor.
            bfloat16: patterns of the names of uint16 arrays that hold the bits of bfloat16 values.
            options: further arguments of ``Client``.

        Returns:
            A client whose ``arrays`` have the names and dtypes of the given ones.

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
        if is_initial:
            given = {"weights": parts.weights, "carried": parts.carried, "copy": False}
            options = {**options, **given}
        client = cls(client_id, method, template.layout, **options)
        client._model = NamedModel(template, parts.local, template.fixed(arrays))
        return client

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of the model's arrays, for a client that was made with ``from_arrays``."""
        return self._named_model().join(self.weights, self.carried)

    def _named_model(self) -> NamedModel:
        if self._model is None:
            raise LocalProtocolError("this client has a flat vector; make it with from_arrays")
        return self._model

    def send_arrays(self, arrays: Arrays) -> Sent:
        """Make the upload for this round, given the arrays after training.

        Args:
            arrays: the model after training from ``arrays``.

        Raises:
            LocalProtocolError: this round's upload has already been made.
            NonFiniteError: a value cannot be sent; the message names its tensor.
            ValueError: a tensor has appeared, disappeared or changed its shape or dtype.

        """
        model = self._named_model()
        self._refuse_second_upload()
        delta = model.template.delta(arrays, self.weights)
        parts = model.template.carried_and_local(arrays)
        sent = self._send(delta, None, parts.carried)
        model.local = parts.local
        return sent

    @property
    def weights(self) -> Vector:
        """The model at this client's round: a read-only view that changes with the client."""
        if self.round < 0:
            raise LocalProtocolError("this client has no weights yet; catch up first")
        return read_only(self._replica.weights)

    @property
    def carried(self) -> dict[str, NDArray[Any]]:
        """The values of the carried tensors at this client's round; read-only views."""
        if self.round < 0:
            raise LocalProtocolError("this client has no weights yet; catch up first")
        return {name: read_only(values) for name, values in self._replica.carried.items()}

    @property
    def stamp(self) -> bytes:
        """The stamp of this client's history up to its round."""
        return self._replica.stamp

    @property
    def seed(self) -> int:
        """Random seed of the methods that use one."""
        return self._uplink.seed

    @property
    def residual(self) -> Vector:
        """The part of all deltas that no upload has sent yet; read-only."""
        return read_only(self._uplink.state.get("residual", np.zeros_like(self._replica.weights)))

    @property
    def pending(self) -> bytes | None:
        """The unacknowledged upload of this round, to be sent again if it may be lost."""
        return self._uplink.pending

    @property
    def privacy_spent(self) -> PrivacySpent | None:
        """The privacy loss of this client's uploads so far; None without privacy."""
        privacy = self._uplink.privacy
        return None if privacy is None else privacy.spent(self._noised_uploads)

    def pending_update(self) -> Update | None:
        """Decode the update in the unacknowledged upload; None if there is none."""
        return self._uplink.pending_update()

    def send(
        self,
        new_weights: ArrayLike,
        moments: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
    ) -> Sent:
        """Make the upload for this round.

        Args:
            new_weights: the weights after training from this round's weights.
            moments: for ``variance`` only: for each weight, the sum over examples (or groups of
                examples) of the squared contribution of each one to the change.
            carried: values of all carried tensors after training; by default they are unchanged.

        Returns:
            The upload's bytes and the update in them.

        Raises:
            BudgetExceeded: the upload would exceed the privacy budget.
            LocalProtocolError: this round's upload has already been made.
            NonFiniteError: a value cannot be sent; the message names its tensor.
            ValueError: an argument has the wrong shape, or a moment is negative or not finite.

        """
        self._refuse_second_upload()
        # Values that are not finite are refused later, with the name of their tensor.
        with np.errstate(over="ignore", invalid="ignore"):
            new = self._to_vector(new_weights, "new_weights")
            return self._send(new - self._replica.weights, moments, carried)

    def send_delta(
        self,
        delta: ArrayLike,
        moments: ArrayLike | None = None,
        carried: Mapping[str, ArrayLike] | None = None,
        *,
        overwrite: bool = False,
        feedback: Feedback | None = None,
    ) -> Sent:
        """Like ``send``, given the change of the weights.

        Args:
            delta: the change of the weights.
            moments: see ``send``.
            carried: see ``send``.
            overwrite: whether the client may overwrite ``delta``, which saves a copy.
            feedback: the rule of this round, if it depends on the round; by default the method's.

        """
        self._refuse_second_upload()
        with np.errstate(over="ignore"):
            own = self._to_vector(delta, "delta")
        if not overwrite or not own.flags.writeable:
            own = np.array(own)
        return self._send(own, moments, carried, feedback)

    def _send(
        self,
        delta: Vector,
        moments: ArrayLike | None,
        carried: Mapping[str, ArrayLike] | None,
        feedback: Feedback | None = None,
    ) -> Sent:
        """Make the upload from a delta that the feedback rule may overwrite."""
        values = (
            self._replica.carried if carried is None else check_carried(carried, self.terms.layout)
        )
        changed = changed_values(values, self._replica.carried)
        self._check_budget()
        update, state = self._uplink.compress(
            delta, self.round, self._check_moments(moments), feedback
        )
        sent = self._uplink.seal(update, state, self._replica.stamp, self.round, changed)
        if self._uplink.privacy is not None:
            self._noised_uploads += 1
        return sent

    def _check_budget(self) -> None:
        privacy = self._uplink.privacy
        uploads = self._noised_uploads + 1
        if privacy is not None and not privacy.allows(uploads):
            raise BudgetExceeded(
                f"client {self.client_id} would spend {privacy.spent(uploads)} with the upload of"
                f" round {self.round}; leave the federation, or raise the budget"
            )

    def _refuse_second_upload(self) -> None:
        if self.pending is not None:
            raise LocalProtocolError(
                f"client {self.client_id} has already made its upload of round {self.round}; send"
                " `pending` again, or receive the next broadcast"
            )

    def _to_vector(self, values: ArrayLike, name: str) -> Vector:
        vector = np.asarray(values, np.float32)
        if vector.shape != self.weights.shape:
            raise ValueError(f"{name} must have shape {self.weights.shape}, got {vector.shape}")
        return vector

    def _check_moments(self, moments: ArrayLike | None) -> Vector | None:
        if moments is None:
            return None
        with np.errstate(over="ignore"):
            vector = self._to_vector(moments, "moments")
        if not ((vector >= 0) & (vector < np.inf)).all():
            raise ValueError(
                "moments must be finite as float32 and not negative, got"
                f" {vector.min(initial=0)} to {vector.max(initial=0)}"
            )
        return vector

    def restriction(self) -> Callable[[Vector], None] | None:
        """Return a function that projects a gradient, in place, onto this round's subspace.

        None for every method but ``structured``, whose clients train in a random subspace.
        """
        return self._uplink.restriction(self.round)

    def receive(self, data: bytes) -> Received:
        """Apply a message from the server: a broadcast, a catch-up or a cohort notice.

        Returns:
            The effect of the message. A message that is already known changes nothing.

        Raises:
            DecodeError: the bytes are not a message of this format.
            MissedRounds: the message starts from a later round than the client's, or cannot be
                applied to the client's round. Ask the server for
                ``catch_up(client_id, client.round)``.
            MisdeliveredMessage: the message is a catch-up for another client.
            RemoteProtocolError: the message is from another federation or history.

        """
        message = read_server_message(bytes(data), self.terms)
        if isinstance(message, CohortNotice):
            return self._read_notice(message)
        if isinstance(message, Broadcast):
            return self._apply_broadcasts(
                [message], message.round, message.round + 1, How.BROADCAST
            )
        leads_to = message.header.round
        owner = f"client {self.client_id}"
        self._check_addressee(message.addressee, message.since)
        if leads_to == self.round:
            Header(CATCH_UP, message.last_stamp, leads_to).check_history(self.stamp, owner)
        if leads_to <= self.round:
            return Received(self.round, self.round, leads_to, How.NOTHING)
        if isinstance(message, Replay):
            # Every broadcast has been read and checked before the first one is applied.
            broadcasts = message.decoded(self.terms)
            return self._apply_broadcasts(broadcasts, message.since, leads_to, How.REPLAY)
        if message.since != self.round:
            raise MissedRounds(
                f"catch-up leads from round {message.since} to {leads_to}, client"
                f" {self.client_id} is at {self.round}; ask for another catch-up",
                leads_to,
            )
        since = self.round
        stamp = message.header.stamp if isinstance(message, Sum) else b""
        if message.addressee is not None:
            stamp = message.addressee.stamp
        if stamp:  # a client without weights has no history
            Header(CATCH_UP, stamp, since).check_history(self.stamp, owner)
        if isinstance(message, Sum):
            counted = self._uplink.settle(message.counted)
            self._replica.advance(message.update, message.stamp, message.carried)
            how = How.SUM
        elif isinstance(message, Start):
            # A client without weights cannot have a pending upload.
            counted = None
            self._start_from(message)
            how = How.START
        else:
            counted = self._uplink.settle(message.counted)
            self._replace_model(message)
            how = How.MODEL
        self.round = leads_to
        return Received(since, leads_to, leads_to, how, counted)

    def _check_addressee(self, addressee: Addressee | None, since: int) -> None:
        """Check that a catch-up is for this client, and for its newest state."""
        if addressee is None:
            return
        if addressee.client_id != self.client_id:
            raise MisdeliveredMessage(
                f"the catch-up is for client {addressee.client_id}, this is client"
                f" {self.client_id}; check the transport, and ask for another catch-up"
            )
        is_new = self.pending is None and not any(v.any() for v in self._uplink.state.values())
        if addressee.uploaded_later and since == self.round and not is_new:
            raise RemoteProtocolError(
                f"the server has counted an upload of client {self.client_id} to a later round than"
                f" {since}: the client was restored from an old copy of its state, and would send"
                " values twice; delete the state, so that the client starts as a new one"
            )

    def _read_notice(self, notice: CohortNotice) -> Received:
        leads_to = notice.header.round
        if leads_to > self.round:
            raise MissedRounds(
                f"notice is for round {leads_to}, client {self.client_id} is at {self.round};"
                " catch up first",
                leads_to,
            )
        if leads_to < self.round:
            return Received(self.round, self.round, leads_to, How.NOTHING)
        notice.header.check_history(self._replica.stamp, f"client {self.client_id}")
        invited = self._is_invited(notice.cohort)
        return Received(
            leads_to, leads_to, leads_to, How.NOTICE, invited=invited, cohort=notice.cohort
        )

    def _apply_broadcasts(
        self, broadcasts: Iterable[Broadcast], first: int, leads_to: int, how: How
    ) -> Received:
        if first > self.round or self.round < 0:
            raise MissedRounds(
                f"message starts from round {first}, client {self.client_id} is at"
                f" {self.round}; catch up first",
                leads_to,
            )
        since = self.round
        counted: bool | None = None
        newest: Broadcast | None = None
        for broadcast in broadcasts:
            newest = broadcast
            if broadcast.round != self.round:
                continue  # applied before
            broadcast.header.check_history(self._replica.stamp, f"client {self.client_id}")
            settled = self._uplink.settle(self.client_id in broadcast.counted)
            if settled is not None:
                counted = settled
            self._replica.advance(broadcast.update, broadcast.next_stamp, broadcast.carried)
            self.round += 1
        if self.round == since:
            how = How.NOTHING
            if newest is not None and leads_to == since:
                newest.check_followed(self._replica.stamp, f"client {self.client_id}")
        if newest is None:  # an empty replay: the client has missed nothing
            return Received(since, self.round, leads_to, how, counted)
        invited = self._is_invited(newest.cohort)
        return Received(since, self.round, leads_to, how, counted, invited, newest.cohort)

    def _is_invited(self, cohort: frozenset[int] | None) -> bool:
        return cohort is None or self.client_id in cohort

    def _replace_model(self, model: Model) -> None:
        self._replica = Replica(model.weights, model.header.stamp, model.carried)
        if model.sign_counts is not None:
            self._replica.apply(model.sign_counts)
        if model.low is not None:
            self._replica.restore_low_parts(model.low)

    def _start_from(self, start: Start) -> None:
        weights = self.terms.initial_weights(start.weights)
        self._replica = Replica(weights, start.header.stamp, start.carried)
        if start.update is not None:
            self._replica.apply(start.update)
        for broadcast in start.decoded(self.terms):
            self._replica.advance(broadcast.update, broadcast.next_stamp, broadcast.carried)

    def snapshot(self, *, copy: bool = True) -> Snapshot:
        """Return the whole state, for ``restore``.

        Args:
            copy: whether the snapshot stays valid when the client changes.

        """
        arrays = {
            **self._replica.to_arrays(copy=copy),
            **{f"feedback.{name}": vector for name, vector in self._uplink.state.items()},
            **pack_blobs({"pending": [] if self.pending is None else [self.pending]}),
        }
        if self._model is not None:
            arrays |= {f"local.{name}": array for name, array in self._model.local.items()}
        meta = {**self._identity, "round": self.round}
        if self._uplink.privacy is None:
            del meta["privacy"]
        else:
            meta["noised_uploads"] = self._noised_uploads
        return Snapshot(arrays, meta)

    @property
    def _identity(self) -> dict[str, object]:
        privacy = self._uplink.privacy
        return {
            "kind": "client",
            "federation": self.federation,
            "client": self.client_id,
            "method": self.terms.method.spec.to_json(),
            "terms": self.terms.digest.hex(),
            "seed": self._uplink.seed,
            "privacy": None if privacy is None else privacy.describe(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole state by that of a snapshot.

        Raises:
            ValueError: the snapshot is of another client, federation, model or method.

        """
        snapshot.check_meta(self._identity)
        pending = unpack_blobs(snapshot.arrays, "pending")
        round = snapshot.meta["round"]
        replica = Replica.from_arrays(snapshot.arrays, copy=not snapshot.is_owner)
        uplink = Uplink(
            self.client_id,
            self.terms,
            self._uplink.seed,
            snapshot.copies_with_prefix("feedback."),
            pending[0] if pending else None,
            self._uplink.privacy,
        )
        self._noised_uploads = snapshot.meta.get("noised_uploads", 0)
        self.round = round
        self._replica = replica
        self._uplink = uplink
        if self._model is not None:
            # A snapshot of a client with a flat vector has no local tensors.
            self._model.local |= snapshot.copies_with_prefix("local.")

    def replay(self, record: bytes) -> None:
        """Apply a message again that was received before a restart."""
        self.receive(record)
