"""What a broker does not carry, or does not let us do, is said once and not tried for ever."""

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
    """Brokers by what is in their configuration."""
    need_broker()

    own = "user root\n" if os.getuid() == 0 else ""  # or it could not read what is in our directory

    def start(more: str):
        return running(Mosquitto(tmp_path, f"allow_anonymous true\n{own}{more}"))

    return start


def dense_client(i: int) -> Client:
    return Client(i, sgd(), weights=np.zeros(SIZE), federation=FEDERATION)


async def refused(work, sentence: str, server: Server | None = None, broker=None) -> None:
    """Take part, beside a server if need be, until that is refused."""
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
def test_an_upload_that_the_broker_does_not_carry_is_not_sent_for_ever(
    configured, setting, sentence
):
    with configured(f"{setting} 2000\n") as mosquitto:
        broker = Broker("127.0.0.1", mosquitto.port)
        server = Server(np.zeros(SIZE), sgd(), federation=FEDERATION)
        work = join(dense_client(0), lambda weights, round: weights + 1, broker)
        asyncio.run(refused(work, sentence, server, broker))


def test_a_broker_that_carries_next_to_nothing_is_refused(configured):
    with configured("max_packet_size 500\n") as mosquitto:
        broker = Broker("127.0.0.1", mosquitto.port)
        work = serve(new_server(), broker, RoundPolicy())
        asyncio.run(refused(work, "at most 500 bytes; raise its limit to 1024 or more"))


def test_a_server_cuts_what_it_says_to_what_the_broker_carries():
    mqtt_server = MqttServer(new_server(), RoundPolicy(), Limits(packet_bytes=1 << 20))
    mqtt_server.connected(0.0, 2000)
    answers = mqtt_server.receive("ask", 0, b"\0", 1.0)
    assert len(answers) > 10
    assert max(len(answer.payload) for answer in answers) < 2000


def test_who_may_not_publish_is_told_so(configured, tmp_path):
    (tmp_path / "acl").write_text("topic read #\n")
    with configured(f"acl_file {tmp_path / 'acl'}\n") as mosquitto:
        broker = Broker("127.0.0.1", mosquitto.port)
        sentence = r"Publishing to fedtern/books/(alive/0|round) denied \(Not authorized"
        asyncio.run(refused(join(new_client(0), trainer(0), broker), sentence))
        asyncio.run(refused(serve(new_server(), broker), sentence))


@pytest.mark.skipif(not PLUGINS, reason="Mosquitto without its plugin for dynamic security")
def test_who_may_not_subscribe_is_told_so(configured, tmp_path):
    rights = {"publishClientSend": True, "publishClientReceive": True, "subscribe": False}
    (tmp_path / "rights.json").write_text(json.dumps({"defaultACLAccess": rights}))
    plugin = f"plugin {PLUGINS[0]}\nplugin_opt_config_file {tmp_path / 'rights.json'}\n"
    with configured(plugin) as mosquitto:
        broker = Broker("127.0.0.1", mosquitto.port)
        sentence = r"Subscription to fedtern/books/(down/0|up/\+) denied \(Not authorized\)"
        asyncio.run(refused(join(new_client(0), trainer(0), broker), sentence))
        asyncio.run(refused(serve(new_server(), broker), sentence))


def test_connections_that_do_not_last_are_tried_less_and_less_often(monkeypatch):
    pauses, now = [], [0.0]

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
