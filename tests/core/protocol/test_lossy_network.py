"""A federation over a network that loses, repeats, delays and reorders messages.

Two invariants hold after every step: the weights of every client equal those of the server at the
same round, and no update is lost or counted twice.
"""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from checks import LAYOUT, METHODS
from fedtern import Client, DecodeError, MissedRounds, RemoteProtocolError, Server, Snapshot
from fedtern.core.feedback import EMPTY, ErrorFeedback, PowerIteration, State
from fedtern.core.layout import Carried, Layout
from fedtern.core.protocol import Upload
from fedtern.core.protocol.initial import round_initial

CLIENTS = 4
CARRIED_LAYOUT = Layout(
    LAYOUT.names,
    LAYOUT.shapes,
    (
        Carried("mean", (4,), "float32"),
        Carried("half", (3,), "float16"),
        Carried("brain", (2, 2), "bfloat16"),
        Carried("steps", (), "int64"),
        Carried("seen", (5,), "bool", "latest"),
    ),
)
client_numbers = st.integers(0, CLIENTS - 1)
message_numbers = st.integers(0, 2**16)


class LossyFederation(RuleBasedStateMachine):
    """Random steps of a federation, and the expected sums of updates."""

    def __init__(self, method, layout=LAYOUT, initial="exact", cache_bytes=600):
        super().__init__()
        self.method = method
        self.layout = layout
        self.cache_bytes = cache_bytes
        self.rng = np.random.default_rng(0)
        start = self.rng.standard_normal(LAYOUT.size).astype(np.float32)
        carried = self.random_carried()
        options = {"carried": carried, "initial": initial}
        self.server = Server(start, method, layout, cache_bytes=cache_bytes, **options)
        self.start = round_initial(start, layout, initial)
        self.clients = [Client(i, method, layout, start, **options) for i in range(CLIENTS - 1)]
        self.clients.append(Client(CLIENTS - 1, method, layout))  # joins without weights
        self.history = [self.state(self.server)]
        # Messages in flight.
        self.uploads: list[tuple[int, bytes]] = []
        self.inboxes: list[list[bytes]] = [[] for _ in range(CLIENTS)]
        self.produced = np.zeros((CLIENTS, LAYOUT.size))
        self.counted = np.zeros((CLIENTS, LAYOUT.size))
        self.aggregated = np.zeros(LAYOUT.size)  # after the server's optimiser
        self.optimizer_state: State = EMPTY
        self.counted_uploads: set[tuple[int, int]] = set()

    def random_carried(self):
        return {
            tensor.name: np.abs(self.rng.standard_normal(tensor.shape) * 9).astype(tensor.storage)
            for tensor in self.layout.carried
        }

    def state(self, side):
        return side.weights.tobytes(), {n: a.tobytes() for n, a in side.carried.items()}

    @rule(i=client_numbers)
    def train(self, i):
        client = self.clients[i]
        if client.round >= 0 and client.pending is None:
            delta = self.rng.standard_normal(LAYOUT.size).astype(np.float32)
            new = client.weights + delta
            self.produced[i] += new.astype(np.float64) - client.weights
            carried = {**client.carried, **self.random_carried()}
            self.uploads.append((i, client.send(new, carried=carried).data))

    @rule(i=client_numbers)
    def resend_upload(self, i):
        if self.clients[i].pending is not None:
            self.uploads.append((i, self.clients[i].pending))

    @rule(at=message_numbers, keep=st.booleans())
    def upload_arrives(self, at, keep):
        if self.uploads:
            at %= len(self.uploads)
            i, data = self.uploads[at] if keep else self.uploads.pop(at)
            with suppress(RemoteProtocolError):  # late, duplicate or not in the cohort
                self.server.receive(i, data, num_examples=i + 1)

    @rule(at=message_numbers)
    def upload_is_lost(self, at):
        if self.uploads:
            self.uploads.pop(at % len(self.uploads))

    @rule(cohort=st.none() | st.sets(client_numbers, min_size=1))
    def finish_round(self, cohort):
        round = self.server.round
        broadcast = self.server.finish_round(cohort)
        updates = {i: self._pending_update(i) for i in sorted(broadcast.counted)}
        for i, update in updates.items():
            self.counted[i] += update
            self.counted_uploads.add((i, round))
        weighted = getattr(self.method.aggregate, "weighted", False)
        client_weights = {i: (i + 1 if weighted else 1) for i in updates}
        if updates:
            longest = getattr(self.method.aggregate, "max_norm", math.inf)  # of ClippedMean
            self.aggregate(
                sum(clip(update, longest) * client_weights[i] for i, update in updates.items())
                / sum(client_weights.values())
            )
        self.history.append(self.state(self.server))
        for inbox in self.inboxes:
            inbox.append(broadcast.data)

    @rule(i=client_numbers, at=message_numbers, keep=st.booleans())
    def message_arrives(self, i, at, keep):
        if inbox := self.inboxes[i]:
            at %= len(inbox)
            try:
                self.clients[i].receive(inbox[at] if keep else inbox.pop(at))
            except MissedRounds:
                self.inboxes[i].append(self.server.catch_up(i, self.clients[i].round).data)

    @rule(i=client_numbers, at=message_numbers)
    def message_is_lost(self, i, at):
        if inbox := self.inboxes[i]:
            inbox.pop(at % len(inbox))

    @rule(i=client_numbers)
    def request_catch_up(self, i):
        self.inboxes[i].append(self.server.catch_up(i, self.clients[i].round).data)

    @rule(i=client_numbers)
    def catch_up_now(self, i):
        self.clients[i].receive(self.server.catch_up(i, self.clients[i].round).data)
        assert self.clients[i].round == self.server.round
        assert self.state(self.clients[i]) == self.state(self.server)

    @rule()
    def server_restarts(self):
        data = self.server.snapshot().to_bytes()
        zeros = {t.name: np.zeros(t.shape, t.storage) for t in self.layout.carried}
        self.server = Server(
            np.zeros(LAYOUT.size),
            self.method,
            self.layout,
            carried=zeros,
            cache_bytes=self.cache_bytes,
        )
        self.server.restore(Snapshot.from_bytes(data))

    @rule(i=client_numbers)
    def client_restarts(self, i):
        data = self.clients[i].snapshot().to_bytes()
        self.clients[i] = Client(i, self.method, self.layout)
        self.clients[i].restore(Snapshot.from_bytes(data))

    @rule()
    def server_is_restored_after_a_round(self):
        """A snapshot does not change with later rounds."""
        snapshot = self.server.snapshot()
        self.server.finish_round()
        self.server.restore(snapshot)

    @rule(i=client_numbers)
    def upload_is_discarded(self, i):
        if i in self.server.uploaded:
            self.server.discard(i)

    @rule(i=client_numbers, noise=st.binary(max_size=60), at=message_numbers)
    def garbage_arrives(self, i, noise, at):
        if self.uploads:
            data = bytearray(self.uploads[at % len(self.uploads)][1])
            data[at % len(data)] ^= 1 + at % 255
            noise = bytes(data)
        with pytest.raises(RemoteProtocolError):
            self.server.receive(i, noise)
        with pytest.raises((DecodeError, RemoteProtocolError)):
            self.clients[i].receive(noise)

    @invariant()
    def clients_have_the_weights_of_the_server(self):
        for client in self.clients:
            if client.round >= 0:
                assert self.state(client) == self.history[client.round]

    @invariant()
    def no_update_is_lost_or_counted_twice(self):
        if not isinstance(self.method.up.feedback, ErrorFeedback | PowerIteration):
            return  # their residual is not a plain sum of deltas
        for i, client in enumerate(self.clients):
            in_flight = 0.0
            if client.pending is not None and (i, client.round) not in self.counted_uploads:
                in_flight = self._pending_update(i)
            held = self.counted[i] + client.residual + in_flight
            assert np.allclose(self.produced[i], held, atol=1e-4)
        applied = self.server.weights.astype(np.float64) - self.start + self.server.residual
        assert np.allclose(applied, self.aggregated, atol=1e-4)

    @rule()
    def delta_from_elsewhere(self):
        delta = self.rng.standard_normal(LAYOUT.size).astype(np.float32)
        counted = sorted(self.server.uploaded)[::2]
        round = self.server.round
        broadcast = self.server.finish_round(delta=delta, counted=counted)
        for i in counted:
            self.counted[i] += self._pending_update(i)
            self.counted_uploads.add((i, round))
        self.aggregate(delta)
        self.history.append(self.state(self.server))
        for inbox in self.inboxes:
            inbox.append(broadcast.data)

    def aggregate(self, delta):
        optimizer = self.method.server_optimizer
        if optimizer is not None:
            delta, self.optimizer_state = optimizer.step(
                delta.astype(np.float32), self.optimizer_state
            )
        self.aggregated += delta

    def _pending_update(self, i):
        data = self.clients[i].pending
        return Upload.open(data, self.server.terms).update.to_dense().astype(np.float64)


def clip(update, longest):
    length = np.linalg.norm(update)
    return update * (longest / length) if length > longest else update


@pytest.mark.parametrize("initial", ["exact", "float16", "int8"])
@pytest.mark.parametrize("name", ["stc", "signsgd", "fedavg"])
def test_carried_tensors_and_rounded_models_stay_exact_on_a_lossy_network(name, initial):
    # A cache that is large enough for sums since the first round.
    run_state_machine_as_test(
        lambda: LossyFederation(METHODS[name], CARRIED_LAYOUT, initial, cache_bytes=6000),
        settings=settings(
            max_examples=40,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("name", METHODS)
def test_no_update_is_lost_and_clients_stay_exact_on_a_lossy_network(name, request):
    thorough = name in ("stc", "stc-tensor", "signsgd", "sgd") or request.config.getoption("--slow")
    run_state_machine_as_test(
        lambda: LossyFederation(METHODS[name]),
        settings=settings(
            max_examples=200 if thorough else 25,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
