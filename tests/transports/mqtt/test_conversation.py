"""Both sides without a network: who is called when, what is refused, and what is said."""

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

from fedtern import Client, Environment, RemoteProtocolError, Server, stc
from fedtern.core.protocol import Broadcast, CohortNotice
from fedtern.transports.mqtt import (
    Broker,
    Coordinator,
    Limits,
    Member,
    RoundPolicy,
    Sample,
    Scheduled,
    join,
    serve,
)
from fedtern.transports.mqtt.topics import (
    Announcement,
    Chunk,
    Publish,
    Topics,
    write_ask,
    write_upload,
)

TOPICS = Topics(FEDERATION)


def upload(client: Client, *, examples: int = 1) -> bytes:
    data = (
        client.pending
        or client.send(trainer(client.client_id)(client.weights.copy(), client.round)).data
    )
    return write_upload(examples, data)


def begun(plan: RoundPolicy, clients=range(CLIENTS), limits: Limits | None = None):
    """A coordinator that knows who is there and has called the first cohort at time 1."""
    coordinator = Coordinator(new_server(), plan, limits)
    (nobody,) = coordinator.connected(0.0)
    assert CohortNotice.open(Announcement.read(nobody.payload).message, TERMS).cohort == frozenset()
    for i in clients:
        assert coordinator.heard("alive", i, b"\1", 0.1) == []
    (call,) = coordinator.tick(1.0)
    assert (call.topic, call.qos, call.retain) == (TOPICS.round, 1, True)
    return coordinator, call


def members(coordinator, call, clients=range(CLIENTS)) -> list[Member]:
    found = [Member(new_client(i)) for i in clients]
    for member in found:
        member.connected(0.0)
        assert member.heard(call.topic, call.payload, 1.0) == []
    return found


def test_a_round_ends_when_everybody_called_has_uploaded():
    coordinator, call = begun(RoundPolicy(deadline=10))
    everybody = members(coordinator, call)
    assert all(member.wanted for member in everybody)
    for member in everybody[:-1]:
        assert coordinator.heard("up", member.client.client_id, upload(member.client), 2.0) == []
    (news,) = coordinator.heard("up", CLIENTS - 1, upload(everybody[-1].client), 2.5)
    assert coordinator.server.round == 1
    for member in everybody:
        assert member.heard(news.topic, news.payload, 3.0) == []
        assert member.client.weights.tobytes() == coordinator.server.weights.tobytes()
        assert member.wanted


def test_nobody_is_called_before_there_are_enough_or_before_presence_is_known():
    coordinator = Coordinator(new_server(), RoundPolicy(least=2, grace=1.0))
    coordinator.connected(5.0)
    assert coordinator.rounds.next_tick == 6.0
    assert coordinator.heard("alive", 0, b"\1", 5.1) == []
    assert coordinator.tick(6.0) == []
    assert coordinator.rounds.next_tick is None  # and not in an endless loop
    assert len(coordinator.heard("alive", 3, b"\1", 7.0)) == 1


def test_a_server_that_begins_says_so_in_the_place_of_what_was_kept_from_before():
    (said,) = Coordinator(new_server(), RoundPolicy()).connected(0.0)
    assert (said.topic, said.retain) == (TOPICS.round, True)
    member = Member(new_client(0))
    member.connected(0.0)
    assert member.heard(said.topic, said.payload, 0.1) == []
    assert not member.wanted


def test_a_sample_is_drawn_from_those_present_and_others_are_turned_away():
    coordinator, call = begun(RoundPolicy(Sample(size=2), deadline=10))
    everybody = members(coordinator, call)
    called = [member.client.client_id for member in everybody if member.wanted]
    assert len(called) == 2
    stranger = next(m.client for m in everybody if m.client.client_id not in called)
    coordinator.heard("up", stranger.client_id, upload(stranger), 2.0)
    assert coordinator.stats.refused["not called"] == 1
    assert coordinator.server.uploaded == frozenset()


