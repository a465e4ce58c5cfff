"""Server and client without a network: selection, deadlines, refusals and requests."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys

import numpy as np
import pytest
from upload_audit import (
    CLIENTS,
    FEDERATION,
    METHOD,
    START,
    TERMS,
    UploadAudit,
    new_client,
    new_server,
    trainer,
)

from fedtern import Client, RemoteProtocolError, Server, stc
from fedtern.core.protocol import Broadcast, CohortNotice
from fedtern.transports.mqtt import (
    Broker,
    Limits,
    MqttClient,
    MqttServer,
    RoundPolicy,
    Sample,
    join,
    serve,
)
from fedtern.transports.mqtt.messages import Announcement, write_ask, write_upload
from fedtern.transports.mqtt.reassembly import Chunk
from fedtern.transports.mqtt.topics import Publish, Topics

TOPICS = Topics(FEDERATION)


def upload(client: Client, *, examples: int = 1) -> bytes:
    data = (
        client.pending
        or client.send(trainer(client.client_id)(client.weights.copy(), client.round)).data
    )
    return write_upload(examples, data)


def start_round(policy: RoundPolicy, clients=range(CLIENTS), limits: Limits | None = None):
    """Return a server that selected its first cohort at time 1, and its announcement."""
    mqtt_server = MqttServer(new_server(), policy, limits)
    (empty,) = mqtt_server.connected(0.0)
    assert CohortNotice.open(Announcement.read(empty.payload).message, TERMS).cohort == frozenset()
    for i in clients:
        assert mqtt_server.receive("alive", i, b"\1", 0.1) == []
    (notice,) = mqtt_server.tick(1.0)
    assert (notice.topic, notice.qos, notice.retain) == (TOPICS.round, 1, True)
    return mqtt_server, notice


def join_round(notice, clients=range(CLIENTS)) -> list[MqttClient]:
    found = [MqttClient(new_client(i)) for i in clients]
    for mqtt_client in found:
        mqtt_client.connected(0.0)
        assert mqtt_client.receive(notice.topic, notice.payload, 1.0) == []
    return found


def test_a_round_finishes_when_the_whole_cohort_has_uploaded():
    mqtt_server, notice = start_round(RoundPolicy(deadline=10))
    everyone = join_round(notice)
    assert all(mqtt_client.should_train for mqtt_client in everyone)
    for mqtt_client in everyone[:-1]:
        assert (
            mqtt_server.receive("up", mqtt_client.client.client_id, upload(mqtt_client.client), 2.0)
            == []
        )
    (news,) = mqtt_server.receive("up", CLIENTS - 1, upload(everyone[-1].client), 2.5)
    assert mqtt_server.server.round == 1
    for mqtt_client in everyone:
        assert mqtt_client.receive(news.topic, news.payload, 3.0) == []
        assert mqtt_client.client.weights.tobytes() == mqtt_server.server.weights.tobytes()
        assert mqtt_client.should_train


def test_no_cohort_is_selected_in_the_grace_period_or_with_too_few_clients():
    mqtt_server = MqttServer(new_server(), RoundPolicy(min_clients=2, grace=1.0))
    mqtt_server.connected(5.0)
    assert mqtt_server.rounds.next_tick == 6.0
    assert mqtt_server.receive("alive", 0, b"\1", 5.1) == []
    assert mqtt_server.tick(6.0) == []
    assert mqtt_server.rounds.next_tick is None  # no busy loop
    assert len(mqtt_server.receive("alive", 3, b"\1", 7.0)) == 1


def test_a_new_server_replaces_the_retained_announcement():
    (said,) = MqttServer(new_server(), RoundPolicy()).connected(0.0)
    assert (said.topic, said.retain) == (TOPICS.round, True)
    mqtt_client = MqttClient(new_client(0))
    mqtt_client.connected(0.0)
    assert mqtt_client.receive(said.topic, said.payload, 0.1) == []
    assert not mqtt_client.should_train


def test_a_sample_is_drawn_from_present_clients_and_other_uploads_are_refused():
    mqtt_server, notice = start_round(RoundPolicy(Sample(size=2), deadline=10))
    everyone = join_round(notice)
    cohort = [m.client.client_id for m in everyone if m.should_train]
    assert len(cohort) == 2
    outsider = next(m.client for m in everyone if m.client.client_id not in cohort)
    mqtt_server.receive("up", outsider.client_id, upload(outsider), 2.0)
    assert mqtt_server.stats.refused["not in cohort"] == 1
    assert mqtt_server.server.uploaded == frozenset()


def test_a_round_does_not_wait_for_a_client_after_its_last_will():
    mqtt_server, notice = start_round(RoundPolicy(deadline=10))
    everyone = join_round(notice)
    for mqtt_client in everyone[1:]:
        mqtt_server.receive("up", mqtt_client.client.client_id, upload(mqtt_client.client), 2.0)
    assert mqtt_server.server.round == 0
    assert len(mqtt_server.receive("alive", 0, b"", 2.1)) == 1
    assert mqtt_server.server.round == 1


def test_after_the_deadline_silent_clients_are_not_selected_until_they_send_a_message():
    mqtt_server, notice = start_round(RoundPolicy(Sample(fraction=1.0), deadline=10, quorum=2))
    everyone = join_round(notice)
    for mqtt_client in everyone[:3]:
        mqtt_server.receive("up", mqtt_client.client.client_id, upload(mqtt_client.client), 2.0)
    assert mqtt_server.rounds.next_tick == 11.0
    assert mqtt_server.tick(10.9) == []
    (news,) = mqtt_server.tick(11.0)
    assert mqtt_server.server.cohort == {0, 1, 2}
    late = everyone[3]
    late_upload = upload(late.client)
    mqtt_server.receive("up", 3, late_upload, 11.5)
    assert mqtt_server.stats.refused["late"] == 1
    assert late.receive(news.topic, news.payload, 12.0)[0].topic == TOPICS.of("alive", 3)
    assert 3 in mqtt_server.rounds.presence.available
    assert 4 not in mqtt_server.rounds.presence.available


def test_without_a_quorum_a_round_is_void_and_uploads_return_to_the_residuals():
    mqtt_server, notice = start_round(RoundPolicy(deadline=10, quorum=3))
    everyone = join_round(notice)
    one = everyone[0].client
    mqtt_server.receive("up", 0, upload(one), 2.0)
    for i in range(1, CLIENTS):
        mqtt_server.receive("alive", i, b"", 3.0)
    assert mqtt_server.server.round == 0  # the others may come back
    assert mqtt_server.tick(11.0) == []  # another round would be void, too
    assert mqtt_server.receive("alive", 1, b"\1", 11.5) == []
    (news,) = mqtt_server.receive("alive", 2, b"\1", 11.5)
    assert mqtt_server.stats.void == 1
    everyone[0].receive(news.topic, news.payload, 12.0)
    assert one.round == 1
    assert one.pending is None
    assert np.array_equal(one.weights, START)
    assert one.residual.sum() == pytest.approx(10)


def test_an_overdue_round_counts_if_the_missing_uploads_arrive():
    mqtt_server, notice = start_round(RoundPolicy(deadline=10, quorum=3), clients=range(3))
    everyone = join_round(notice, range(3))
    mqtt_server.receive("up", 0, upload(everyone[0].client), 2.0)
    assert mqtt_server.tick(11.0) == []
    assert mqtt_server.rounds.next_tick is None
    assert mqtt_server.receive("up", 1, upload(everyone[1].client), 12.0) == []
    assert len(mqtt_server.receive("up", 2, upload(everyone[2].client), 13.0)) == 1
    assert (mqtt_server.server.round, mqtt_server.stats.counted) == (1, 3)
    assert mqtt_server.stats.void == 0


def test_clients_that_return_after_the_deadline_are_selected_next():
    policy = RoundPolicy(Sample(fraction=1.0), deadline=10, quorum=2)
    mqtt_server, _ = start_round(policy, clients=range(2))
    assert mqtt_server.tick(11.0) == []
    mqtt_server.receive("alive", 0, b"\1", 12.0)
    assert len(mqtt_server.receive("alive", 1, b"\1", 12.0)) == 1
    assert mqtt_server.server.cohort == {0, 1}


def test_a_cohort_smaller_than_the_quorum_is_not_selected(caplog):
    policy = RoundPolicy(Sample(fraction=0.5), deadline=None, quorum=2)
    mqtt_server = MqttServer(new_server(), policy)
    mqtt_server.connected(0.0)
    with caplog.at_level("INFO", "fedtern.mqtt"):
        for i in (0, 1):
            assert mqtt_server.receive("alive", i, b"\1", 2.0) == []
    assert caplog.text.count("waiting for clients: 1 available, 2 required, quorum 2") == 1
    assert len(mqtt_server.receive("alive", 2, b"\1", 2.0)) == 1
    assert mqtt_server.server.cohort is None
    assert mqtt_server.stats.cohort == 2


def test_an_earlier_cohort_smaller_than_the_quorum_does_not_block_the_federation():
    server = Server(START, METHOD, federation=FEDERATION, cohort=[0])
    mqtt_server = MqttServer(server, RoundPolicy(Sample(size=2), deadline=None, quorum=2))
    (notice,) = mqtt_server.connected(0.0)
    (mqtt_client,) = join_round(notice, [0])
    mqtt_server.receive("alive", 0, b"\1", 1.0)
    mqtt_server.receive("up", 0, upload(mqtt_client.client), 2.0)
    assert len(mqtt_server.receive("alive", 1, b"\1", 3.0)) == 1
    assert (server.round, server.cohort) == (1, {0, 1})


def test_a_round_stays_open_until_a_next_cohort_can_be_selected():
    mqtt_server, _ = start_round(RoundPolicy(deadline=10), clients=[2])
    mqtt_server.receive("alive", 2, b"", 2.0)
    assert mqtt_server.tick(11.0) == []
    assert mqtt_server.rounds.next_tick is None
    assert len(mqtt_server.receive("alive", 2, b"\1", 500.0)) == 1
    assert mqtt_server.server.round == 1


def test_without_a_deadline_an_upload_after_a_goodbye_still_counts():
    mqtt_server, notice = start_round(RoundPolicy(deadline=None), clients=[0, 1])
    first, second = join_round(notice, [0, 1])
    mqtt_server.receive("up", 0, upload(first.client), 2.0)
    mqtt_server.receive("alive", 1, b"", 3.0)
    assert mqtt_server.tick(1e6) == []
    mqtt_server.receive("up", 1, upload(second.client), 1e6)
    assert mqtt_server.server.round == 1


@pytest.mark.parametrize("kind", ["up", "ask", "alive"])
def test_messages_that_are_too_long_are_refused_without_decoding(kind):
    mqtt_server, _ = start_round(RoundPolicy())
    size = Limits().max_upload_bytes(TERMS.layout)
    mqtt_server.receive(kind, 0, bytes(size + 1), 2.0)
    assert mqtt_server.stats.refused["size"] == 1
    assert mqtt_server.stats.seconds["decode"] == 0


def test_a_client_over_its_rate_limit_is_refused_for_a_while():
    mqtt_server, notice = start_round(RoundPolicy(), limits=Limits(rate=1.0, burst=4))
    (mqtt_client,) = join_round(notice, [0])
    for _ in range(10):
        mqtt_server.receive("up", 0, b"noise", 2.0)
    assert mqtt_server.stats.refused["malformed"] == 4
    assert mqtt_server.stats.refused["rate"] == 6
    mqtt_server.receive("up", 0, upload(mqtt_client.client), 2.0)
    assert mqtt_server.server.uploaded == frozenset()
    mqtt_server.receive("up", 0, upload(mqtt_client.client), 4.0)
    assert mqtt_server.server.uploaded == {0}
    mqtt_server.receive("up", 1, b"noise", 4.0)  # the limit is per client
    assert mqtt_server.stats.refused["malformed"] == 5


def test_presence_messages_pass_although_a_client_is_over_the_limit_of_other_messages():
    mqtt_server, _ = start_round(RoundPolicy(Sample(size=2)), limits=Limits(rate=0.001, burst=4))
    for _ in range(10):
        mqtt_server.receive("up", 0, b"noise", 2.0)
    mqtt_server.receive("alive", 0, b"", 2.0)
    assert 0 not in mqtt_server.rounds.presence.available
    mqtt_server.receive("alive", 0, b"\1", 2.0)
    assert 0 in mqtt_server.rounds.presence.available


@pytest.mark.parametrize("uploaded", [True, False], ids=["late", "never"])
def test_a_selected_client_that_was_not_counted_reports_its_presence(uploaded):
    """Otherwise the server would not select it again."""
    policy = RoundPolicy(Sample(fraction=1.0), deadline=10)
    mqtt_server, notice = start_round(policy, clients=[0, 1])
    first, second = join_round(notice, [0, 1])
    mqtt_server.receive("up", 1, upload(second.client), 2.0)
    if uploaded:
        upload(first.client)
    (news,) = mqtt_server.tick(11.0)
    assert mqtt_server.rounds.presence.available == [1]
    assert second.receive(news.topic, news.payload, 11.1) == []
    (present,) = first.receive(news.topic, news.payload, 11.1)
    mqtt_server.receive("alive", 0, present.payload, 11.2)
    assert mqtt_server.rounds.presence.available == [0, 1]


def test_repeated_uploads_stay_within_the_rate_limit_in_fast_rounds():
    limits = Limits(rate=0.001, burst=3)
    mqtt_server, news = start_round(RoundPolicy(), clients=[0, 1], limits=limits)
    both = join_round(news, [0, 1])
    for _ in range(50):
        for mqtt_client in both:
            payload = upload(mqtt_client.client)
            (*_, news) = mqtt_server.receive("up", mqtt_client.client.client_id, payload, 2.0) or [
                news
            ]
            mqtt_server.receive("up", mqtt_client.client.client_id, payload, 2.0)
        for mqtt_client in both:
            mqtt_client.receive(news.topic, news.payload, 2.0)
    assert mqtt_server.server.round == 50
    assert mqtt_server.stats.refused["rate"] == 0


def test_accepted_uploads_do_not_count_towards_the_rate_limit():
    limits = Limits(rate=0.001, burst=2)
    mqtt_server, news = start_round(RoundPolicy(Sample(size=1)), clients=[0], limits=limits)
    (mqtt_client,) = join_round(news, [0])
    for _ in range(50):
        (news,) = mqtt_server.receive("up", 0, upload(mqtt_client.client), 2.0)
        mqtt_client.receive(news.topic, news.payload, 2.0)
    assert mqtt_server.server.round == 50


def test_after_a_reconnection_the_round_is_announced_and_clients_upload_again():
    mqtt_server, notice = start_round(RoundPolicy(deadline=10))
    everyone = join_round(notice)
    (again,) = mqtt_server.connected(3.0)
    assert again.payload == notice.payload
    upload(everyone[0].client)
    (sent,) = everyone[0].receive(again.topic, again.payload, 3.1)
    assert sent == Publish(TOPICS.of("up", 0), upload(everyone[0].client), qos=1)
    mqtt_server.receive("up", 0, sent.payload, 3.2)
    mqtt_server.receive("up", 0, sent.payload, 3.3)
    assert mqtt_server.stats.refused["duplicate"] == 1


def test_a_model_is_sent_in_chunks_that_fit_the_broker():
    mqtt_server, notice = start_round(RoundPolicy(), limits=Limits(packet_bytes=2000))
    mqtt_client = MqttClient(new_client(4, None))
    _, ask = mqtt_client.connected(0.0)
    assert ask == Publish(TOPICS.of("ask", 4), write_ask(-1), qos=1)
    answers = mqtt_server.receive("ask", 4, ask.payload, 2.0)
    assert len(answers) > 10
    assert max(len(answer.payload) for answer in answers) < 2000
    assert mqtt_client.receive(notice.topic, notice.payload, 2.0) == []  # the request is still open
    for answer in answers:
        assert answer.topic == TOPICS.of("down", 4)
        assert not mqtt_client.should_train
        mqtt_client.receive(answer.topic, answer.payload, 2.1)
    assert mqtt_client.should_train
    assert np.array_equal(mqtt_client.client.weights, START)


def test_a_catch_up_with_a_lost_chunk_is_requested_again():
    mqtt_server, _ = start_round(RoundPolicy(), limits=Limits(packet_bytes=2000))
    mqtt_client = MqttClient(new_client(4, None))
    mqtt_client.connected(0.0)
    answers = mqtt_server.receive("ask", 4, write_ask(-1), 2.0)
    for answer in answers[:3] + answers[4:]:
        assert mqtt_client.receive(answer.topic, answer.payload, 2.1) == []
    assert mqtt_client.client.round == -1
    (again,) = mqtt_client.tick(mqtt_client.next_tick)
    assert again.topic == TOPICS.of("ask", 4)
    for answer in answers:
        mqtt_client.receive(answer.topic, answer.payload, 20.0)
    assert mqtt_client.client.round == 0


def test_chunks_beyond_the_size_of_the_model_are_dropped():
    mqtt_client = MqttClient(new_client(4, None))
    mqtt_client.connected(0.0)
    topic = TOPICS.of("down", 4)
    noise = bytes(100_000)
    for number in range(50):
        mqtt_client.receive(topic, Chunk(number, 1 << 40, False, False, noise).write(), 1.0)
        assert mqtt_client.reassembly.size <= mqtt_client.reassembly.max_bytes < 3 * START.nbytes
    for number in range(1000):
        mqtt_client.receive(topic, Chunk(number, 1 << 40, False, False, b"").write(), 1.0)
    assert mqtt_client.reassembly.size == 0


def test_malformed_messages_do_not_delay_the_repetition_of_a_request():
    """Neither unreadable ones, nor the first chunk of an answer again and again."""
    mqtt_client = MqttClient(new_client(4, None))
    mqtt_client.connected(0.0)
    topic = TOPICS.of("down", 4)
    start, complete = (Chunk(0, of, False, False, b"noise").write() for of in (5, 1))
    for at in range(1, 20):
        for noise in (b"", b"\xff" * 20, start, complete):
            mqtt_client.receive(topic, noise, at / 4)
    assert mqtt_client.next_tick <= 5.0 + 1 / 4
    assert len(mqtt_client.tick(mqtt_client.next_tick)) == 1


def test_malformed_messages_cause_no_request():
    _, notice = start_round(RoundPolicy(deadline=10))
    (mqtt_client,) = join_round(notice, [0])
    before = mqtt_client.next_tick
    for noise in (b"", Chunk(0, 1, False, False, b"noise").write()):
        assert mqtt_client.receive(TOPICS.of("down", 0), noise, 2.0) == []
    assert mqtt_client.next_tick == before


def test_a_request_does_not_time_out_while_chunks_arrive():
    mqtt_server, _ = start_round(RoundPolicy(), limits=Limits(packet_bytes=2000))
    mqtt_client = MqttClient(new_client(4, None))
    mqtt_client.connected(0.0)
    now = 0.0
    for answer in mqtt_server.receive("ask", 4, write_ask(-1), 2.0):
        now += 4.0
        assert mqtt_client.tick(now) == []
        assert mqtt_client.receive(answer.topic, answer.payload, now) == []
    assert now > 60
    assert mqtt_client.client.round == 0


def test_a_broadcast_too_long_for_the_broker_is_fetched_in_chunks():
    from fedtern import sgd

    server = Server(np.zeros(1000), sgd(), federation="dense")
    mqtt_server = MqttServer(server, RoundPolicy(), Limits(packet_bytes=1500))
    mqtt_server.connected(0.0)
    mqtt_server.receive("alive", 0, b"\1", 0.0)
    (notice,) = mqtt_server.tick(1.0)
    mqtt_client = MqttClient(Client(0, sgd(), weights=np.zeros(1000), federation="dense"))
    mqtt_client.connected(0.0)
    mqtt_client.receive(notice.topic, notice.payload, 1.0)
    data = mqtt_client.client.send(np.ones(1000)).data
    (news,) = mqtt_server.receive("up", 0, write_upload(1, data), 2.0)
    assert len(news.payload) < 1500
    (ask,) = mqtt_client.receive(news.topic, news.payload, 3.0)
    answers = mqtt_server.receive("ask", 0, ask.payload, 3.0)
    assert len(answers) > 2
    for answer in answers:
        mqtt_client.receive(answer.topic, answer.payload, 3.1)
    assert np.array_equal(mqtt_client.client.weights, server.weights)
    assert mqtt_client.should_train


def test_a_client_without_announcements_asks_with_growing_pauses():
    _, notice = start_round(RoundPolicy(deadline=10))
    (mqtt_client,) = join_round(notice, [0])
    upload(mqtt_client.client)
    assert mqtt_client.next_tick == 1.0 + 15 + 5
    pauses = []
    for _ in range(9):
        before = mqtt_client.next_tick
        (ask,) = mqtt_client.tick(before)
        assert ask.topic == TOPICS.of("ask", 0)
        pauses.append(mqtt_client.next_tick - before)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_client_reports_its_presence_again_after_two_minutes():
    """The last will of an old connection can arrive after the first message of a new one."""
    mqtt_server, notice = start_round(RoundPolicy(Sample(size=1), deadline=1000), clients=[0, 1])
    for mqtt_client in join_round(notice, [0, 1]):
        i = mqtt_client.client.client_id
        mqtt_server.receive("alive", i, b"", 90.0)
        assert i not in mqtt_server.rounds.presence.available
        assert mqtt_client.tick(100.0) == []
        assert mqtt_client.next_tick == 120.0
        (present,) = mqtt_client.tick(120.0)
        assert present == Publish(TOPICS.of("alive", i), b"\1", qos=1, retain=True)
        assert mqtt_client.next_tick == 240.0
        mqtt_server.receive("alive", i, present.payload, 120.0)
        assert i in mqtt_server.rounds.presence.available


def test_a_counted_upload_replaces_a_presence_message():
    mqtt_server, notice = start_round(RoundPolicy(deadline=1000), clients=[0])
    (mqtt_client,) = join_round(notice, [0])
    (news,) = mqtt_server.receive("up", 0, upload(mqtt_client.client), 100.0)
    assert mqtt_client.receive(news.topic, news.payload, 100.0) == []
    assert mqtt_client.next_tick == 220.0


@pytest.mark.parametrize("noise", [b"", b"\0", bytes(30), b"\xfe" * 40, b"\x80" * 12])
def test_noise_is_ignored_on_every_topic(noise):
    mqtt_server, notice = start_round(RoundPolicy())
    (mqtt_client,) = join_round(notice, [0])
    before = mqtt_server.server.snapshot().to_bytes()
    for kind in ("up", "ask", "alive", "nonsense"):
        mqtt_server.receive(kind, 1, noise, 2.0)
    assert mqtt_server.server.snapshot().to_bytes() == before
    for topic in (TOPICS.round, TOPICS.of("down", 0), "other"):
        mqtt_client.receive(topic, noise, 2.0)
    assert mqtt_client.should_train
    assert np.array_equal(mqtt_client.client.weights, START)


def test_another_method_is_an_error_on_the_client_and_refused_by_the_server():
    mqtt_server, notice = start_round(RoundPolicy())
    other = Client(0, stc(1 / 10), weights=START, federation=FEDERATION)
    mqtt_client = MqttClient(other)
    with pytest.raises(RemoteProtocolError, match="the peer's method is"):
        mqtt_client.receive(notice.topic, notice.payload, 1.0)
    mqtt_server.receive("up", 0, write_upload(1, other.send(START + 1).data), 2.0)
    assert mqtt_server.stats.refused["incompatible"] == 1


def test_the_end_is_part_of_the_announcement_and_of_catch_ups():
    mqtt_server, notice = start_round(RoundPolicy(rounds=1), clients=[0])
    first, second = join_round(notice, [0, 1])
    (news,) = mqtt_server.receive("up", 0, upload(first.client), 2.0)
    assert mqtt_server.rounds.ended
    assert Announcement.read(news.payload).ended
    first.receive(news.topic, news.payload, 3.0)
    assert first.ended
    assert not first.should_train
    (answer,) = mqtt_server.receive("ask", 1, write_ask(0), 4.0)
    second.receive(answer.topic, answer.payload, 4.0)
    assert second.ended
    assert Chunk.read(answer.payload).ended


def test_a_server_may_leave_after_the_end_when_all_clients_have_left():
    mqtt_server, notice = start_round(RoundPolicy(rounds=1), clients=[0, 1])
    (mqtt_client,) = join_round(notice, [0])
    mqtt_server.receive("alive", 1, b"", 1.5)
    assert not mqtt_server.rounds.all_clients_left
    mqtt_server.receive("up", 0, upload(mqtt_client.client), 2.0)
    mqtt_server.receive("alive", 0, b"", 2.5)
    assert mqtt_server.rounds.ended
    assert not mqtt_server.rounds.all_clients_left  # client 1 may be restarting
    mqtt_server.receive("alive", 1, b"\1", 3.0)
    assert not mqtt_server.rounds.all_clients_left
    mqtt_server.receive("alive", 1, b"", 3.5)
    assert mqtt_server.rounds.all_clients_left
    again = MqttServer(mqtt_server.server, RoundPolicy(rounds=1))
    again.connected(4.0)
    assert not again.rounds.all_clients_left  # a new process does not know the clients yet


@pytest.mark.parametrize("name", ["", "a/b", "a+b", "#", "x" * 201, "two\nlines"])
def test_a_federation_name_that_cannot_be_in_a_topic_is_refused(name):
    with pytest.raises(ValueError, match="a federation's name must have"):
        Topics(name)


@pytest.mark.parametrize(
    "topic",
    [
        "fedtern/books/up/007",
        "fedtern/books/up/-1",
        "fedtern/books/up/1/2",
        "fedtern/books/up/18446744073709551616",
        "fedtern/books/up/²",
        "fedtern/other/up/1",
        "fedtern/books/round",
    ],
)
def test_topics_that_are_not_a_clients_are_not_parsed(topic):
    assert TOPICS.parse(topic) is None


class Network:
    """A network that loses, repeats and reorders messages and drops connections."""

    def __init__(self, seed: int, policy: RoundPolicy) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.audit = UploadAudit()
        self.mqtt_server = MqttServer(new_server(), policy)
        self.mqtt_clients = [
            MqttClient(new_client(i, None if i == 4 else START)) for i in range(CLIENTS)
        ]
        self.up: list[Publish] = []
        self.down: list[list[Publish]] = [[] for _ in range(CLIENTS)]
        self.retained: Publish | None = None
        self.connect_server()
        for i in range(CLIENTS):
            self.connect(i)

    def connect_server(self) -> None:
        self.up.clear()
        self.publish(self.mqtt_server.connected(self.now))
        for mqtt_client in self.mqtt_clients:
            self.up.append(mqtt_client.presence(b"\1"))

    def connect(self, i: int) -> None:
        self.down[i] = [] if self.retained is None else [self.retained]
        self.up += self.mqtt_clients[i].connected(self.now)

    def publish(self, messages: list[Publish]) -> None:
        for message in messages:
            if message.topic == TOPICS.round:
                self.retained = message
                if (news := Announcement.read(message.payload).message)[1] & 15 == 2:
                    self.audit.record_broadcast(news)
            for i in range(CLIENTS):
                if message.topic in (TOPICS.round, TOPICS.of("down", i)):
                    self.down[i].append(message)

    def step(self, faults: bool) -> None:
        self.now += self.random.random()
        dice = self.random.random() if faults else 1.0
        if dice < 0.01:
            self.connect_server()
        elif dice < 0.02:
            self.connect(self.random.randrange(CLIENTS))
        if self.up and self.random.random() < 0.8:
            message = self.up.pop(0) if not faults else self.up[self.random.randrange(len(self.up))]
            if not faults or self.random.random() < 0.9:
                if message in self.up and self.random.random() < 0.9:
                    self.up.remove(message)
                self.publish(
                    self.mqtt_server.receive(
                        *TOPICS.parse(message.topic), message.payload, self.now
                    )
                )
        self.publish(self.mqtt_server.tick(self.now))
        i = self.random.randrange(CLIENTS)
        mqtt_client = self.mqtt_clients[i]
        if self.down[i]:
            message = self.down[i].pop(0)
            if not faults or self.random.random() < 0.9:
                self.up += mqtt_client.receive(message.topic, message.payload, self.now)
        self.up += mqtt_client.tick(self.now)
        if mqtt_client.should_train:
            new = trainer(i)(mqtt_client.client.weights.copy(), mqtt_client.client.round)
            self.up += mqtt_client.trained(new)
            self.audit.record_upload(i, mqtt_client.client.pending)


@pytest.mark.parametrize("seed", range(20))
def test_on_a_faulty_network_rounds_continue_and_no_update_is_lost(seed):
    policy = RoundPolicy(
        Sample(size=3) if seed % 2 else RoundPolicy().cohorts, deadline=20.0, quorum=2
    )
    network = Network(seed, policy)
    for _ in range(1500):
        network.step(faults=True)
    assert network.mqtt_server.server.round > 20
    before = network.mqtt_server.server.round
    for _ in range(1500):
        network.step(faults=False)
    assert network.mqtt_server.server.round > before + 20
    server = network.mqtt_server.server
    for mqtt_client in network.mqtt_clients:
        data = server.catch_up(mqtt_client.client.client_id, mqtt_client.client.round).data
        mqtt_client.client.receive(data)
    network.audit.check(server, [mqtt_client.client for mqtt_client in network.mqtt_clients])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Limits(rate=0), "rate must be at least 0.001, got 0"),
        (lambda: Limits(packet_bytes=300), "packet_bytes must be at least 1024, got 300"),
        (lambda: Limits(packet_bytes=10), "packet_bytes must be at least 1024, got 10"),
        (
            lambda: MqttClient(new_client(0), num_examples=0),
            r"num_examples must be in 1 ... 2\*\*53 - 1, got 0",
        ),
    ],
)
def test_invalid_settings_are_refused_by_name(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_server_tracks_a_limited_number_of_clients():
    mqtt_server, _ = start_round(RoundPolicy(), limits=Limits(clients=CLIENTS, burst=2, rate=1.0))
    for i in range(100, 200):
        mqtt_server.receive("alive", i, b"\1", 2.0)
        mqtt_server.receive("up", i, b"noise", 2.0)
    assert mqtt_server.rounds.presence.present == set(range(CLIENTS))
    assert mqtt_server.stats.refused["malformed"] == CLIENTS
    assert mqtt_server.stats.refused["rate"] + CLIENTS >= 100
    mqtt_server.receive("up", 0, b"noise", 50.0)  # clients with a full bucket are forgotten
    assert mqtt_server.stats.refused["malformed"] == CLIENTS + 1


def test_an_upload_may_be_limited_to_less_than_the_model():
    assert Limits(upload_bytes=500).max_upload_bytes(TERMS.layout) == 500
    mqtt_server, notice = start_round(RoundPolicy(), limits=Limits(upload_bytes=20))
    (mqtt_client,) = join_round(notice, [0])
    mqtt_server.receive("up", 0, upload(mqtt_client.client), 2.0)
    assert mqtt_server.stats.refused["size"] == 1
    assert mqtt_server.server.uploaded == frozenset()


def test_a_client_whose_training_gives_nan_takes_part_in_later_rounds(mosquitto):
    async def scenario():
        broker = Broker("127.0.0.1", mosquitto.port)
        server = new_server()
        client = new_client(0)
        counted = {}
        failed = []

        def train(weights, round):
            if not failed:
                failed.append(round)
                return weights * np.nan
            return trainer(0)(weights, round)

        async def other(weights, round):
            await asyncio.sleep(0.05)  # time for the first client to report its presence
            return trainer(1)(weights, round)

        def on_round(mqtt_server):
            data = server.newest_broadcast(server.round - 1)
            counted[server.round - 1] = Broadcast.open(data, TERMS).counted

        policy = RoundPolicy(
            Sample(fraction=1.0), deadline=1.0, min_clients=2, rounds=60, grace=0.1
        )
        await asyncio.wait_for(
            asyncio.gather(
                serve(server, broker, policy, on_round=on_round),
                join(client, train, broker),
                *(join(new_client(i), other, broker) for i in (1, 2)),
            ),
            60,
        )
        assert 0 not in counted[failed[0]]
        assert any(0 in found for round, found in counted.items() if round > failed[0])
        assert client.weights.tobytes() == server.weights.tobytes()

    asyncio.run(scenario())


def test_training_may_be_a_coroutine(mosquitto):
    async def train(weights, round):
        await asyncio.sleep(0)
        return trainer(0)(weights, round)

    async def scenario():
        broker = Broker("127.0.0.1", mosquitto.port)
        server = new_server()
        client = new_client(0)
        moved = []
        rounds = []

        async def on_round(mqtt_server):
            rounds.append(mqtt_server.server.round)

        await asyncio.wait_for(
            asyncio.gather(
                serve(server, broker, RoundPolicy(rounds=3, grace=0.1), on_round=on_round),
                join(client, train, broker, on_round=lambda mqtt_client: moved.append(1)),
            ),
            60,
        )
        assert rounds == [1, 2, 3]
        assert len(moved) == 3
        assert client.weights.tobytes() == server.weights.tobytes()

    asyncio.run(scenario())


def test_importing_the_transport_imports_neither_torch_nor_aiomqtt():
    probe = (
        "import sys, fedtern.transports.mqtt;"
        " print({'torch', 'aiomqtt', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
