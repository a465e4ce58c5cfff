"""The C and the Python client accept the same messages, with the same effect, and no others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from device_library import CODES, Device

from fedtern import (
    Client,
    DecodeError,
    Layout,
    MissedRounds,
    RemoteProtocolError,
    Server,
    sgd,
    signsgd,
    stc,
)
from fedtern.core.codecs.golomb import encode_positions
from fedtern.core.envelope import ADDRESSED_CATCH_UP, BROADCAST, CATCH_UP, COHORT_NOTICE, seal
from fedtern.core.errors import MisdeliveredMessage
from fedtern.core.protocol import Broadcast, CohortNotice
from fedtern.core.protocol.catchup import CatchUpBuilder, encode_sum
from fedtern.core.protocol.initial import encode_initial
from fedtern.core.updates.sums import MAX_UPDATES, SignCounts, UpdateSequence, merge_updates
from fedtern.core.wire import Reader, varint

LAYOUT = Layout(("a", "b"), ((5, 4), (10,)))
METHODS = {"stc": stc(0.2, 0.1), "signsgd": signsgd(0.01), "sgd": sgd()}
AT = 2  # the round of the client that receives the messages


class Scene:
    """A server ahead of its clients, and the messages that one of them may receive."""

    def __init__(self, library, name: str, seed: int = 1) -> None:
        self.library, self.method = library, METHODS[name]
        rng = np.random.default_rng(seed)
        self.start = rng.standard_normal(LAYOUT.size).astype(np.float32)
        server = Server(self.start, self.method, LAYOUT)
        clients = [Client(i, self.method, LAYOUT, self.start) for i in (0, 1, 300)]
        self.broadcasts = []
        for t in range(6):
            for client in clients:
                delta = rng.standard_normal(LAYOUT.size).astype(np.float32)
                sent = client.send_delta(delta)
                if t != 3:
                    server.receive(client.client_id, sent.data)
            broadcast = server.finish_round(None if t % 2 else [0, 1, 5, 300])
            self.broadcasts.append(broadcast.data)
            for client in clients:
                client.receive(broadcast.data)
        way = CatchUpBuilder(AT, server.round, False, server.terms)
        stamp = self.broadcasts[AT][8:11]
        del server._last_counted[300]  # the devices below have not uploaded later
        self.messages = {
            "broadcast": self.broadcasts[AT],
            "previous broadcast": self.broadcasts[AT - 1],
            "empty broadcast": self.broadcasts[3],
            "replay": way.replay(self.broadcasts[AT:], stamp),
            "shortest": server.catch_up(300, AT).data,
            "shortest, short": server.catch_up(300, 4).data,
            "notice": CohortNotice.seal(stamp, AT, frozenset([0, 1, 300]), server.terms),
            "whole model": server.catch_up(300, -1).data,
        }
        self.messages["model"] = self._model_from(self.messages["whole model"])
        for precision in ("float16", "int8"):
            initial = encode_initial(self.start, LAYOUT, precision)
            way = CatchUpBuilder(-1, 0, False, server.terms)
            self.messages[f"initial {precision}"] = way.start(initial, b"", b"abc", {})
            way = CatchUpBuilder(-1, server.round, False, server.terms)
            data = way.start_with_replay(initial, self.broadcasts, server.stamp, {})
            self.messages[f"initial {precision} and replay"] = data
            updates = [Broadcast.open(data, server.terms).update for data in self.broadcasts]
            if (total := merge_updates(updates)) is not None:
                data = way.start(initial, encode_sum(total, LAYOUT), server.stamp, {})
                self.messages[f"initial {precision} and sum"] = data

    @staticmethod
    def _model_from(data: bytes) -> bytes:
        """A model for a client at round ``AT``, made from one for a client without weights."""
        reader = Reader(data[2:-4])
        head = reader.take(13)
        reader.varint()  # the addressee
        reader.varint()
        lag = int.from_bytes(head[9:13], "little") - AT
        return seal(CATCH_UP, head + varint(8 * lag + 4 + 2) + reader.rest())

    def devices(self) -> list[Device]:
        """C clients that a message can meet: without weights, at ``AT`` with an upload, ahead."""
        made = [Device(self.library, 300, self.method, LAYOUT, w) for w in (None, self.start)]
        for data in self.broadcasts[:AT]:
            made[1].receive(data)
        made[1].send_delta(np.linspace(-1, 1.05, LAYOUT.size, dtype=np.float32))
        return made


def kind_of(data: bytes) -> int:
    """Return the kind of a message as ``seal`` takes it."""
    return data[1] if data[1] == ADDRESSED_CATCH_UP else data[1] & 15


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Change a message as a faulty or malicious sender would, and seal it again."""
    body = bytearray(data[2:-4])
    kind = kind_of(data)
    flags = {CATCH_UP: 13, ADDRESSED_CATCH_UP: 15}.get(kind)  # after the two bytes of client 300
    if flags is not None and body[flags] & 3 == 0 and rng.random() < 0.8:
        return mutate_replay(data, rng)
    for _ in range(int(rng.integers(1, 4))):
        # Most of the time behind the head, which has few ways to be wrong.
        first = 0 if rng.random() < 0.1 or len(body) < 14 else 13
        at = int(rng.integers(first, len(body))) if len(body) > first else 0
        match rng.integers(8):
            case 0 | 1:
                if body:
                    body[at] ^= 1 << int(rng.integers(8))
            case 2:
                if body:
                    body[at] = int(rng.integers(256))
            case 3:
                del body[at : at + int(rng.integers(1, 4))]
            case 4:
                body[at:at] = rng.bytes(int(rng.integers(1, 4)))
            case 5:
                body[at : at + 1] = varint(int(rng.integers(2 ** int(rng.integers(1, 63)))))
            case 6:
                bad = [np.nan, np.inf, -0.0, 2.0**100, 2.0**101, 1e-45, -1.0]
                body[at : at + 4] = np.float32(bad[rng.integers(len(bad))]).tobytes()
            case _:
                kind = int(rng.choice([*range(6), ADDRESSED_CATCH_UP]))
    return seal(kind, bytes(body))