def test_a_last_will_ends_the_waiting():
    coordinator, call = begun(RoundPolicy(deadline=10))
    everybody = members(coordinator, call)
    for member in everybody[1:]:
        coordinator.heard("up", member.client.client_id, upload(member.client), 2.0)
    assert coordinator.server.round == 0
    assert len(coordinator.heard("alive", 0, b"", 2.1)) == 1
    assert coordinator.server.round == 1


def test_past_the_deadline_a_quorum_counts_and_who_did_not_answer_is_not_called_again():
    coordinator, call = begun(RoundPolicy(Sample(share=1.0), deadline=10, quorum=2))
    everybody = members(coordinator, call)
    for member in everybody[:3]:
        coordinator.heard("up", member.client.client_id, upload(member.client), 2.0)
    assert coordinator.rounds.next_tick == 11.0
    assert coordinator.tick(10.9) == []
    (news,) = coordinator.tick(11.0)
    assert coordinator.server.cohort == {0, 1, 2}
    late = everybody[3]
    late_upload = upload(late.client)
    coordinator.heard("up", 3, late_upload, 11.5)
    assert coordinator.stats.refused["late"] == 1
    assert late.heard(news.topic, news.payload, 12.0)[0].topic == TOPICS.of("alive", 3)
    assert 3 in coordinator.rounds.presence.available
    assert 4 not in coordinator.rounds.presence.available


def test_without_a_quorum_a_round_is_void_and_uploads_go_back():
    coordinator, call = begun(RoundPolicy(deadline=10, quorum=3))
    everybody = members(coordinator, call)
    one = everybody[0].client
    coordinator.heard("up", 0, upload(one), 2.0)
    for i in range(1, CLIENTS):
        coordinator.heard("alive", i, b"", 3.0)
    assert coordinator.server.round == 0  # they may come back
    assert coordinator.tick(11.0) == []  # and without them another would be void as well
    assert coordinator.heard("alive", 1, b"\1", 11.5) == []
    (news,) = coordinator.heard("alive", 2, b"\1", 11.5)
    assert coordinator.stats.void == 1
    everybody[0].heard(news.topic, news.payload, 12.0)
    assert one.round == 1
    assert one.pending is None
    assert np.array_equal(one.weights, START)
    assert one.residual.sum() == pytest.approx(10)


def test_a_round_past_its_deadline_counts_if_those_it_lacks_come_before_another_can_begin():
    coordinator, call = begun(RoundPolicy(deadline=10, quorum=3), clients=range(3))
    everybody = members(coordinator, call, range(3))
    coordinator.heard("up", 0, upload(everybody[0].client), 2.0)
    assert coordinator.tick(11.0) == []
    assert coordinator.rounds.next_tick is None
    assert coordinator.heard("up", 1, upload(everybody[1].client), 12.0) == []
    assert len(coordinator.heard("up", 2, upload(everybody[2].client), 13.0)) == 1
    assert (coordinator.server.round, coordinator.stats.counted) == (1, 3)
    assert coordinator.stats.void == 0


def test_who_came_back_after_the_deadline_is_called_to_the_next_round():
    plan = RoundPolicy(Sample(share=1.0), deadline=10, quorum=2)
    coordinator, _ = begun(plan, clients=range(2))
    assert coordinator.tick(11.0) == []
    coordinator.heard("alive", 0, b"\1", 12.0)
    assert len(coordinator.heard("alive", 1, b"\1", 12.0)) == 1
    assert coordinator.server.cohort == {0, 1}


def test_a_cohort_too_small_for_a_quorum_is_not_called(caplog):
    plan = RoundPolicy(Sample(share=0.5), deadline=None, quorum=2)
    coordinator = Coordinator(new_server(), plan)
    coordinator.connected(0.0)
    with caplog.at_level("INFO", "fedtern.mqtt"):
        for i in (0, 1):
            assert coordinator.heard("alive", i, b"\1", 2.0) == []
    assert caplog.text.count("waiting for clients: 1 present, least 2, quorum 2") == 1
    assert len(coordinator.heard("alive", 2, b"\1", 2.0)) == 1
    assert coordinator.server.cohort is None
    assert coordinator.stats.cohort == 2


