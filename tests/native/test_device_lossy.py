"""C clients, each beside a Python client in the same state, over a network that loses everything.

Uploads and messages are lost, late, repeated, reordered and damaged. After every step, a C client
has the weights that the server had at its round, bit for bit, and nothing that it learnt is lost
or counted twice.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from device_library import Device

from checks import random_vector
from fedtern import (
    Client,
    DecodeError,
    Layout,
    MissedRounds,
    RemoteProtocolError,
    Server,
    fedavg,
    sgd,
    signsgd,
    stc,
)
from fedtern.core.layout import Vector
from fedtern.core.protocol import CohortNotice, Received, Upload
from fedtern.core.protocol.events import How
from fedtern.core.protocol.initial import round_initial
from fedtern.core.protocol.terms import STAMP_BYTES
from fedtern.core.updates import Ternary
from fedtern.core.wire import Reader

DEVICES = 3
CLIENTS = DEVICES + 1  # the last one is a Python client
STEPS = 100
METHODS = ("stc", "signsgd", "fedavg", "sgd")


class Schedule:
    """One federation and a random sequence of events, which follow from the seed alone."""

    def __init__(self, library, name: str, seed: int) -> None:
        self.rng = np.random.default_rng([METHODS.index(name), seed])
        self.library = library
        size = int(self.rng.choice([1, 7, 40, 300]))
        rows = int(self.rng.choice([n for n in (1, 4, 10) if size % n == 0]))
        self.layout = Layout(("w", "b"), ((rows, size // rows), (3,)))
        self.method = {
            "stc": stc(*self.rng.choice([0.01, 0.05, 0.2, 0.7, 1.0], 2).tolist()),
            "signsgd": signsgd(delta=float(self.rng.choice([0.01, 0.1]))),
            "fedavg": fedavg(local_steps=4, weighted=True),
            "sgd": sgd(),
        }[name]
        given = self.rng.standard_normal(self.layout.size).astype(np.float32)
        initial = ("exact", "float16", "int8")[seed % 3]
        self.start = round_initial(given, self.layout, initial)
        cache = self.rng.choice([0, 6000, 50_000, 400_000])
        self.server = Server(
            given, self.method, self.layout, initial=initial, cache_bytes=int(cache)
        )
        starts = [self.start, self.start, None]  # the third joins without weights
        self.devices = [self.make(i, starts[i]) for i in range(DEVICES)]
        self.other = Client(DEVICES, self.method, self.layout, self.start)
        self.twins = [device.twin() for device in self.devices]
        # The positions that change most: with few, updates meet and sums are nested.
        self.hot = self.rng.random(self.layout.size) < self.rng.choice([0.05, 1.0])
        self.history = [self.start.tobytes()]
        self.uploads: list[tuple[int, bytes]] = []  # in flight
        self.inboxes: list[list[bytes]] = [[] for _ in range(CLIENTS)]  # in flight
        self.produced = np.zeros((DEVICES, self.layout.size))
        self.counted = np.zeros((DEVICES, self.layout.size))
        self.counted_uploads: set[tuple[int, int]] = set()
        self.seen: Counter[str] = Counter()

    def make(self, i: int, weights) -> Device:
        return Device(self.library, i, self.method, self.layout, weights)

    def run(self) -> Counter[str]:
        rules = {
            self.train: 8,
            self.other_client_trains: 2,
            self.send_again: 1,
            self.upload_arrives: 14,
            self.upload_is_lost: 1,
            self.finish_round: 5,
            self.message_arrives: 10,
            self.message_is_lost: 2,
            self.ask_to_catch_up: 1,
            self.catch_up_now: 2,
            self.notice_arrives: 1,
            self.damaged_message_arrives: 2,
            self.device_restarts: 1,
        }
        chances = np.array(list(rules.values())) / sum(rules.values())
        for step in self.rng.choice(len(rules), STEPS, p=chances):
            list(rules)[step]()
            self.check()
        for i in range(DEVICES):
            self.catch_up_now(i)
        self.check()
        return self.seen

    def train(self) -> None:
        i = int(self.rng.integers(DEVICES))
        device = self.devices[i]
        if device.round < 0 or device.pending is not None:
            return
        delta = self.random_delta()
        if isinstance(self.method.up.codec, type(signsgd().up.codec)):
            delta[np.abs(delta) < 1e-3] = 0.5  # the sign of a zero is random
        twin = self.twins[i]
        way = self.rng.integers(3)
        if way == 0:
            new = device.weights + delta
            self.produced[i] += (new - device.weights).astype(np.float64)
            data, expected = device.send(new), twin.send(new)
        else:
            self.produced[i] += delta.astype(np.float64)
            expected = twin.send_delta(delta)
            if way == 1 or not device.state.residual:
                data = device.send_delta(delta)
            else:
                device.residual[:] += delta
                data = device.send_delta(None)
        self.compare_uploads(data, expected.data)
        if data == expected.data:
            assert np.array_equal(device.residual, twin.residual)
        self.twins[i] = device.twin()
        self.uploads.append((i, data))

    def compare_uploads(self, data: bytes, expected: bytes) -> None:
        self.seen["uploads"] += 1
        self.seen["identical uploads"] += data == expected
        ours, theirs = (Upload.open(d, self.server.terms).update for d in (data, expected))
        if not isinstance(theirs, Ternary):
            assert data == expected
            return
        assert np.array_equal(ours.indices, theirs.indices)
        assert np.array_equal(ours.signs, theirs.signs)
        ulps = int(ours.mus.view(np.int32)[0]) - int(theirs.mus.view(np.int32)[0])
        assert abs(ulps) <= 1

    def other_client_trains(self) -> None:
        if self.other.pending is None:
            self.uploads.append((DEVICES, self.other.send_delta(self.random_delta()).data))

    def random_delta(self) -> Vector:
        delta = random_vector(self.rng, self.layout.size) * np.where(self.hot, 1, 1e-4)
        return delta.astype(np.float32)

    def send_again(self) -> None:
        i = int(self.rng.integers(DEVICES))
        if (pending := self.devices[i].pending) is not None:
            self.uploads.append((i, pending))

    def pick(self, items: list) -> int:
        return int(self.rng.integers(len(items)))

    def upload_arrives(self) -> None:
        if self.uploads:
            at = self.pick(self.uploads)
            i, data = self.uploads[at] if self.rng.random() < 0.3 else self.uploads.pop(at)
            with suppress(RemoteProtocolError):  # late, repeated or not in the cohort
                self.server.receive(i, data, num_examples=i + 1)

    def upload_is_lost(self) -> None:
        if self.uploads:
            self.uploads.pop(self.pick(self.uploads))

    def random_cohort(self) -> list[int] | None:
        if self.rng.random() < 0.7:
            return None
        return [i for i in range(CLIENTS) if self.rng.random() < 0.6]

    def finish_round(self) -> None:
        round = self.server.round
        broadcast = self.server.finish_round(self.random_cohort())
        for i in sorted(broadcast.counted):
            if i < DEVICES:
                self.counted[i] += self.pending_update(i)
                self.counted_uploads.add((i, round))
        self.history.append(self.server.weights.tobytes())
        for inbox in self.inboxes:
            inbox.append(broadcast.data)
        self.other.receive(self.server.catch_up(DEVICES, self.other.round).data)

    def deliver(self, i: int, data: bytes) -> None:
        """Give a message to a device and to its twin; both do the same."""
        device, twin = self.devices[i], self.twins[i]
        before = device.everything()
        received, expected = outcome(device, data), outcome(twin, data)
        assert received == expected
        if not isinstance(expected, Received):
            self.seen[expected[0].__name__] += 1
            assert device.everything() == before
            if expected[0] is MissedRounds:
                self.inboxes[i].append(self.server.catch_up(i, device.round).data)
            return
        self.seen[expected.how.value] += 1
        self.seen["given back"] += expected.counted is False
        self.seen["nested sum"] += expected.how is How.SUM and is_nested(data)
        assert (device.round, device.stamp) == (twin.round, twin.stamp)
        assert device.pending == twin.pending
        assert device.residual.tobytes() == twin.residual.tobytes()

    def message_arrives(self) -> None:
        i = int(self.rng.integers(DEVICES))
        if inbox := self.inboxes[i]:
            at = self.pick(inbox)
            self.deliver(i, inbox[at] if self.rng.random() < 0.2 else inbox.pop(at))

    def message_is_lost(self) -> None:
        i = int(self.rng.integers(DEVICES))
        if inbox := self.inboxes[i]:
            inbox.pop(self.pick(inbox))

    def ask_to_catch_up(self) -> None:
        i = int(self.rng.integers(DEVICES))
        self.inboxes[i].append(self.server.catch_up(i, self.devices[i].round).data)

    def catch_up_now(self, i: int | None = None) -> None:
        i = int(self.rng.integers(DEVICES)) if i is None else i
        self.deliver(i, self.server.catch_up(i, self.devices[i].round).data)
        assert self.devices[i].round == self.server.round
        assert self.devices[i].weights.tobytes() == self.server.weights.tobytes()

    def notice_arrives(self) -> None:
        cohort = self.random_cohort()
        names = None if cohort is None else frozenset(cohort)
        terms = self.server.terms
        data = CohortNotice.seal(self.server.stamp, self.server.round, names, terms)
        self.deliver(int(self.rng.integers(DEVICES)), data)

    def damaged_message_arrives(self) -> None:
        i = int(self.rng.integers(DEVICES))
        if inbox := self.inboxes[i]:
            data = bytearray(inbox[self.pick(inbox)])
            data[self.rng.integers(len(data))] ^= int(self.rng.integers(1, 256))
            before = self.seen["DecodeError"]
            self.deliver(i, bytes(data))
            assert self.seen["DecodeError"] == before + 1

    def device_restarts(self) -> None:
        """Save the structure, the vectors and the upload, and restore them elsewhere."""
        i = int(self.rng.integers(DEVICES))
        self.devices[i] = self.devices[i].restarted()

    def check(self) -> None:
        for i, device in enumerate(self.devices):
            if device.round >= 0:
                assert device.weights.tobytes() == self.history[device.round]
            if isinstance(self.method.up.codec, type(signsgd().up.codec)):
                continue  # it forgets by design
            held = self.counted[i] + device.residual
            if device.pending is not None and (i, device.round) not in self.counted_uploads:
                held = held + self.pending_update(i)
            scale = 1 + np.abs(self.produced[i]).max()
            assert np.allclose(self.produced[i], held, rtol=0, atol=1e-5 * scale)

    def pending_update(self, i: int) -> np.ndarray:
        data = self.devices[i].pending
        return Upload.open(data, self.server.terms).update.to_dense().astype(np.float64)


def outcome(client: Client | Device, data: bytes) -> Received | tuple[type, int | None]:
    """What a client made of a message, or the exception and the round that it names."""
    try:
        return replace(client.receive(data), cohort=None)
    except (DecodeError, RemoteProtocolError) as error:
        return type(error), getattr(error, "leads_to", None)


def is_nested(catch_up: bytes) -> bool:
    """Whether a sum has the keys of its entries nested."""
    reader = Reader(catch_up[15:])
    reader.varint()  # the addressee
    reader.varint()
    reader.take(STAMP_BYTES)
    return reader.byte() == 6 and reader.byte() & 4 > 0


def run_schedules(library, name: str, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += Schedule(library, name, seed).run()
    return seen


def check_coverage(name: str, seen: Counter[str]) -> None:
    """The schedules led through every kind of message that the method has."""
    expected = {how.value for how in How} | {"MissedRounds", "DecodeError", "uploads", "given back"}
    if name in ("sgd", "fedavg"):
        expected -= {How.SUM.value}  # their sums would be as long as the model
    if name == "stc":
        expected |= {"nested sum"}
    assert expected <= set(+seen)


@pytest.mark.parametrize("name", METHODS)
def test_c_and_python_clients_agree_on_a_lossy_network(library, name):
    check_coverage(name, run_schedules(library, name, range(20)))


@pytest.mark.slow
def test_c_and_python_clients_agree_over_a_thousand_schedules(library):
    total: Counter[str] = Counter()
    for name in METHODS:
        seen = run_schedules(library, name, range(1000, 1250))
        check_coverage(name, seen)
        total += seen
    print(dict(total))  # with -s
