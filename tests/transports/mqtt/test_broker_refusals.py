"""Errors for limits and permissions of a broker, without endless retries."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import numpy as np
import pytest
from brokers import Mosquitto, need_broker, running
from upload_audit import FEDERATION, new_client, new_server, trainer

from fedtern import Client, Server, sgd
from fedtern.transports.mqtt import Broker, Limits, MqttServer, RoundPolicy, join, serve
from fedtern.transports.mqtt.broker import BrokerError, Reconnection

aiomqtt = pytest.importorskip("aiomqtt")

SIZE = 1000
PLUGINS = sorted(Path("/usr/lib").glob("*/mosquitto_dynamic_security.so"))


@pytest.fixture
def configured(tmp_path):
    """Return a function that starts a broker with more lines of configuration."""
    need_broker()

    own = "user root\n" if os.getuid() == 0 else ""  # to read our directory

    def start(more: str):
        return running(Mosquitto(tmp_path, f"allow_anonymous true\n{own}{more}"))

    return start


def dense_client(i: int) -> Client:
    return Client(i, sgd(), weights=np.zeros(SIZE), federation=FEDERATION)


async def check_refused(work, sentence: str, server: Server | None = None, broker=None) -> None:
    """Check that ``work`` fails with this error, beside a server if one is given."""
    others = []
    if server is not None:
        others.append(asyncio.create_task(serve(server, broker, RoundPolicy(grace=0.1))))
    try:
        with pytest.raises(BrokerError, match=sentence):
            await asyncio.wait_for(work, 20)
    finally:
        for task in others:
            task.cancel()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("max_packet_size", "accepts packets of at most 2000 bytes, but a message on .*up/0 has"),
        ("message_size_limit", "closed the connection: .*message_size_limit"),
    ],
)
def test_an_upload_larger_than_the_brokers_limit_is_an_error(configured, setting, sentence):
    with configured(f"{setting} 2000\n") as mosquitto:
        broker = Broker("127.0.0.1", mosquitto.port)
        server = Server(np.zeros(SIZE), sgd(), federation=FEDERATION)
        work = join(dense_client(0), lambda weights, round: weights + 1, broker)
        asyncio.run(check_refused(work, sentence, server, broker))


def test_a_broker_with_a_limit_below_the_minimum_is_an_error(configured):
    with configured("max_packet_size 500\n") as mosquitto:
        broker = Broker("127.0.0.1", mosquitto.port)
        work = serve(new_server(), broker, RoundPolicy())
        asyncio.run(check_refused(work, "at most 500 bytes; raise its limit to 1024 or more"))


def test_a_server_splits_catch_ups_to_fit_the_brokers_limit():
    mqtt_server = MqttServer(new_server(), RoundPolicy(), Limits(packet_bytes=1 << 20))
    mqtt_server.connected(0.0, 2000)
    answers = mqtt_server.receive("ask", 0, b"\0", 1.0)
    assert len(answers) > 10
    assert max(len(answer.payload) for answer in answers) < 2000


def test_a_denied_publish_is_an_error(configured, tmp_path):
    (tmp_path / "acl").write_text("topic read #\n")
    with configured(f"acl_file {tmp_path / 'acl'}\n") as mosquitto:
        broker = Broker("127.0.0.1", mosquitto.port)
        sentence = r"Publishing to fedtern/books/(alive/0|round) denied \(Not authorized"
        asyncio.run(check_refused(join(new_client(0), trainer(0), broker), sentence))
        asyncio.run(check_refused(serve(new_server(), broker), sentence))


@pytest.mark.skipif(not PLUGINS, reason="Mosquitto's plugin for dynamic security is not installed")
def test_a_denied_subscription_is_an_error(configured, tmp_path):
    rights = {"publishClientSend": True, "publishClientReceive": True, "subscribe": False}
    (tmp_path / "rights.json").write_text(json.dumps({"defaultACLAccess": rights}))
    plugin = f"plugin {PLUGINS[0]}\nplugin_opt_config_file {tmp_path / 'rights.json'}\n"
    with configured(plugin) as mosquitto:
        broker = Broker("127.0.0.1", mosquitto.port)
        sentence = r"Subscription to fedtern/books/(down/0|up/\+) denied \(Not authorized\)"
        asyncio.run(check_refused(join(new_client(0), trainer(0), broker), sentence))
        asyncio.run(check_refused(serve(new_server(), broker), sentence))


def test_pauses_between_attempts_grow_until_a_connection_is_stable(monkeypatch):
    pauses = []
    now = [0.0]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("fedtern.transports.mqtt.broker.asyncio.sleep", sleep)
    monkeypatch.setattr("fedtern.transports.mqtt.broker.time.monotonic", lambda: now[0])
    reconnection = Reconnection(Broker())

    async def connections(count: int, seconds: float) -> None:
        for _ in range(count):
            reconnection.connected()
            now[0] += seconds
            await reconnection.failed(aiomqtt.MqttError("gone"))

    asyncio.run(connections(10, 0.5))
    assert pauses[-1] >= 15
    asyncio.run(connections(1, 60.0))
    assert pauses[-1] <= 0.25
    assert pauses[:3] == pytest.approx([0.2, 0.4, 0.8], rel=0.4)