def test_a_cohort_called_by_another_plan_that_is_too_small_now_does_not_hang():
    server = Server(START, METHOD, federation=FEDERATION, cohort=[0])
    coordinator = Coordinator(server, RoundPolicy(Sample(size=2), deadline=None, quorum=2))
    (call,) = coordinator.connected(0.0)
    (member,) = members(coordinator, call, [0])
    coordinator.heard("alive", 0, b"\1", 1.0)
    coordinator.heard("up", 0, upload(member.client), 2.0)
    assert len(coordinator.heard("alive", 1, b"\1", 3.0)) == 1
    assert (server.round, server.cohort) == (1, {0, 1})


def test_a_round_waits_for_somebody_to_call_next():
    coordinator, _ = begun(RoundPolicy(deadline=10), clients=[2])
    coordinator.heard("alive", 2, b"", 2.0)
    assert coordinator.tick(11.0) == []
    assert coordinator.rounds.next_tick is None
    assert len(coordinator.heard("alive", 2, b"\1", 500.0)) == 1
    assert coordinator.server.round == 1


def test_without_a_deadline_those_who_left_are_waited_for():
    coordinator, call = begun(RoundPolicy(deadline=None), clients=[0, 1])
    first, second = members(coordinator, call, [0, 1])
    coordinator.heard("up", 0, upload(first.client), 2.0)
    coordinator.heard("alive", 1, b"", 3.0)
    assert coordinator.tick(1e6) == []
    coordinator.heard("up", 1, upload(second.client), 1e6)
    assert coordinator.server.round == 1


@pytest.mark.parametrize("kind", ["up", "ask", "alive"])
def test_messages_that_are_too_long_are_refused_unread(kind):
    coordinator, _ = begun(RoundPolicy())
    size = Limits().longest_upload(TERMS.layout)
    coordinator.heard(kind, 0, bytes(size + 1), 2.0)
    assert coordinator.stats.refused["size"] == 1
    assert coordinator.stats.seconds["decode"] == 0


def test_a_client_that_sends_too_often_is_not_listened_to_for_a_while():
    coordinator, call = begun(RoundPolicy(), limits=Limits(rate=1.0, burst=4))
    (member,) = members(coordinator, call, [0])
    for _ in range(10):
        coordinator.heard("up", 0, b"noise", 2.0)
    assert coordinator.stats.refused["garbage"] == 4
    assert coordinator.stats.refused["rate"] == 6
    coordinator.heard("up", 0, upload(member.client), 2.0)
    assert coordinator.server.uploaded == frozenset()
    coordinator.heard("up", 0, upload(member.client), 4.0)
    assert coordinator.server.uploaded == {0}
    coordinator.heard("up", 1, b"noise", 4.0)  # others have an allowance of their own
    assert coordinator.stats.refused["garbage"] == 5


def test_who_has_sent_too_often_is_there_all_the_same():
    coordinator, _ = begun(RoundPolicy(Sample(size=2)), limits=Limits(rate=0.001, burst=4))
    for _ in range(10):
        coordinator.heard("up", 0, b"noise", 2.0)
    coordinator.heard("alive", 0, b"", 2.0)
    assert 0 not in coordinator.rounds.presence.available
    coordinator.heard("alive", 0, b"\1", 2.0)
    assert 0 in coordinator.rounds.presence.available


