"""A real broker for each test that wants one."""

from __future__ import annotations

import pytest
from brokers import MOSQUITTO, Mosquitto, running


@pytest.fixture
def mosquitto(tmp_path):
    pytest.importorskip("aiomqtt")
    if MOSQUITTO is None:
        pytest.skip("NO MQTT BROKER: install mosquitto, or these tests show nothing")
    with running(Mosquitto(tmp_path)) as broker:
        yield broker