def mutate_replay(data: bytes, rng: np.random.Generator) -> bytes:
    """Change one of the broadcasts in a replay, most often the last one: it alone has no next."""
    reader = Reader(data[2:-4])
    head = reader.take(13) + varint(reader.varint())
    if kind_of(data) == ADDRESSED_CATCH_UP:
        head += varint(reader.varint())
    inner = []
    while reader.remaining:
        inner.append(reader.take(reader.varint()))
    at = len(inner) - 1 if rng.random() < 0.8 else int(rng.integers(len(inner)))
    inner[at] = mutate(inner[at], rng)
    return seal(kind_of(data), head + b"".join(varint(len(part)) + part for part in inner))


def compare(device: Device, data: bytes) -> str:
    """Give a message to a C client and to its Python twin; return what happened to both."""
    client = device.twin()
    before = device.everything()
    code, event = device.receive_code(data)
    try:
        received = client.receive(data)
    except (DecodeError, RemoteProtocolError) as error:
        refused = type(error)
    else:
        refused = None
    if code != CODES["OK"]:
        assert device.everything() == before
    if code == CODES["UNSUPPORTED"]:
        # Sign counts for a method without signs, magnitudes for each tensor: no server sends them.
        return "unsupported"
    if refused is None:
        assert code == CODES["OK"]
        assert device.round == client.round
        assert device.stamp == client.stamp
        assert device.pending == client.pending
        assert device.residual.tobytes() == client.residual.tobytes()
        if client.round >= 0:
            assert device.weights.tobytes() == client.weights.tobytes()
        assert event.leads_to == received.leads_to
        assert event.invited == {None: -1, False: 0, True: 1}[received.invited]
        return "accepted, new" if received.is_new else "accepted"
    expected = {
        DecodeError: ("BAD_MESSAGE", "OTHER_VERSION"),
        MissedRounds: ("MISSED_ROUNDS",),
        MisdeliveredMessage: ("MISDELIVERED",),
        RemoteProtocolError: ("OTHER_LAYOUT", "OTHER_METHOD", "OTHER_HISTORY", "OLD_COPY"),
    }[refused]
    assert code in [CODES[name] for name in expected]
    return refused.__name__