@pytest.mark.parametrize("uploaded", [True, False], ids=["late", "never"])
def test_who_was_called_and_not_counted_says_that_it_is_there(uploaded):
    """Or it would not be called again; training may have come to nothing that can be sent."""
    coordinator, call = begun(RoundPolicy(Sample(share=1.0), deadline=10), clients=[0, 1])
    first, second = members(coordinator, call, [0, 1])
    coordinator.heard("up", 1, upload(second.client), 2.0)
    if uploaded:
        upload(first.client)
    (news,) = coordinator.tick(11.0)
    assert coordinator.rounds.presence.available == [1]
    assert second.heard(news.topic, news.payload, 11.1) == []
    (here,) = first.heard(news.topic, news.payload, 11.1)
    coordinator.heard("alive", 0, here.payload, 11.2)
    assert coordinator.rounds.presence.available == [0, 1]


def test_a_network_that_repeats_every_upload_throttles_nobody_however_fast_rounds_are():
    coordinator, news = begun(RoundPolicy(), clients=[0, 1], limits=Limits(rate=0.001, burst=3))
    both = members(coordinator, news, [0, 1])
    for _ in range(50):
        for member in both:
            payload = upload(member.client)
            (*_, news) = coordinator.heard("up", member.client.client_id, payload, 2.0) or [news]
            coordinator.heard("up", member.client.client_id, payload, 2.0)
        for member in both:
            member.heard(news.topic, news.payload, 2.0)
    assert coordinator.server.round == 50
    assert coordinator.stats.refused["rate"] == 0


def test_uploads_that_are_accepted_cost_nothing():
    plan, limits = RoundPolicy(Sample(size=1)), Limits(rate=0.001, burst=2)
    coordinator, news = begun(plan, clients=[0], limits=limits)
    (member,) = members(coordinator, news, [0])
    for _ in range(50):
        (news,) = coordinator.heard("up", 0, upload(member.client), 2.0)
        member.heard(news.topic, news.payload, 2.0)
    assert coordinator.server.round == 50


def test_a_new_connection_says_where_things_stand_and_clients_send_again():
    coordinator, call = begun(RoundPolicy(deadline=10))
    everybody = members(coordinator, call)
    (again,) = coordinator.connected(3.0)
    assert again.payload == call.payload
    upload(everybody[0].client)
    (sent,) = everybody[0].heard(again.topic, again.payload, 3.1)
    assert sent == Publish(TOPICS.of("up", 0), upload(everybody[0].client), qos=1)
    coordinator.heard("up", 0, sent.payload, 3.2)
    coordinator.heard("up", 0, sent.payload, 3.3)
    assert coordinator.stats.refused["duplicate"] == 1


def test_a_model_comes_in_parcels_that_the_broker_carries():
    coordinator, call = begun(RoundPolicy(), limits=Limits(packet_bytes=2000))
    member = Member(new_client(4, None))
    _, ask = member.connected(0.0)
    assert ask == Publish(TOPICS.of("ask", 4), write_ask(-1), qos=1)
    answers = coordinator.heard("ask", 4, ask.payload, 2.0)
    assert len(answers) > 10
    assert max(len(answer.payload) for answer in answers) < 2000
    assert member.heard(call.topic, call.payload, 2.0) == []  # it has asked already
    for answer in answers:
        assert answer.topic == TOPICS.of("down", 4)
        assert not member.wanted
        member.heard(answer.topic, answer.payload, 2.1)
    assert member.wanted
    assert np.array_equal(member.client.weights, START)


def test_a_catch_up_that_lost_a_part_is_asked_for_again():
    coordinator, _ = begun(RoundPolicy(), limits=Limits(packet_bytes=2000))
    member = Member(new_client(4, None))
    member.connected(0.0)
    answers = coordinator.heard("ask", 4, write_ask(-1), 2.0)
    for answer in answers[:3] + answers[4:]:
        assert member.heard(answer.topic, answer.payload, 2.1) == []
    assert member.client.round == -1
    (again,) = member.tick(member.wakes)
    assert again.topic == TOPICS.of("ask", 4)
    for answer in answers:
        member.heard(answer.topic, answer.payload, 20.0)
    assert member.client.round == 0


