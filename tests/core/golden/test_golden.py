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
from fedtern import Client, DecodeError, Layout, RemoteProtocolError, Server
from fedtern.core.codecs import CODECS
from fedtern.core.codecs.golomb import MAX_DENSITY
from fedtern.core.layout import Carried
from fedtern.core.protocol import CohortNotice, How
from fedtern.core.protocol.terms import Terms, initial_stamp

PATH = Path(__file__).parent / "v1.json"
GOLDEN = json.loads(PATH.read_text())
LAYOUT = Layout(tuple(GOLDEN["layout"]["names"]), tuple(map(tuple, GOLDEN["layout"]["shapes"])))
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


@pytest.mark.parametrize("case", GOLDEN["federations"], ids=lambda case: case["method"])
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
    assert server.catch_up(1, -1).data.hex() == case["joins"][0]
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


def test_the_example_in_the_format_document_is_correct():
    lines = FORMAT.read_text().split("## An example")[1].split("```")[1].splitlines()[1:]
    shown = "".join(line[:24] for line in lines)
    data = fedtern.compress(np.array([0, 3, -1, 0.5, -5, 0]), p=1 / 3)
    assert bytes.fromhex(shown) == data


def test_the_format_document_lists_the_densities_of_golomb_widths():
    text = FORMAT.read_text()
    for density in MAX_DENSITY:
        assert repr(density) in text


def test_the_javascript_reader_decodes_the_golden_vectors():
    """``examples/reader.mjs`` was written from docs/format.md alone."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    result = subprocess.run([node, READER, PATH], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].endswith(" passed, 0 failed")