def compare_many(library, name: str, number: int, seed: int) -> Counter[str]:
    scene, rng = Scene(library, name), np.random.default_rng(seed)
    messages = list(scene.messages.values())
    seen: Counter[str] = Counter()
    for _ in range(number):
        data = mutate(messages[rng.integers(len(messages))], rng)
        device = scene.devices()[0 if rng.random() < 0.15 else 1]
        seen[compare(device, data)] += 1
    return seen


@pytest.mark.parametrize("name", METHODS)
def test_unchanged_messages_have_the_same_effect(library, name):
    scene = Scene(library, name)
    for data in scene.messages.values():
        for device in scene.devices():
            assert compare(device, data) in ("accepted", "accepted, new", "MissedRounds")


@pytest.mark.parametrize("name", METHODS)
def test_c_and_python_clients_refuse_the_same_messages(library, name):
    seen = compare_many(library, name, 700, 0)
    outcomes = {"accepted", "accepted, new", "DecodeError", "MissedRounds", "RemoteProtocolError"}
    assert outcomes <= set(seen)


@pytest.mark.parametrize("name", METHODS)
def test_every_cut_of_a_message_is_refused(library, name):
    scene = Scene(library, name)
    device = scene.devices()[1]
    before = device.everything()
    for data in scene.messages.values():
        for length in range(len(data)):
            assert device.receive_code(data[:length])[0] == CODES["BAD_MESSAGE"]
            assert device.everything() == before


@pytest.mark.parametrize("name", METHODS)
def test_every_cut_of_a_body_has_the_same_effect_as_in_python(library, name):
    scene = Scene(library, name)
    for data in scene.messages.values():
        for length in range(len(data) - 6):
            for device in scene.devices():
                compare(device, seal(kind_of(data), data[2:][:length]))


@pytest.mark.parametrize("name", METHODS)
def test_messages_of_another_history_are_refused(library, name):
    ours, others = Scene(library, name), Scene(library, name, seed=2)
    for kind, data in others.messages.items():
        if kind.startswith("initial"):
            continue  # for clients without a history
        if kind not in ("model", "whole model", "empty broadcast", "shortest, short"):
            device = ours.devices()[1]
            is_model = device.receive_code(data)[1].how == 5  # which replaces a history
            assert is_model or compare(device, data) == "RemoteProtocolError", kind


def test_a_replay_longer_than_the_model_is_refused(library):
    method = METHODS["stc"]
    start = np.zeros(LAYOUT.size, np.float32)
    for rounds, expected in ((50, "accepted, new"), (250, "DecodeError")):
        server = Server(start, method, LAYOUT)
        broadcasts = [server.finish_round().data for _ in range(rounds)]
        way = CatchUpBuilder(0, rounds, False, server.terms)
        device = Device(library, 0, method, LAYOUT, start)
        assert compare(device, way.replay(broadcasts, device.stamp)) == expected