def test_parts_that_never_end_are_not_kept():
    member = Member(new_client(4, None))
    member.connected(0.0)
    topic, noise = TOPICS.of("down", 4), bytes(100_000)
    for number in range(50):
        member.heard(topic, Chunk(number, 1 << 40, False, False, noise).write(), 1.0)
        assert member.assembly.size <= member.assembly.longest < 3 * START.nbytes
    for number in range(1000):
        member.heard(topic, Chunk(number, 1 << 40, False, False, b"").write(), 1.0)
    assert member.assembly.size == 0


def test_garbage_does_not_put_off_a_question():
    """Neither what cannot be read, nor what begins like an answer over and over again."""
    member = Member(new_client(4, None))
    member.connected(0.0)
    topic = TOPICS.of("down", 4)
    start, all_of_it = (Chunk(0, of, False, False, b"noise").write() for of in (5, 1))
    for at in range(1, 20):
        for noise in (b"", b"\xff" * 20, start, all_of_it):
            member.heard(topic, noise, at / 4)
    assert member.wakes <= 5.0 + 1 / 4
    assert len(member.tick(member.wakes)) == 1


def test_garbage_opens_no_question():
    coordinator, call = begun(RoundPolicy(deadline=10))
    (member,) = members(coordinator, call, [0])
    before = member.wakes
    for noise in (b"", Chunk(0, 1, False, False, b"noise").write()):
        assert member.heard(TOPICS.of("down", 0), noise, 2.0) == []
    assert member.wakes == before


def test_an_answer_in_many_parts_takes_as_long_as_it_takes():
    coordinator, _ = begun(RoundPolicy(), limits=Limits(packet_bytes=2000))
    member = Member(new_client(4, None))
    member.connected(0.0)
    now = 0.0
    for answer in coordinator.heard("ask", 4, write_ask(-1), 2.0):
        now += 4.0
        assert member.tick(now) == []
        assert member.heard(answer.topic, answer.payload, now) == []
    assert now > 60
    assert member.client.round == 0


def test_a_broadcast_too_long_for_the_broker_is_fetched_in_parcels():
    from fedtern import sgd

    server = Server(np.zeros(1000), sgd(), federation="dense")
    coordinator = Coordinator(server, RoundPolicy(), Limits(packet_bytes=1500))
    coordinator.connected(0.0)
    coordinator.heard("alive", 0, b"\1", 0.0)
    (call,) = coordinator.tick(1.0)
    member = Member(Client(0, sgd(), weights=np.zeros(1000), federation="dense"))
    member.connected(0.0)
    member.heard(call.topic, call.payload, 1.0)
    data = member.client.send(np.ones(1000)).data
    (news,) = coordinator.heard("up", 0, write_upload(1, data), 2.0)
    assert len(news.payload) < 1500
    (ask,) = member.heard(news.topic, news.payload, 3.0)
    answers = coordinator.heard("ask", 0, ask.payload, 3.0)
    assert len(answers) > 2
    for answer in answers:
        member.heard(answer.topic, answer.payload, 3.1)
    assert np.array_equal(member.client.weights, server.weights)
    assert member.wanted


def test_a_client_that_hears_nothing_asks_and_waits_longer_each_time():
    coordinator, call = begun(RoundPolicy(deadline=10))
    (member,) = members(coordinator, call, [0])
    upload(member.client)
    assert member.wakes == 1.0 + 15 + 5
    pauses = []
    for _ in range(9):
        before = member.wakes
        (ask,) = member.tick(before)
        assert ask.topic == TOPICS.of("ask", 0)
        pauses.append(member.wakes - before)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_client_that_the_broker_has_given_up_by_mistake_says_that_it_is_there():
    """As when the last will of a connection from before a restart is heard after the new one."""
    coordinator, call = begun(RoundPolicy(Sample(size=1), deadline=1000), clients=[0, 1])
    for member in members(coordinator, call, [0, 1]):
        i = member.client.client_id
        coordinator.heard("alive", i, b"", 90.0)
        assert i not in coordinator.rounds.presence.available
        assert member.tick(100.0) == []
        assert member.wakes == 120.0
        (here,) = member.tick(120.0)
        assert here == Publish(TOPICS.of("alive", i), b"\1", qos=1, retain=True)
        assert member.wakes == 240.0
        coordinator.heard("alive", i, here.payload, 120.0)
        assert i in coordinator.rounds.presence.available


