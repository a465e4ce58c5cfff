"""Limits on messages before they are queued: size, rate, memory, and clients that flood."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from fedtern import Client, Server, stc
from fedtern.core.layout import Layout
from fedtern.transports.mqtt import Limits, MqttServer, RoundPolicy, Stats
from fedtern.transports.mqtt.admission import Admission
from fedtern.transports.mqtt.limits import MESSAGE_OVERHEAD
from fedtern.transports.mqtt.messages import write_upload
from fedtern.transports.mqtt.stats import LogLimiter

LAYOUT = Layout.flat(1000)
METHOD = stc(1 / 10, 1 / 10)
LARGEST = Limits().max_upload_bytes(LAYOUT)


def admission(**settings) -> Admission:
    return Admission(Limits(**settings), LAYOUT, Stats())


def refused(gate: Admission) -> dict[str, int]:
    return {reason: n for reason, n in gate._stats.refused.items() if n}


def new_server(**settings) -> MqttServer:
    server = Server(np.zeros(1000), METHOD, federation="wards")
    mqtt_server = MqttServer(server, RoundPolicy(deadline=10), Limits(**settings))
    mqtt_server.connected(0.0)
    return mqtt_server


def test_the_queue_of_one_client_has_room_for_two_uploads():
    gate = admission(queue_bytes=1)
    admitted = [gate.admit("up", 7, LARGEST, 0.0) for _ in range(10)]
    room = Limits().max_client_queue_bytes(LAYOUT) // (LARGEST + MESSAGE_OVERHEAD)
    assert room in (2, 3)  # and for short messages
    assert admitted == [True] * room + [False] * (10 - room)
    assert refused(gate) == {"queue": 10 - room}
    assert gate._stats.dropped_bytes == (10 - room) * LARGEST
    assert gate.admit("up", 8, LARGEST, 0.0)


def test_a_message_that_left_the_queue_makes_room_for_another_one():
    gate = admission(burst=1000)
    for _ in range(500):
        assert gate.admit("up", 7, LARGEST, 0.0)
        gate.release(7, LARGEST)
    assert refused(gate) == {}


def test_the_queue_of_all_clients_together_is_bounded():
    gate = admission(queue_bytes=1 << 20)
    admitted = sum(gate.admit("up", client, LARGEST, 0.0) for client in range(1000))
    assert admitted == (1 << 20) // (LARGEST + MESSAGE_OVERHEAD)
    assert gate.muted == {}  # these clients did nothing wrong
    gate.connection_lost()
    assert gate.admit("up", 5000, LARGEST, 0.0)


def test_the_smallest_messages_are_bounded_in_memory_too():
    gate = admission(queue_bytes=1 << 20)
    admitted = sum(gate.admit("alive", client, 0, 0.0) for client in range(100_000))
    assert admitted <= (1 << 20) // MESSAGE_OVERHEAD


def test_presence_has_a_rate_limit_of_its_own():
    gate = admission(rate=1.0, burst=4)
    admitted = []
    for kind in ["alive"] * 10 + ["up"] * 10:
        admitted.append(gate.admit(kind, 0, 1, 0.0))
        if admitted[-1]:
            gate.release(0, 1)
    assert admitted == ([True] * 4 + [False] * 6) * 2
    assert gate.admit("alive", 0, 1, 1.0)
    assert gate.admit("alive", 1, 1, 0.0)


def test_a_client_that_floods_is_muted_and_its_mutes_grow():
    gate = admission(flood=10)
    durations = []
    now = 0.0
    for _ in range(6):
        while 7 not in gate.muted:
            gate.admit("up", 7, LARGEST + 1, now)
        durations.append(gate.muted[7].seconds)
        assert not gate.admit("alive", 7, 1, now)
        now = gate.next_unmute
        gate.unmute(now - 0.1)
        assert 7 in gate.muted
        gate.unmute(now)
        assert gate.muted == {}
    assert durations == [30, 60, 120, 240, 240, 240]
    assert gate.admit("up", 7, LARGEST, now)
    now += 241  # it behaved for longer than it was muted
    while 7 not in gate.muted:
        gate.admit("up", 7, LARGEST + 1, now)
    assert gate.muted[7].seconds == 30


def test_a_few_refused_messages_now_and_then_are_no_flood():
    gate = admission(flood=10)
    for second in range(0, 1000, 2):
        gate.admit("up", 7, LARGEST + 1, float(second))
    assert gate.muted == {}


def test_undecodable_uploads_count_towards_a_flood():
    mqtt_server = new_server(flood=10, burst=100)
    for _ in range(10):
        mqtt_server.receive("up", 3, b"noise", 1.0)
    assert mqtt_server.stats.refused["malformed"] == 10
    assert set(mqtt_server.admission.muted) == {3}


def test_while_a_client_floods_the_server_names_the_topics_of_the_others():
    mqtt_server = new_server(flood=10)
    wildcards = {f"fedtern/wards/{kind}/+" for kind in ("up", "ask", "alive")}
    assert set(mqtt_server.filters()) == wildcards
    for client in (1, 2, 3):
        mqtt_server.receive("alive", client, b"\1", 0.5)
    for _ in range(10):
        mqtt_server.receive("ask", 3, bytes(17), 0.5)
    named = {f"fedtern/wards/{kind}/{i}" for kind in ("up", "ask", "alive") for i in (1, 2)}
    assert set(mqtt_server.filters()) == named
    assert mqtt_server.stats.muted == 1
    mqtt_server.tick(31.0)
    assert set(mqtt_server.filters()) == wildcards
    assert mqtt_server.stats.muted == 0


def test_no_round_waits_for_a_muted_client():
    mqtt_server = new_server(flood=10)
    for client in (0, 1):
        mqtt_server.receive("alive", client, b"\1", 0.5)
    mqtt_server.tick(1.0)
    assert mqtt_server.rounds.cohort == {0, 1}
    for _ in range(10):
        mqtt_server.receive("ask", 1, bytes(17), 1.5)
    client = Client(0, METHOD, weights=np.zeros(1000), federation="wards")
    sent = client.send(np.ones(1000))
    mqtt_server.receive("up", 0, write_upload(1, sent.data), 2.0)
    assert mqtt_server.server.round == 1


def test_log_lines_about_faults_are_limited_and_omitted_ones_are_counted(caplog):
    now = 0.0
    limiter = LogLimiter(lambda: now)
    with caplog.at_level(logging.WARNING, "fedtern.mqtt"):
        for _ in range(1000):
            limiter.warn("refused client %s", 7)
        assert len(caplog.records) == 20
        now = 5.0
        limiter.warn("refused client %s", 7)
    assert caplog.records[-1].getMessage() == "refused client 7 (980 similar lines omitted)"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"queue_bytes": 0}, "queue_bytes must be"), ({"flood": 0}, "flood must be")],
)
def test_a_limit_that_is_too_small_is_refused_by_name(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Limits(**settings)