def receive_sum(library, method, update) -> tuple[str, Device]:
    """What a C client and its twin at round 0 make of a sum."""
    start = np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)
    device = Device(library, 0, method, LAYOUT, start)
    way = CatchUpBuilder(0, 10**8, False, device.terms)
    outcome = compare(device, way.sum(encode_sum(update, LAYOUT), device.stamp, b"abc"))
    return outcome, device


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("last", [2047, 2048, 5000])
def test_sums_of_many_updates_are_read_and_their_magnitudes_checked(library, last, nested):
    """More updates than fit into the table of those that have an entry."""
    indices = np.unique([0, 5, *range(50, last, last // 20), last - 1, last]).astype(np.int32)
    positions = np.full(indices.size, 3) if nested else np.arange(indices.size)
    mus = np.zeros((last + 1, 1), np.float32)
    mus[indices, 0] = 1 + indices % 7
    values = mus[indices, 0] * np.where(indices % 2, np.float32(1), np.float32(-1))
    update = UpdateSequence(LAYOUT.size, last + 1, positions, indices, values, mus)
    assert bool(encode_sum(update, LAYOUT)[1] & 4) == nested
    assert receive_sum(library, METHODS["stc"], update)[0] == "accepted, new"
    for at, mu in ((last, 0), (last, -1), (last - 2, 1), (7, 1), (7, -1), (0, 0)):
        wrong = mus.copy()
        wrong[at] = mu
        assert receive_sum(library, METHODS["stc"], replace(update, mus=wrong))[0] == "DecodeError"


def test_more_sign_updates_than_a_base_counts_begin_a_new_base(library):
    ups = np.arange(LAYOUT.size) % 3 * (MAX_UPDATES // 2)
    counts = (2 * ups - MAX_UPDATES).astype(np.int32)
    sums = SignCounts(LAYOUT.size, MAX_UPDATES, counts, float(np.float32(1e-6)))
    outcome, device = receive_sum(library, METHODS["signsgd"], sums)
    assert outcome == "accepted, new"
    assert device.state.sign_updates == MAX_UPDATES
    one = SignCounts(LAYOUT.size, 1, np.ones(LAYOUT.size, np.int32), float(np.float32(1e-6)))
    way = CatchUpBuilder(device.round, device.round + 1, False, device.terms)
    compare(device, way.sum(encode_sum(one, LAYOUT), device.stamp, b"xyz"))
    assert device.state.sign_updates == 1
    assert device.round == 10**8 + 1


IDS = {
    "the largest id": ((b"\1" + b"\xff" * 9 + b"\1"), True),
    "an id of 65 bits": ((b"\1" + b"\xff" * 9 + b"\2"), False),
    "an id after the largest": ((b"\2" + b"\xff" * 9 + b"\1" + b"\0"), False),
    "ids that overflow": ((b"\2\5" + b"\xff" * 9 + b"\1"), False),
    "more ids than bytes": (b"\x7f\0", False),
}


@pytest.mark.parametrize("case", IDS)
def test_ids_are_read_as_in_python(library, case):
    ids, valid = IDS[case]
    scene = Scene(library, "stc")
    device = scene.devices()[1]
    head = device.terms.header(device.stamp, AT)
    broadcast = seal(BROADCAST, head + ids + b"\0" + b"\0")
    assert compare(device, broadcast) == ("accepted, new" if valid else "DecodeError")
    notice = seal(COHORT_NOTICE, device.terms.header(device.stamp, device.round) + b"\1" + ids)
    assert compare(device, notice) == ("accepted" if valid else "DecodeError")


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("counted", [0, 4])
def test_catch_ups_to_clients_without_weights_are_whole_models(library, mode, counted):
    """A sum, or a replay, has nothing to start from; nor can an upload have counted."""
    device = Device(library, 300, METHODS["stc"], LAYOUT)
    floats = bytes(4 * LAYOUT.size)
    parts = [b"", b"abc\6\0\1\0", b"\1" + floats, b"\1" + floats[: 2 * LAYOUT.size]]
    body = device.terms.header(device.stamp, 0) + varint(8 + counted + mode) + parts[mode]
    valid = mode >= 2 and not counted
    assert compare(device, seal(CATCH_UP, body)) == ("accepted, new" if valid else "DecodeError")


def halves(*values: float) -> bytes:
    """An initial model of float16 values, the first ones given."""
    return b"\1" + np.float16([*values, *[0.0] * (LAYOUT.size - len(values))]).tobytes()


def rows(scale: float, level: int) -> bytes:
    """An initial model of int8 rows: five and one."""
    return b"\2" + np.float32([scale] * 6).tobytes() + bytes([level & 255]) * LAYOUT.size


INITIAL = {
    "all kinds of float16": (halves(1.5, -65504, 6e-8, -5.96e-8, 6.1e-5, 0.0, -0.0, 1e-3), True),
    "an infinite float16": (halves(0, np.inf), False),
    "a float16 that is NaN": (halves(0, np.nan), False),
    "the largest rows": (rows(2.0**93, -127), True),
    "a scale that is too large": (rows(float(np.float32(2.0**93) * np.float32(1.0001)), 1), False),
    "a negative scale": (rows(-1.0, 1), False),
    "a scale of negative zero": (rows(-0.0, 1), True),
    "a scale that is NaN": (rows(np.nan, 0), False),
    "a subnormal scale": (rows(3e-45, -5), True),
    "level -128": (rows(1.0, -128), False),
    "an unknown encoding": (b"\0" + halves()[1:], False),
    "a byte too many": (halves() + b"\0", False),
    "a byte too few": (rows(1.0, 1)[:-1], False),
    "nothing": (b"", False),
}


@pytest.mark.parametrize("case", INITIAL)
def test_initial_models_are_read_as_in_python(library, case):
    initial, valid = INITIAL[case]
    device = Device(library, 300, METHODS["stc"], LAYOUT)
    body = device.terms.header(b"abc", 0) + varint(8 + 3) + initial
    assert compare(device, seal(CATCH_UP, body)) == ("accepted, new" if valid else "DecodeError")


@pytest.mark.parametrize("round", [0, 1])
@pytest.mark.parametrize("has_sum", [False, True])
def test_an_initial_model_has_a_sum_unless_it_leads_to_round_0(library, round, has_sum):
    device = Device(library, 300, METHODS["stc"], LAYOUT)
    body = device.terms.header(b"abc", round) + varint(8 * (round + 1) + 3) + halves(1.0)
    expected = "accepted, new" if has_sum == (round > 0) else "DecodeError"
    assert compare(device, seal(CATCH_UP, body + b"\6\0\1\0" * has_sum)) == expected


def test_initial_models_are_for_clients_without_weights_only(library):
    device = Device(library, 300, METHODS["stc"], LAYOUT, np.zeros(LAYOUT.size, np.float32))
    for lag, expected in ((0, "DecodeError"), (1, "DecodeError"), (2, "MissedRounds")):
        body = device.terms.header(b"abc", 1) + varint(8 * lag + 3) + halves(1.0) + b"\6\0\1\0"
        assert compare(device, seal(CATCH_UP, body)) == expected


def test_rows_need_the_table_of_tensors(library):
    device = Device(library, 300, METHODS["stc"], LAYOUT)
    data = seal(CATCH_UP, device.terms.header(b"abc", 0) + varint(8 + 3) + rows(1.0, 1))
    device.state.num_tensors = 1
    assert device.receive_code(data)[0] == CODES["BAD_ARGUMENT"]
    device.state.tensors = None
    assert device.receive_code(data)[0] == CODES["UNSUPPORTED"]
    assert device.round == -1


def test_tensors_without_values_have_no_rows(library):
    layout = Layout(("a", "b", "c", "d"), ((3, 0), (2, 2), (0,), ()))
    start = np.float32([1, -2, 3, 4, 5])
    server = Server(start, METHODS["stc"], layout, initial="int8")
    device = Device(library, 300, METHODS["stc"], layout)
    assert compare(device, server.catch_up(300, -1).data) == "accepted, new"
    assert np.allclose(device.weights, start, rtol=0.01)


def test_a_replay_does_not_say_whether_an_upload_counted(library):
    scene = Scene(library, "stc")
    data = scene.messages["replay"]
    assert data[15] & 7 == 0
    changed = seal(CATCH_UP, data[2:15] + bytes([data[15] + 4]) + data[16:-4])
    assert compare(scene.devices()[1], changed) == "DecodeError"


@pytest.mark.parametrize(
    ("flags", "cells", "expected"),
    [
        (5, [0, 1, 3], "accepted, new"),
        (5, [0, 1], "DecodeError"),  # the second position has no entry
        (5, [2, 3], "DecodeError"),  # nor has the first one
        (13, [0, 1, 3], "DecodeError"),  # an unknown flag
    ],
)
@pytest.mark.parametrize("second", [5, 20])  # with and without a one in its quotient
def test_changed_positions_of_a_nested_sum_have_entries(library, flags, cells, expected, second):
    rows = encode_positions(np.array([4, second]), LAYOUT.size)
    used = {cell % 2 for cell in cells}
    mus = np.float32([update in used for update in range(2)]).tobytes()
    values = mus + bytes([1])
    keys = varint(2) + varint(len(rows)) + rows + encode_positions(np.array(cells), 2 * 2)
    payload = bytes([6, flags]) + varint(2) + varint(len(cells)) + values + keys
    scene = Scene(library, "stc")
    device = scene.devices()[1]
    body = device.terms.header(device.stamp, AT + 2) + varint(8 * 2 + 1) + b"abc" + payload
    assert compare(device, seal(CATCH_UP, body)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_c_and_python_clients_refuse_the_same_50000_messages(library, name):
    print(name, dict(compare_many(library, name, 50_000, 1)))  # with -s
