"""Fixture for a real broker."""

from __future__ import annotations

import pytest
from brokers import Mosquitto, need_broker, running
from upload_audit import new_client, new_server, trainer


@pytest.fixture(scope="session")
def _compiled_kernels():
    """Run a round in memory first: compiling in a new clone takes longer than some deadlines."""
    server = new_server()
    client = new_client(0)
    server.receive(0, client.send(trainer(0)(client.weights.copy(), 0)).data)
    client.receive(server.finish_round().data)


@pytest.fixture
def mosquitto(tmp_path, _compiled_kernels):
    pytest.importorskip("aiomqtt")
    need_broker()
    with running(Mosquitto(tmp_path)) as broker:
        yield broker
