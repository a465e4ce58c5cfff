"""A client's upward link: its feedback state and its unacknowledged upload."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.compressors import check_finite
from fedtern.core.errors import NonFiniteError
from fedtern.core.feedback import EMPTY, Feedback, State
from fedtern.core.layout import Vector
from fedtern.core.protocol.events import Sent
from fedtern.core.protocol.messages import MAX_UPLOAD_MAGNITUDE, Upload
from fedtern.core.protocol.privacy import LocalMechanism
from fedtern.core.protocol.seeded_rng import check_seed, seeded_rng
from fedtern.core.protocol.terms import Terms
from fedtern.core.updates import Update, max_magnitude


class Uplink:
    """Turns deltas into uploads, and takes back uploads that did not count.

    Args:
        client_id: the client's id.
        terms: model and method, the same as the server's.
        seed: random seed of the methods that use one.
        state: the feedback state to start from.
        pending: the unacknowledged upload, if there is one.
        privacy: adds noise to each delta before compression.

    """

    def __init__(
        self,
        client_id: int,
        terms: Terms,
        seed: int = 0,
        state: State = EMPTY,
        pending: bytes | None = None,
        privacy: LocalMechanism | None = None,
    ) -> None:
        self.client_id = client_id
        self.terms = terms
        self.seed = check_seed(seed)
        self.state = state
        self.pending = pending
        self.privacy = privacy

    def compress(
        self,
        delta: Vector,
        round: int,
        moments: Vector | None = None,
        feedback: Feedback | None = None,
    ) -> tuple[Update, State]:
        """Compress a delta without changing the state of the link.

        Args:
            delta: the change of the weights; this function may overwrite it.
            round: the client's round.
            moments: second moments of the delta, for ``variance`` only.
            feedback: the rule of this round, if it depends on the round; by default the method's.

        Returns:
            The update to send and the feedback state after it.

        Raises:
            NonFiniteError: the update is not finite, or larger than an upload may be.

        """
        rule = feedback or self.terms.method.up.feedback
        if self.privacy is not None:
            # Before the residual is added: it holds noised deltas only.
            check_finite(delta, self.terms.layout)
            delta = self.privacy.privatize(delta, self.client_id, round)
        update, state = rule.step(delta, self.state, self.terms.layout, self._rng(round), moments)
        magnitude = max_magnitude(update)
        if not magnitude <= MAX_UPLOAD_MAGNITUDE:  # true for NaN, too
            raise NonFiniteError(
                f"an update of magnitude {magnitude} cannot be sent, the limit is 2**64; lower the"
                " learning rate or clip the update"
            )
        return update, state

    def restriction(self, round: int) -> Callable[[Vector], None] | None:
        """Return a function that projects a gradient, in place, onto this round's subspace.

        None for most methods, whose uploads can hold any change.
        """
        compressor = self.terms.subspace_compressor
        if compressor is None:
            return None
        layout = self.terms.layout
        return lambda gradient: compressor.restrict(gradient, layout, self._rng(round))

    def _rng(self, round: int) -> np.random.Generator:
        return seeded_rng(self.seed, 1, self.client_id, round)

    def seal(
        self,
        update: Update,
        state: State,
        stamp: bytes,
        round: int,
        carried: Values = NO_VALUES,
    ) -> Sent:
        """Encode an update as the pending upload, and store the feedback state after it.

        Args:
            update: the update that ``compress`` returned.
            state: the feedback state that ``compress`` returned.
            stamp: the stamp of the client's history.
            round: the client's round.
            carried: the carried tensors that training has changed.

        """
        payload = self.terms.method.up.codec.encode(update, self.terms.layout)
        data = Upload.seal(stamp, round, payload, self.terms, carried)
        self.state = state
        self.pending = data
        return Sent(round, data, update)

    def pending_update(self) -> Update | None:
        """Decode the update in the pending upload; None if no upload is pending."""
        return None if self.pending is None else Upload.open(self.pending, self.terms).update

    def settle(self, counted: bool) -> bool | None:
        """Drop the pending upload. If it was not counted, add its update to the residual.

        Returns:
            ``counted``, or None if no upload was pending.

        """
        update = None if counted else self.pending_update()
        if update is not None:
            self.state = self.terms.method.up.feedback.give_back(self.state, update)
        was_pending = self.pending is not None
        self.pending = None
        return counted if was_pending else None
