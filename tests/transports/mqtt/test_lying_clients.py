"""What a server on a broker does with clients that lie."""

from __future__ import annotations

import logging

import numpy as np

from fedtern import Client, Server, UploadDenied, sgd
from fedtern.core.protocol import Upload
from fedtern.transports.mqtt import MqttServer, RoundPolicy
from fedtern.transports.mqtt.messages import write_upload

SIZE = 20
CLIENTS = 10


def start(**options) -> tuple[MqttServer, list[Client]]:
    server = Server(np.zeros(SIZE), sgd(), federation="lies", **options)
    mqtt_server = MqttServer(server, RoundPolicy(grace=0.5, deadline=60.0))
    mqtt_server.connected(0.0)
    for i in range(CLIENTS):
        mqtt_server.receive("alive", i, b"\1", 0.1)
    mqtt_server.tick(1.0)
    weights = np.zeros(SIZE)
    return mqtt_server, [
        Client(i, sgd(), weights=weights, federation="lies") for i in range(CLIENTS)
    ]


def send(mqtt_server: MqttServer, client: Client, length: float) -> None:
    data = client.send_delta(np.full(SIZE, length)).data
    mqtt_server.receive("up", client.client_id, write_upload(1, data), 2.0)


def test_capped_uploads_are_counted_and_logged(caplog):
    mqtt_server, clients = start()
    with caplog.at_level(logging.WARNING, "fedtern.mqtt"):
        for i, client in enumerate(clients):
            send(mqtt_server, client, 4000.0 if i == 7 else 1.0)
    assert mqtt_server.server.round == 1
    assert (mqtt_server.stats.counted, mqtt_server.stats.capped) == (10, 1)
    assert "round 0: capped uploads of client 7 to 0.001" in caplog.text


def test_a_round_does_not_wait_for_a_client_that_the_operator_banned(caplog):
    def on_upload(accepted):
        if accepted.client_id == 7:
            raise UploadDenied("banned")

    mqtt_server, clients = start(on_upload=on_upload)
    with caplog.at_level(logging.WARNING, "fedtern.mqtt"):
        for client in clients:
            send(mqtt_server, client, 1.0)
    assert mqtt_server.server.round == 1
    assert mqtt_server.stats.refused["denied"] == 1
    assert mqtt_server.stats.counted == 9
    assert "refused client 7: client 7: banned" in caplog.text
    assert 7 not in mqtt_server.rounds.cohort, "it is not selected for the next round"


def test_an_upload_larger_than_the_methods_is_refused_before_decoding(caplog):
    mqtt_server, _ = start()
    server = mqtt_server.server
    data = Upload.seal(server.stamp, 0, b"\1" + bytes(4 * SIZE + 4), server.terms)
    with caplog.at_level(logging.WARNING, "fedtern.mqtt"):
        mqtt_server.receive("up", 0, write_upload(1, data), 2.0)
    assert mqtt_server.stats.refused["malformed"] == 1
    assert "the upload has 104 bytes, the method's uploads have at most 100" in caplog.text
