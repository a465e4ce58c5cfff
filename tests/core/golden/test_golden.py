"""Golden vectors: bytes of format version 1 that must always be read and written the same."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import fedtern
from checks import METHODS
from fedtern import Client, DecodeError, Layout, RemoteProtocolError, Server, stc
from fedtern.core.codecs import CODECS, AdaptiveCodec, TernaryCodec
from fedtern.core.codecs import adaptive as adaptive_codecs
from fedtern.core.codecs.golomb import MAX_DENSITY
from fedtern.core.kernels import adaptive as reference
from fedtern.core.layout import Carried
from fedtern.core.protocol import CohortNotice, How
from fedtern.core.protocol.terms import Terms, initial_stamp

PATH = Path(__file__).parent / "v1.json"
GOLDEN = json.loads(PATH.read_text())
LAYOUT = Layout(tuple(GOLDEN["layout"]["names"]), tuple(map(tuple, GOLDEN["layout"]["shapes"])))
STEPS_PATH = PATH.with_name("v1-steps.json")
STEPS = json.loads(STEPS_PATH.read_text())
STEPS_LAYOUTS = {
    name: Layout(tuple(found["names"]), tuple(map(tuple, found["shapes"])))
    for name, found in STEPS["layouts"].items()
}
UPDATES_PATH = PATH.with_name("v1-updates.json")
UPDATES = json.loads(UPDATES_PATH.read_text())
UPDATE_LAYOUTS = {
    name: Layout(tuple(found["names"]), tuple(map(tuple, found["shapes"])))
    for name, found in UPDATES["update_layouts"].items()
}
FORMAT = Path(__file__).parents[3] / "docs" / "format.md"
READER = Path(__file__).parents[3] / "examples" / "reader.mjs"


def test_the_digest_of_a_layout_is_stable():
    assert LAYOUT.digest.hex() == GOLDEN["layout"]["digest"]


@pytest.mark.parametrize("case", GOLDEN["arrays"], ids=lambda case: str(case["shape"]))
def test_golden_arrays_are_decoded(case):
    y = fedtern.decompress(bytes.fromhex(case["hex"]))
    assert list(y.shape) == case["shape"]
    if "values" in case:
        assert np.array_equal(y.reshape(-1), np.float32(case["values"]))
    else:
        indices, values = zip(*case["nonzeros"], strict=True)
        assert np.flatnonzero(y).tolist() == list(indices)
        assert np.array_equal(y.reshape(-1)[list(indices)], np.float32(values))


@pytest.mark.parametrize("case", GOLDEN["payloads"], ids=lambda case: case["name"])
def test_golden_payloads_are_decoded_and_encoded(case):
    data = bytes.fromhex(case["hex"])
    update = CODECS[data[0]].decode(data, LAYOUT)
    assert np.array_equal(update.to_dense(), np.float32(case["adds"]))
    assert CODECS[data[0]].encode(update, LAYOUT) == data


@pytest.mark.parametrize(
    "case",
    [*GOLDEN["federations"], *UPDATES["update_federations"]],
    ids=lambda case: case["method"],
)
def test_golden_federations_are_followed_by_servers_and_clients(case):
    method = METHODS[case["method"]]
    start = np.float32(case["start"])
    end = np.float32(case["rounds"][-1]["weights"])
    broadcasts = [bytes.fromhex(recorded["broadcast"]) for recorded in case["rounds"]]

    def client_at(since: int) -> Client:
        weights = None if since < 0 else start
        client = Client(300, method, LAYOUT, weights, federation="golden")
        for broadcast in broadcasts[: max(since, 0)]:
            client.receive(broadcast)
        return client

    server = Server(start, method, LAYOUT, federation="golden")
    follower = client_at(0)
    assert server.terms.digest.hex() == case["terms"]
    for recorded, broadcast in zip(case["rounds"], broadcasts, strict=True):
        for i, examples, data in recorded["uploads"]:
            server.receive(i, bytes.fromhex(data), examples)
        server.replay(b"B" + broadcast)
        follower.receive(broadcast)
        for party in (server, follower):
            assert np.array_equal(party.weights, np.float32(recorded["weights"]))
    for since, data in enumerate([*case["away"], case["replay"]], start=-1):
        away = client_at(since if since < len(case["away"]) - 1 else 0)
        away.receive(bytes.fromhex(data))
        assert away.weights.tobytes() == end.tobytes()
        assert away.round == len(broadcasts)


@pytest.mark.parametrize("case", GOLDEN["refused"], ids=lambda case: case["reason"])
def test_golden_arrays_that_break_a_rule_are_refused(case):
    with pytest.raises(DecodeError):
        fedtern.decompress(bytes.fromhex(case["hex"]))


def terms_and_stamp(round: int) -> tuple[Terms, bytes]:
    """Return the terms of the first federation and its stamp at a round."""
    case = GOLDEN["federations"][0]
    terms = Terms(LAYOUT, METHODS[case["method"]])
    if round == 0:
        return terms, initial_stamp(case["federation"], np.float32(case["start"]))
    return terms, bytes.fromhex(case["rounds"][round - 1]["broadcast"])[-4:-1]


@pytest.mark.parametrize("case", GOLDEN["calls"], ids=lambda case: case["hex"][-8:])
def test_golden_notices_are_decoded_and_encoded(case):
    terms, stamp = terms_and_stamp(case["round"])
    cohort = None if case["cohort"] is None else frozenset(case["cohort"])
    data = bytes.fromhex(case["hex"])
    notice = CohortNotice.open(data, terms)
    assert (notice.header.round, notice.header.stamp) == (case["round"], stamp)
    assert notice.cohort == cohort
    assert CohortNotice.seal(stamp, case["round"], cohort, terms) == data


@pytest.mark.parametrize("case", GOLDEN["refused_calls"], ids=lambda case: case["reason"])
def test_golden_notices_that_break_a_rule_are_refused(case):
    terms, stamp = terms_and_stamp(0)
    data = bytes.fromhex(case["hex"])
    with pytest.raises((DecodeError, RemoteProtocolError)):
        CohortNotice.open(data, terms).header.check_history(stamp, "this reader")


CARRIED_LAYOUT = Layout(
    LAYOUT.names,
    LAYOUT.shapes,
    tuple(
        Carried(name, tuple(shape), *rest)
        for name, shape, *rest in GOLDEN["carried"]["layout"]["carried"]
    ),
)


def carried_values(values: dict[str, list[float]]) -> dict[str, np.ndarray]:
    return {
        tensor.name: np.array(values[tensor.name], tensor.storage).reshape(tensor.shape)
        for tensor in CARRIED_LAYOUT.carried
    }


def carried_client(case, since: int) -> Client:
    """Return a client of a federation with carried tensors at a round."""
    given = {}
    if since >= 0:
        given = {"weights": np.float32(case["start"]), "carried": carried_values(case["values"])}
    method = METHODS[case["method"]]
    client = Client(300, method, CARRIED_LAYOUT, federation="carried", **given)
    for recorded in case["rounds"][: max(since, 0)]:
        client.receive(bytes.fromhex(recorded["broadcast"]))
    return client


def test_the_digest_of_a_layout_with_carried_tensors_is_stable():
    assert CARRIED_LAYOUT.digest.hex() == GOLDEN["carried"]["layout"]["digest"]


@pytest.mark.parametrize("case", GOLDEN["carried"]["federations"], ids=lambda case: case["method"])
def test_golden_federations_with_carried_tensors_are_followed_and_repeated(case):
    server = Server(
        np.float32(case["start"]),
        METHODS[case["method"]],
        CARRIED_LAYOUT,
        carried=carried_values(case["values"]),
        federation="carried",
    )
    assert server.terms.digest.hex() == case["terms"]
    follower = carried_client(case, 0)
    for recorded in case["rounds"]:
        for i, examples, data in recorded["uploads"]:
            server.receive(i, bytes.fromhex(data), examples)
        assert server.finish_round().data.hex() == recorded["broadcast"]
        follower.receive(bytes.fromhex(recorded["broadcast"]))
        for party in (server, follower):
            assert np.array_equal(party.weights, np.float32(recorded["weights"]))
            for name, values in carried_values(recorded["values"]).items():
                assert party.carried[name].tobytes() == values.tobytes()
    for since, data in enumerate([*case["away"], case["replay"]], start=-1):
        away = carried_client(case, since if since < len(case["away"]) - 1 else 0)
        away.receive(bytes.fromhex(data))
        assert away.weights.tobytes() == server.weights.tobytes()
        assert {name: v.tobytes() for name, v in away.carried.items()} == {
            name: v.tobytes() for name, v in server.carried.items()
        }


@pytest.mark.parametrize("case", GOLDEN["refused_carried"], ids=lambda case: case["reason"])
def test_golden_carried_tensors_that_break_a_rule_are_refused(case):
    data = bytes.fromhex(case["hex"])
    client = carried_client(GOLDEN["carried"]["federations"][0], 0 if data[1] & 15 == 2 else -1)
    with pytest.raises(DecodeError, match=r"carried tensor|too short|ends"):
        client.receive(data)


@pytest.mark.parametrize(
    "case", GOLDEN["initial"], ids=lambda case: f"{case['method']}-{case['precision']}"
)
def test_golden_initial_models_are_decoded_and_encoded(case):
    method = METHODS[case["method"]]
    given = np.float32(case["given"])
    server = Server(given, method, LAYOUT, initial=case["precision"], federation="initial")
    assert np.array_equal(server.weights, np.float32(case["start"]))
    # Version 2 of a catch-up has the addressee, and flags of another width, after the header.
    recorded, written = bytes.fromhex(case["joins"][0]), server.catch_up(1, -1).data
    assert written[2:-4] == recorded[2:15] + b"\x01\x13" + recorded[16:-4]
    expected = [case["start"], *(recorded["weights"] for recorded in case["rounds"])]
    for round, data in enumerate(case["joins"]):
        client = Client(1, method, LAYOUT)
        assert client.receive(bytes.fromhex(data)).round == round
        assert client.weights.tobytes() == np.float32(expected[round]).tobytes()
        for recorded in case["rounds"][round:]:
            client.receive(bytes.fromhex(recorded["broadcast"]))
        assert client.weights.tobytes() == np.float32(expected[-1]).tobytes()


@pytest.mark.parametrize("number", range(len(GOLDEN["initial"])))
def test_golden_initial_models_with_broadcasts_are_decoded(number):
    case = GOLDEN["initial"][number]
    for recorded, data in zip(case["rounds"], GOLDEN["initial_replays"][number], strict=True):
        client = Client(1, METHODS[case["method"]], LAYOUT)
        assert client.receive(bytes.fromhex(data)).how is How.START
        assert client.weights.tobytes() == np.float32(recorded["weights"]).tobytes()


@pytest.mark.parametrize(
    "case",
    [*GOLDEN["refused_initial"], *GOLDEN["refused_initial_replays"]],
    ids=lambda case: case["reason"],
)
def test_golden_initial_models_that_break_a_rule_are_refused(case):
    with pytest.raises(DecodeError):
        Client(1, METHODS["stc"], LAYOUT).receive(bytes.fromhex(case["hex"]))


def decode_update(data: bytes, layout: Layout):
    """Return the codec of a payload, and the update."""
    codec = CODECS.get(data[0])
    if data[0] == AdaptiveCodec.id:
        plain = CODECS[data[1]]
        codec = AdaptiveCodec(plain if hasattr(plain, "decode_with") else TernaryCodec())
    if codec is None:
        raise DecodeError("unknown codec")
    return codec, codec.decode(data, layout)


@pytest.mark.parametrize("name", UPDATE_LAYOUTS)
def test_the_digests_of_the_layouts_of_updates_are_stable(name):
    assert UPDATE_LAYOUTS[name].digest.hex() == UPDATES["update_layouts"][name]["digest"]


@pytest.mark.parametrize(
    "case", UPDATES["update_payloads"], ids=lambda case: f"{case['name']}-{case['layout']}"
)
def test_golden_rotated_updates_palettes_and_cosines_are_decoded_and_encoded(case):
    layout = UPDATE_LAYOUTS[case["layout"]]
    data = bytes.fromhex(case["hex"])
    codec, update = decode_update(data, layout)
    assert np.array_equal(update.to_dense(), np.float32(case["adds"]))
    assert codec.encode(update, layout) == data


@pytest.mark.parametrize("case", UPDATES["refused_updates"], ids=lambda case: case["reason"])
def test_golden_updates_that_break_a_rule_are_refused(case):
    with pytest.raises(DecodeError):
        decode_update(bytes.fromhex(case["hex"]), UPDATE_LAYOUTS["small"])


@pytest.fixture(params=["selected kernels", "Python kernels"])
def decode_position_payload(request, monkeypatch):
    """Return a decoder of codecs 18, 19 and 20, with each implementation of the stream."""
    if request.param == "Python kernels":
        monkeypatch.setattr(adaptive_codecs, "decode_adaptive", reference.decode_adaptive)

    def decode(data: bytes, layout: Layout):
        codec = CODECS.get(data[0])
        if data[0] == AdaptiveCodec.id:
            plain = CODECS.get(data[1]) if len(data) > 1 else None
            codec = AdaptiveCodec(plain if hasattr(plain, "decode_with") else TernaryCodec())
        return codec, codec.decode(data, layout)

    return decode


@pytest.mark.parametrize("name", STEPS_LAYOUTS)
def test_the_digests_of_the_layouts_of_steps_are_stable(name):
    assert STEPS_LAYOUTS[name].digest.hex() == STEPS["layouts"][name]["digest"]


def test_golden_adaptive_positions_and_steps_are_decoded_and_encoded(decode_position_payload):
    for case in STEPS["position_payloads"]:
        layout = STEPS_LAYOUTS[case["layout"]]
        data = bytes.fromhex(case["hex"])
        codec, update = decode_position_payload(data, layout)
        changes = getattr(update, "exact_values", update.values)
        assert update.indices.tolist() == case["positions"], case["name"]
        assert changes.tolist() == case["changes"], case["name"]
        assert (codec.encode(update, layout) == data) == case["is_written"], case["name"]


@pytest.mark.parametrize("case", STEPS["refused_payloads"], ids=lambda case: case["reason"])
def test_golden_adaptive_positions_and_steps_that_break_a_rule_are_refused(
    case, decode_position_payload
):
    with pytest.raises(DecodeError):
        decode_position_payload(bytes.fromhex(case["hex"]), STEPS_LAYOUTS[case["layout"]])


def exact_client(case, since: int) -> Client:
    """Return a client of a federation with steps at a round."""
    weights = None if since < 0 else np.float32(case["start"])
    layout = STEPS_LAYOUTS["small"]
    client = Client(300, stc(**case["parameters"]), layout, weights, federation="steps")
    for recorded in case["rounds"][: max(since, 0)]:
        client.receive(bytes.fromhex(recorded["broadcast"]))
    return client


@pytest.mark.parametrize("case", STEPS["exact_federations"], ids=lambda case: case["method"])
def test_golden_federations_with_steps_are_followed_and_repeated(case):
    method = stc(**case["parameters"])
    layout = STEPS_LAYOUTS["small"]
    # Without a cap: to test exponents, the uploads grow by a factor of 40,000 in one round.
    server = Server(np.float32(case["start"]), method, layout, federation="steps", cap=None)
    assert server.terms.digest.hex() == case["terms"]
    follower = exact_client(case, 0)
    for recorded in case["rounds"]:
        for i, examples, data in recorded["uploads"]:
            server.receive(i, bytes.fromhex(data), examples)
        assert server.finish_round().data.hex() == recorded["broadcast"]
        follower.receive(bytes.fromhex(recorded["broadcast"]))
        for party in (server, follower):
            assert party.weights.tobytes() == np.float32(recorded["weights"]).tobytes()
    messages = [*enumerate(case["away"], start=-1), *enumerate(case["sums"]), (0, case["replay"])]
    for since, data in [*messages, (-1, case["model"])]:
        away = exact_client(case, since)
        away.receive(bytes.fromhex(data))
        assert away.weights.tobytes() == server.weights.tobytes()
        assert away.round == server.round


@pytest.mark.parametrize("case", STEPS["exact_federations"], ids=lambda case: case["method"])
def test_golden_models_with_low_parts_continue_with_the_same_weights(case):
    client = exact_client(case, -1)
    client.receive(bytes.fromhex(case["middle"]["model"]))
    assert client.round == case["middle"]["round"]
    for recorded in case["rounds"][client.round :]:
        client.receive(bytes.fromhex(recorded["broadcast"]))
    assert client.weights.tobytes() == np.float32(case["rounds"][-1]["weights"]).tobytes()


@pytest.mark.parametrize("case", STEPS["exact_federations"], ids=lambda case: case["method"])
def test_golden_initial_models_are_rounded_before_steps(case):
    for join in case["initial"]:
        client = exact_client(case, -1)
        assert client.receive(bytes.fromhex(join["hex"])).round == join["round"]
        assert client.weights.tobytes() == np.float32(join["weights"]).tobytes()


@pytest.mark.parametrize("case", STEPS["refused_models"], ids=lambda case: case["reason"])
def test_golden_models_with_bad_low_parts_are_refused(case):
    with pytest.raises(DecodeError):
        exact_client(STEPS["exact_federations"][0], -1).receive(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("case", STEPS["refused_sums"], ids=lambda case: case["reason"])
def test_golden_sums_of_steps_that_break_a_rule_are_refused(case):
    with pytest.raises((DecodeError, RemoteProtocolError)):
        exact_client(STEPS["exact_federations"][0], 0).receive(bytes.fromhex(case["hex"]))


V2_PATH = PATH.with_name("v2-catch-ups.json")
V2 = json.loads(V2_PATH.read_text())


def addressed_client(case, since: int) -> Client:
    """Return the client of a golden federation of version 2 at a round."""
    weights = None if since < 0 else np.float32(case["start"])
    method = METHODS[case["method"].removesuffix("-float16")]
    if case["method"] == "stc-powers":
        method = stc(0.1, 0.1, magnitudes="powers")
    client = Client(case["client"], method, LAYOUT, weights, federation="addressed")
    for data in case["broadcasts"][: max(since, 0)]:
        client.receive(bytes.fromhex(data))
    return client


@pytest.mark.parametrize("case", V2["addressed"], ids=lambda case: case["method"])
def test_golden_addressed_catch_ups_are_applied(case):
    for found in case["catch_ups"]:
        client = addressed_client(case, found["since"])
        client.receive(bytes.fromhex(found["hex"]))
        assert client.round == len(case["broadcasts"])
        assert client.weights.tobytes() == np.float32(case["weights"]).tobytes()
    assert {"replayed broadcasts", "sum of broadcasts", "whole model"} >= {
        found["how"] for found in case["catch_ups"]
    } or case["method"].endswith("float16")


@pytest.mark.parametrize("case", V2["refused_addressed"], ids=lambda case: case["reason"])
def test_golden_addressed_catch_ups_that_break_a_rule_are_refused(case):
    client = addressed_client(V2["addressed"][0], case["since"])
    before = client.snapshot().to_bytes()
    with pytest.raises((DecodeError, RemoteProtocolError)):
        client.receive(bytes.fromhex(case["hex"]))
    assert client.snapshot().to_bytes() == before


def test_the_example_in_the_format_document_is_correct():
    lines = FORMAT.read_text().split("## An example")[1].split("```")[1].splitlines()[1:]
    shown = "".join(line[:24] for line in lines)
    data = fedtern.compress(np.array([0, 3, -1, 0.5, -5, 0]), p=1 / 3)
    assert bytes.fromhex(shown) == data


def test_the_format_document_lists_the_densities_of_golomb_widths():
    text = FORMAT.read_text()
    for density in MAX_DENSITY:
        assert repr(density) in text


@pytest.mark.parametrize(
    "path", [PATH, STEPS_PATH, V2_PATH, UPDATES_PATH], ids=lambda path: path.stem
)
def test_the_javascript_reader_decodes_the_golden_vectors(path):
    """``examples/reader.mjs`` was written from docs/format.md alone."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    result = subprocess.run([node, READER, path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].endswith(" passed, 0 failed")