def test_whose_uploads_count_need_not_say_that_it_is_there():
    coordinator, call = begun(RoundPolicy(deadline=1000), clients=[0])
    (member,) = members(coordinator, call, [0])
    (news,) = coordinator.heard("up", 0, upload(member.client), 100.0)
    assert member.heard(news.topic, news.payload, 100.0) == []
    assert member.wakes == 220.0


@pytest.mark.parametrize("noise", [b"", b"\0", bytes(30), b"\xfe" * 40, b"\x80" * 12])
def test_noise_is_ignored_on_every_topic(noise):
    coordinator, call = begun(RoundPolicy())
    (member,) = members(coordinator, call, [0])
    before = coordinator.server.snapshot().to_bytes()
    for kind in ("up", "ask", "alive", "nonsense"):
        coordinator.heard(kind, 1, noise, 2.0)
    assert coordinator.server.snapshot().to_bytes() == before
    for topic in (TOPICS.round, TOPICS.of("down", 0), "other"):
        member.heard(topic, noise, 2.0)
    assert member.wanted
    assert np.array_equal(member.client.weights, START)


def test_a_client_with_another_method_is_told_so_and_its_uploads_are_refused():
    coordinator, call = begun(RoundPolicy())
    other = Client(0, stc(1 / 10), weights=START, federation=FEDERATION)
    member = Member(other)
    with pytest.raises(RemoteProtocolError, match="the peer's method is"):
        member.heard(call.topic, call.payload, 1.0)
    coordinator.heard("up", 0, write_upload(1, other.send(START + 1).data), 2.0)
    assert coordinator.stats.refused["foreign"] == 1


def test_the_end_is_announced_and_who_is_behind_hears_of_it_with_the_rest():
    coordinator, call = begun(RoundPolicy(rounds=1), clients=[0])
    first, second = members(coordinator, call, [0, 1])
    (news,) = coordinator.heard("up", 0, upload(first.client), 2.0)
    assert coordinator.rounds.ended
    assert Announcement.read(news.payload).ended
    first.heard(news.topic, news.payload, 3.0)
    assert first.ended
    assert not first.wanted
    (answer,) = coordinator.heard("ask", 1, write_ask(0), 4.0)
    second.heard(answer.topic, answer.payload, 4.0)
    assert second.ended
    assert Chunk.read(answer.payload).ended


def test_a_server_may_leave_when_everybody_has_left_after_the_end():
    coordinator, call = begun(RoundPolicy(rounds=1), clients=[0, 1])
    (member,) = members(coordinator, call, [0])
    coordinator.heard("alive", 1, b"", 1.5)
    assert not coordinator.rounds.all_clients_left
    coordinator.heard("up", 0, upload(member.client), 2.0)
    coordinator.heard("alive", 0, b"", 2.5)
    assert coordinator.rounds.ended
    assert not coordinator.rounds.all_clients_left  # client 1 may be starting again
    coordinator.heard("alive", 1, b"\1", 3.0)
    assert not coordinator.rounds.all_clients_left
    coordinator.heard("alive", 1, b"", 3.5)
    assert coordinator.rounds.all_clients_left
    again = Coordinator(coordinator.server, RoundPolicy(rounds=1))
    again.connected(4.0)
    assert not again.rounds.all_clients_left  # it does not know yet who there was


