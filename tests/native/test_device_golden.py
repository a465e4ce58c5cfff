"""The C client reads the golden messages, and refuses those that must be refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from device_library import CODES, Device

from checks import METHODS, trained
from fedtern import DecodeError, Layout, RemoteProtocolError, Server, stc
from fedtern.core.codecs import CODECS
from fedtern.core.envelope import BROADCAST, CATCH_UP, seal
from fedtern.core.protocol.terms import Terms, initial_stamp
from fedtern.core.wire import varint

GOLDEN = json.loads((Path(__file__).parents[1] / "core" / "golden" / "v1.json").read_text())
LAYOUT = Layout(tuple(GOLDEN["layout"]["names"]), tuple(map(tuple, GOLDEN["layout"]["shapes"])))
SUPPORTED = ("sgd", "fedavg", "signsgd", "stc")
FEDERATIONS = [case for case in GOLDEN["federations"] if case["method"] in SUPPORTED]
FAR = 2**40
COHORTS = [[0, 1, 300], [0, FAR], [], [1, FAR], [0, 1]]  # as in golden/make.py


@pytest.fixture(params=FEDERATIONS, ids=lambda case: case["method"])
def case(request):
    return request.param


def make(library, case, weights, client_id=300):
    method = METHODS[case["method"]]
    return Device(library, client_id, method, LAYOUT, weights, federation=case["federation"])


def broadcasts_of(case):
    return [bytes.fromhex(recorded["broadcast"]) for recorded in case["rounds"]]


def test_every_supported_golden_federation_is_tested():
    assert sorted(case["method"] for case in FEDERATIONS) == sorted(SUPPORTED)


def test_golden_broadcasts_give_the_recorded_weights(library, case):
    device = make(library, case, np.float32(case["start"]))
    for recorded, data in zip(case["rounds"], broadcasts_of(case), strict=True):
        device.receive(data)
        assert device.weights.tobytes() == np.float32(recorded["weights"]).tobytes()


def test_golden_catch_ups_give_the_recorded_weights(library, case):
    start = np.float32(case["start"])
    broadcasts = broadcasts_of(case)
    end = np.float32(case["rounds"][-1]["weights"])
    for since, data in enumerate(case["away"], start=-1):
        device = make(library, case, None if since < 0 else start)
        for broadcast in broadcasts[: max(since, 0)]:
            device.receive(broadcast)
        device.receive(bytes.fromhex(data))
        assert device.weights.tobytes() == end.tobytes()
        assert device.round == len(broadcasts)
        assert device.stamp == broadcasts[-1][-4:-1]


def test_golden_replay_gives_the_recorded_weights_from_every_round(library, case):
    broadcasts = broadcasts_of(case)
    for known in range(len(broadcasts)):
        device = make(library, case, np.float32(case["start"]))
        for broadcast in broadcasts[:known]:
            device.receive(broadcast)
        device.receive(bytes.fromhex(case["replay"]))
        assert device.weights.tobytes() == np.float32(case["rounds"][-1]["weights"]).tobytes()


@pytest.mark.parametrize(
    "case", GOLDEN["initial"], ids=lambda case: f"{case['method']}-{case['precision']}"
)
def test_golden_initial_models_give_the_recorded_weights(library, case):
    expected = [case["start"], *(recorded["weights"] for recorded in case["rounds"])]
    for round, data in enumerate(case["joins"]):
        device = make(library, case, None)
        assert device.receive(bytes.fromhex(data)).round == round
        assert device.weights.tobytes() == np.float32(expected[round]).tobytes()
        for broadcast in broadcasts_of(case)[round:]:
            device.receive(broadcast)
        assert device.weights.tobytes() == np.float32(expected[-1]).tobytes()


@pytest.mark.parametrize("number", range(len(GOLDEN["initial"])))
def test_golden_initial_models_with_broadcasts_give_the_recorded_weights(library, number):
    case = GOLDEN["initial"][number]
    for recorded, data in zip(case["rounds"], GOLDEN["initial_replays"][number], strict=True):
        device = make(library, case, None)
        device.receive(bytes.fromhex(data))
        assert device.weights.tobytes() == np.float32(recorded["weights"]).tobytes()


@pytest.mark.parametrize(
    "refused",
    [*GOLDEN["refused_initial"], *GOLDEN["refused_initial_replays"]],
    ids=lambda case: case["reason"],
)
def test_golden_bad_initial_models_are_refused(library, refused):
    device = make(library, GOLDEN["initial"][0], None)
    before = device.everything()
    with pytest.raises(DecodeError):
        device.receive(bytes.fromhex(refused["hex"]))
    assert device.everything() == before


def test_golden_uploads_are_written_the_same(library, case):
    """Byte for byte: the golden magnitudes have one sum in either order."""
    start = np.float32(case["start"])
    method = METHODS[case["method"]]
    server = Server(start, method, LAYOUT, federation=case["federation"])
    devices = {i: make(library, case, start, i) for i in (0, 1, 300, FAR)}
    for t, (cohort, recorded) in enumerate(zip(COHORTS, case["rounds"], strict=True)):
        assert [i for i, _, _ in recorded["uploads"]] == cohort
        for i, examples, upload in recorded["uploads"]:
            devices[i].receive(server.catch_up(i, devices[i].round).data)
            sent = devices[i].send(trained(devices[i], t))
            assert sent.hex() == upload
            server.receive(i, sent, examples)
        server.replay(b"B" + bytes.fromhex(recorded["broadcast"]))


def test_golden_notices_are_read_the_same(library):
    case = GOLDEN["federations"][0]
    for call in GOLDEN["calls"]:
        for client_id in (0, 1, 19, 20, 300, FAR):
            device = make(library, case, np.float32(case["start"]), client_id)
            for broadcast in broadcasts_of(case)[: call["round"]]:
                device.receive(broadcast)
            received = device.receive(bytes.fromhex(call["hex"]))
            assert received.invited == (call["cohort"] is None or client_id in call["cohort"])


@pytest.mark.parametrize("refused", GOLDEN["refused_calls"], ids=lambda call: call["reason"])
def test_golden_bad_notices_are_refused(library, refused):
    case = GOLDEN["federations"][0]
    device = make(library, case, np.float32(case["start"]))
    before = device.everything()
    with pytest.raises((DecodeError, RemoteProtocolError)):
        device.receive(bytes.fromhex(refused["hex"]))
    assert device.everything() == before


def small_device(library):
    """A client whose model has the size of the golden arrays that must be refused."""
    layout, method = Layout.flat(6), stc(p_up=1 / 3)
    device = Device(library, 0, method, layout, np.zeros(6, np.float32))
    head = Terms(layout, method).header(initial_stamp("", np.zeros(6, np.float32)), 0)
    return device, head + b"\0\0"  # a broadcast that counts nobody and invites everybody


def test_the_golden_array_is_accepted_as_a_broadcast(library):
    device, head = small_device(library)
    payload = bytes.fromhex(GOLDEN["arrays"][0]["hex"])[4:-4]
    device.receive(seal(BROADCAST, head + payload))
    assert device.weights.tolist() == GOLDEN["arrays"][0]["values"]


@pytest.mark.parametrize("refused", GOLDEN["refused"], ids=lambda case: case["reason"])
def test_golden_bad_payloads_are_refused(library, refused):
    device, head = small_device(library)
    data = bytes.fromhex(refused["hex"])
    before = device.everything()
    envelope_is_bad = refused["reason"] in ("wrong checksum", "another version", "not a message")
    sent = data if envelope_is_bad else seal(BROADCAST, head + data[4:-4])
    with pytest.raises(DecodeError):
        device.receive(sent)
    assert device.everything() == before


@pytest.mark.parametrize("payload", GOLDEN["payloads"], ids=lambda case: case["name"])
def test_golden_payloads_are_applied_or_refused(library, payload):
    """Sums of any method's updates are read; other codecs are refused by name."""
    data = bytes.fromhex(payload["hex"])
    name = "signsgd" if data[0] in (5, 7) else "stc" if data[0] == 3 else "sgd"
    start = np.zeros(LAYOUT.size, np.float32)
    device = Device(library, 0, METHODS[name], LAYOUT, start)
    head = device.terms.header(initial_stamp("", start), 0)
    as_sum = device.terms.header(initial_stamp("", start), 1) + varint(8 + 1) + b"abc"
    is_sum = data[0] in (6, 7)
    message = seal(CATCH_UP, as_sum + data) if is_sum else seal(BROADCAST, head + b"\0\0" + data)
    before = device.everything()
    code, _ = device.receive_code(message)
    if data[0] in (0, 1, 3, 5, 6, 7) and not (data[0] == 6 and data[1] & 2):
        assert code == CODES["OK"]
        assert np.array_equal(device.weights, np.float32(payload["adds"]))
        assert np.array_equal(device.weights, CODECS[data[0]].decode(data, LAYOUT).to_dense())
    else:
        assert code == CODES["UNSUPPORTED" if data[0] == 6 else "BAD_MESSAGE"]
        assert device.everything() == before
