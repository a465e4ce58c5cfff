"""``benchmarks/captured.py`` and ``benchmarks/message_bytes.py``: messages of real runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedtern import Client, Server
from fedtern.advice.estimates import STEPS_GROWTH

MODULES = ("captured", "message_bytes", "peers", "rows")


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import captured
    import message_bytes

    yield captured, message_bytes
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("task", ["logistic-mnist", "cnn-kws", "lstm-fashion", "vgg11s-cifar10"])
def test_messages_are_those_of_a_run(benchmarks, task):
    captured, _ = benchmarks
    found = captured.load(task)
    assert len(found.uploads) == captured.UPLOADS
    assert len(found.broadcasts) == captured.BROADCASTS
    for message in found.uploads + found.broadcasts:
        assert message.update.indices.size == max(found.terms.layout.size // 400, 1)
        assert message.payload_bytes < len(message.data) <= message.golomb_bytes + 1


def test_written_messages_are_read_back(benchmarks, monkeypatch, tmp_path):
    captured, _ = benchmarks
    monkeypatch.setattr(captured, "FOLDER", tmp_path)
    layout = captured.Layout(("w",), ((40, 50),))
    server = captured.RecordingServer(np.zeros(layout.size), captured.method(), layout)
    client = Client(0, captured.method(), layout, server.weights)
    rng = np.random.default_rng(0)
    for _ in range(captured.BROADCASTS + 3):
        change = rng.standard_normal(layout.size).astype(np.float32)
        server.receive(0, client.send(client.weights + change).data)
        client.receive(server.finish_round().data)
    assert isinstance(server, Server)
    captured.write("small", layout, server.received, server.sent)
    found = captured.load("small")
    assert [message.data for message in found.broadcasts] == server.sent[3:]
    assert found.uploads[0].data == server.received[0]
    assert found.uploads[-1].data == server.received[-1]


def test_catch_ups_and_uploads_of_keyword_spotting_are_much_shorter(benchmarks):
    captured, message_bytes = benchmarks
    found = captured.load("cnn-kws")
    assert message_bytes.beside_golomb("up", found.uploads).ratio < 0.7
    for lag, bound in ((10, 0.40), (20, 0.32), (50, 0.22)):
        row = message_bytes.catch_up("cnn-kws", found, lag)
        assert row.ratio <= bound
        assert row.reached


@pytest.mark.parametrize("task", ["logistic-mnist", "cnn-kws"])
def test_catch_ups_grow_as_advice_estimates(benchmarks, task):
    captured, message_bytes = benchmarks
    found = captured.load(task)
    one, ten, hundred = (message_bytes.catch_up(task, found, lag) for lag in (1, 10, 100))
    for row, lag in ((ten, 10), (hundred, 100)):
        assert 0.6 < row.ours / one.ours / lag**STEPS_GROWTH < 1.3
