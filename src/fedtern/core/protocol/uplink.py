"""A client's upward traffic: what it remembers, and the upload it has not heard of yet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedtern.core.errors import NonFiniteError
from fedtern.core.feedback import EMPTY, OBSERVED, State
from fedtern.core.layout import Vector
from fedtern.core.protocol.messages import LARGEST_UPLOAD, Upload
from fedtern.core.protocol.seeded_rng import check_seed, seeded_rng
from fedtern.core.protocol.terms import Terms
from fedtern.core.updates import Update, largest


class Uplink:
    """Turns deltas into uploads; one that did not count is taken back."""

    def __init__(self, client_id: int, terms: Terms, seed: int = 0) -> None:
        self.client_id = client_id
        self.terms = terms
        self.seed = check_seed(seed)
        self.memory: State = EMPTY
        self.pending: bytes | None = None

    def compress(
        self, delta: Vector, round: int, moments: Vector | None = None
    ) -> tuple[Update, State]:
        """What would be sent and remembered; takes ``delta`` over, changes nothing else."""
        up, layout = self.terms.method.up, self.terms.layout
        known = self.memory if moments is None else {**self.memory, OBSERVED: moments}
        update, memory = up.memory.step(delta, known, layout, self._rng(round))
        if not largest(update) <= LARGEST_UPLOAD:
            raise NonFiniteError(
                f"an update of magnitude {largest(update)} cannot be sent: uploads end at 2**64;"
                " lower the learning rate or clip the update"
            )
        return update, memory

    def restriction(self, round: int) -> Callable[[Vector], None] | None:
        """What makes a gradient one within the subspace that this round's upload can tell of.

        None where it can tell of everything, which is what most methods do.
        """
        if (compressor := self.terms.restricting) is None:
            return None
        layout = self.terms.layout
        return lambda gradient: compressor.restrict(gradient, layout, self._rng(round))

    def _rng(self, round: int) -> np.random.Generator:
        return seeded_rng(self.seed, 1, self.client_id, round)

    def seal(self, update: Update, memory: State, stamp: bytes, round: int) -> bytes:
        """Write an update as an upload and remember both."""
        payload = self.terms.method.up.codec.encode(update, self.terms.layout)
        data = Upload.seal(stamp, round, payload, self.terms)
        self.memory, self.pending = memory, data
        return data

    def settle(self, counted: bool) -> None:
        """Forget the pending upload if it counted, else take it back."""
        if self.pending is not None and not counted:
            update = Upload.open(self.pending, self.terms).update
            self.memory = self.terms.method.up.memory.give_back(self.memory, update)
        self.pending = None
