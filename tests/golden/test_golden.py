"""Bytes that were written once and must be read, and written, the same for ever."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fedtern
from checks import METHODS
from fedtern import Client, Layout, Server
from fedtern.codecs import CODECS

GOLDEN = json.loads((Path(__file__).parent / "v1.json").read_text())
LAYOUT = Layout(tuple(GOLDEN["layout"]["names"]), tuple(map(tuple, GOLDEN["layout"]["shapes"])))


def test_layouts_have_the_same_digest():
    assert LAYOUT.digest.hex() == GOLDEN["layout"]["digest"]


@pytest.mark.parametrize("case", GOLDEN["arrays"])
def test_arrays_are_read_the_same(case):
    y = fedtern.decompress(bytes.fromhex(case["hex"]))
    assert list(y.shape) == case["shape"]
    assert np.array_equal(y.reshape(-1), np.float32(case["values"]))


@pytest.mark.parametrize("case", GOLDEN["payloads"], ids=lambda case: case["name"])
def test_payloads_are_read_and_written_the_same(case):
    data = bytes.fromhex(case["hex"])
    update = CODECS[data[0]].decode(data, LAYOUT)
    assert np.array_equal(update.to_dense(), np.float32(case["adds"]))
    assert CODECS[data[0]].encode(update, LAYOUT) == data


@pytest.mark.parametrize("case", GOLDEN["federations"], ids=lambda case: case["method"])
def test_whole_federations_are_read_the_same(case):
    method = METHODS[case["method"]]
    start = np.float32(case["start"])
    server, client = Server(start, method, LAYOUT), Client(9, method, LAYOUT, start)
    assert server.terms.digest.hex() == case["terms"]
    for recorded in case["rounds"]:
        for i, data in enumerate(recorded["uploads"]):
            server.receive(i, bytes.fromhex(data))
        server.replay(b"B" + bytes.fromhex(recorded["broadcast"]))
        client.receive(bytes.fromhex(recorded["broadcast"]))
        for party in (server, client):
            assert np.array_equal(party.weights, np.float32(recorded["weights"]))
    for since, data in enumerate(case["away"], start=-1):
        away = Client(2, method, LAYOUT, None if since < 0 else start)
        for recorded in case["rounds"][: max(since, 0)]:
            away.receive(bytes.fromhex(recorded["broadcast"]))
        away.receive(bytes.fromhex(data))
        assert away.weights.tobytes() == client.weights.tobytes()
        assert away.round == 4