@pytest.mark.parametrize("name", ["", "a/b", "a+b", "#", "x" * 201, "two\nlines"])
def test_federations_need_a_name_that_a_topic_can_have(name):
    with pytest.raises(ValueError, match="a federation needs a name"):
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
def test_only_a_clients_own_topics_are_read(topic):
    assert TOPICS.read(topic) is None


class Network:
    """Loses, repeats and delays; the coordinator and all members come back from snapshots."""

    def __init__(self, seed: int, plan: RoundPolicy) -> None:
        self.random, self.now, self.ledger = random.Random(seed), 0.0, UploadAudit()
        self.coordinator = Coordinator(new_server(), plan)
        self.members = [Member(new_client(i, None if i == 4 else START)) for i in range(CLIENTS)]
        self.up: list[Publish] = []
        self.down: list[list[Publish]] = [[] for _ in range(CLIENTS)]
        self.retained: Publish | None = None
        self.connect_server()
        for i in range(CLIENTS):
            self.connect(i)

    def connect_server(self) -> None:
        self.up.clear()
        self.publish(self.coordinator.connected(self.now))
        for member in self.members:
            self.up.append(member._sign(b"\1"))

    def connect(self, i: int) -> None:
        self.down[i] = [] if self.retained is None else [self.retained]
        self.up += self.members[i].connected(self.now)

    def publish(self, messages: list[Publish]) -> None:
        for message in messages:
            if message.topic == TOPICS.round:
                self.retained = message
                if (news := Announcement.read(message.payload).message)[1] & 15 == 2:
                    self.ledger.heard(news)
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
                    self.coordinator.heard(*TOPICS.read(message.topic), message.payload, self.now)
                )
        self.publish(self.coordinator.tick(self.now))
        i = self.random.randrange(CLIENTS)
        member = self.members[i]
        if self.down[i]:
            message = self.down[i].pop(0)
            if not faults or self.random.random() < 0.9:
                self.up += member.heard(message.topic, message.payload, self.now)
        self.up += member.tick(self.now)
        if member.wanted:
            new = trainer(i)(member.client.weights.copy(), member.client.round)
            data = member.client.send(new).data
            self.ledger.uploaded(i, data)
            self.up.append(member.upload(data))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_network_does_rounds_go_on_and_nothing_is_lost(seed):
    plan = RoundPolicy(
        Sample(size=3) if seed % 2 else RoundPolicy().cohorts, deadline=20.0, quorum=2
    )
    network = Network(seed, plan)
    for _ in range(1500):
        network.step(faults=True)
    assert network.coordinator.server.round > 20
    before = network.coordinator.server.round
    for _ in range(1500):
        network.step(faults=False)
    assert network.coordinator.server.round > before + 20
    server = network.coordinator.server
    for member in network.members:
        data = server.catch_up(member.client.client_id, member.client.round).data
        member.client.receive(data)
    network.ledger.check(server, [member.client for member in network.members])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: RoundPolicy(deadline=0), "deadline must be positive, got 0"),
        (lambda: RoundPolicy(quorum=0), "quorum must be at least 1, got 0"),
        (lambda: RoundPolicy(least=-1), "least must be at least 1, which is the quorum, got -1"),
        (
            lambda: RoundPolicy(quorum=3, least=2),
            "least must be at least 3, which is the quorum, got 2",
        ),
        (
            lambda: RoundPolicy(Sample(size=2), quorum=3),
            "quorum must be at most 2, which is how many are called, got 3",
        ),
        (
            lambda: RoundPolicy(Scheduled(Environment(clients=4, participation=0.5)), quorum=3),
            "quorum must be at most 2, which is how many are called, got 3",
        ),
        (lambda: RoundPolicy(rounds=0), "rounds must be at least 1, got 0"),
        (lambda: RoundPolicy(grace=-1), "grace must not be negative, got -1"),
        (Sample, "give a size or a share, got None and None"),
        (lambda: Sample(size=0), "size must be at least 1, got 0"),
        (lambda: Sample(share=1.5), r"share must be in \(0, 1\], got 1.5"),
        (lambda: Limits(rate=0), "rate must be at least 0.001, got 0"),
        (lambda: Limits(packet_bytes=300), "packet_bytes must be at least 1024, got 300"),
        (lambda: Limits(packet_bytes=10), "packet_bytes must be at least 1024, got 10"),
        (lambda: Member(new_client(0), examples=0), "examples must be at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_server_keeps_track_of_so_many_clients_and_no_more():
    coordinator, _ = begun(RoundPolicy(), limits=Limits(clients=CLIENTS, burst=2, rate=1.0))
    for i in range(100, 200):
        coordinator.heard("alive", i, b"\1", 2.0)
        coordinator.heard("up", i, b"noise", 2.0)
    assert coordinator.rounds.presence.here == set(range(CLIENTS))
    assert coordinator.stats.refused["garbage"] == CLIENTS
    assert coordinator.stats.refused["rate"] + CLIENTS >= 100
    coordinator.heard("up", 0, b"noise", 50.0)  # those who were quiet are forgotten, not refused
    assert coordinator.stats.refused["garbage"] == CLIENTS + 1


def test_a_share_of_those_present_is_called():
    assert len(Sample(share=0.25).choose(0, range(20))) == 5
    assert Sample(share=0.01).choose(3, [8]) == [8]
    assert Sample(size=3, seed=1).choose(5, range(50)) == Sample(size=3, seed=1).choose(
        5, range(50)
    )
    assert Sample(size=3, seed=1).choose(5, range(50)) != Sample(size=3, seed=2).choose(
        5, range(50)
    )


def test_an_upload_may_be_limited_to_less_than_the_model():
    assert Limits(upload_bytes=500).longest_upload(TERMS.layout) == 500
    coordinator, call = begun(RoundPolicy(), limits=Limits(upload_bytes=20))
    (member,) = members(coordinator, call, [0])
    coordinator.heard("up", 0, upload(member.client), 2.0)
    assert coordinator.stats.refused["size"] == 1
    assert coordinator.server.uploaded == frozenset()


def test_what_training_made_of_nothing_finite_is_not_sent_and_the_client_goes_on(mosquitto):
    """A client whose training fails in a round takes part in others."""

    async def scenario():
        broker, server, client = Broker("127.0.0.1", mosquitto.port), new_server(), new_client(0)
        counted, failed = {}, []

        def train(weights, round):
            if not failed:
                failed.append(round)
                return weights * np.nan
            return trainer(0)(weights, round)

        async def other(weights, round):
            await asyncio.sleep(0.05)  # time for the first to say that it is there
            return trainer(1)(weights, round)

        def on_round(coordinator):
            data = server.newest_broadcast(server.round - 1)
            counted[server.round - 1] = Broadcast.open(data, TERMS).counted

        plan = RoundPolicy(Sample(share=1.0), deadline=1.0, least=2, rounds=60, grace=0.1)
        await asyncio.wait_for(
            asyncio.gather(
                serve(server, broker, plan, on_round=on_round),
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
        broker, server, client = Broker("127.0.0.1", mosquitto.port), new_server(), new_client(0)
        moved, rounds = [], []

        async def on_round(coordinator):
            rounds.append(coordinator.server.round)

        await asyncio.wait_for(
            asyncio.gather(
                serve(server, broker, RoundPolicy(rounds=3, grace=0.1), on_round=on_round),
                join(client, train, broker, on_round=lambda member: moved.append(1)),
            ),
            60,
        )
        assert rounds == [1, 2, 3]
        assert len(moved) == 3
        assert client.weights.tobytes() == server.weights.tobytes()

    asyncio.run(scenario())


def test_a_device_needs_neither_torch_nor_a_library_before_it_connects():
    probe = (
        "import sys, fedtern.transports.mqtt;"
        " print({'torch', 'aiomqtt', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
