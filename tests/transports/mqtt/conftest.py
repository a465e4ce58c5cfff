"""Fixture for a real broker."""

from __future__ import annotations

import pytest
from brokers import Mosquitto, need_broker, running


@pytest.fixture
def mosquitto(tmp_path):
    pytest.importorskip("aiomqtt")
    need_broker()
    with running(Mosquitto(tmp_path)) as broker:
        yield broker
