"""The events that ``Server`` and ``Client`` return."""

from __future__ import annotations

import numpy as np
import pytest

from checks import METHODS, pair, same, trained
from fedtern import Client, MissedRounds, RemoteProtocolError, Server, stc
from fedtern.core.protocol import CohortNotice, How, Upload


def test_send_returns_the_bytes_and_the_update_in_them():
    _, clients = pair(METHODS["stc"])
    sent = clients[0].send(trained(clients[0], 0))
    assert sent.round == 0
    assert sent.data == clients[0].pending
    assert same(sent.update, Upload.open(sent.data, clients[0].terms).update)
    assert same(sent.update, clients[0].pending_update())


def test_receive_returns_the_accepted_upload():
    server, clients = pair(METHODS["stc"])
    sent = clients[2].send(trained(clients[2], 0))
    accepted = server.receive(2, sent.data, num_examples=7)
    assert (accepted.client_id, accepted.round, accepted.num_examples) == (2, 0, 7)
    assert accepted.data == sent.data
    assert same(accepted.update, sent.update)


def test_a_broadcast_tells_whether_the_upload_counted_and_whether_the_client_is_invited():
    server, clients = pair(METHODS["stc"])
    server.receive(0, clients[0].send(trained(clients[0], 0)).data)
    clients[1].send(trained(clients[1], 0))  # never arrives
    broadcast = server.finish_round(next_cohort=[1, 2])
    events = [client.receive(broadcast.data) for client in clients]
    assert [event.counted for event in events] == [True, False, None]
    assert [event.invited for event in events] == [False, True, True]
    for event in events:
        assert (event.since, event.round, event.leads_to) == (0, 1, 1)
        assert event.how is How.BROADCAST
        assert event.cohort == {1, 2}


def test_an_old_message_is_reported_as_nothing_new():
    server, clients = pair(METHODS["stc"])
    broadcast = server.finish_round()
    clients[0].receive(broadcast.data)
    second = clients[0].receive(broadcast.data)
    assert not second.is_new
    assert second.how is How.NOTHING
    assert (second.since, second.round, second.leads_to) == (1, 1, 1)


def test_the_kind_of_catch_up_is_reported_on_both_sides():
    start = np.zeros(2000)
    server = Server(start, stc(1 / 100, 1 / 100))
    sender = Client(0, stc(1 / 100, 1 / 100), weights=start)
    for _ in range(4):
        rng = np.random.default_rng(server.round)
        server.receive(0, sender.send(sender.weights + rng.standard_normal(2000)).data)
        sender.receive(server.finish_round().data)
    expected = {3: How.BROADCAST, 4: How.REPLAY, -1: How.MODEL}
    for since, how in expected.items():
        assert server.download(9, since).how is how
    assert server.catch_up(9, 3).how in (How.REPLAY, How.SUM)
    for since in (-1, 0):
        weights = None if since < 0 else start
        client = Client(9, stc(1 / 100, 1 / 100), server.terms.layout, weights)
        message = server.catch_up(9, since)
        received = client.receive(message.data)
        assert received.how is message.how
        assert (received.since, received.round) == (message.since, message.round) == (since, 4)
        assert np.array_equal(client.weights, server.weights)


def test_a_notice_invites_a_client_without_advancing_it():
    server, clients = pair(METHODS["stc"])
    notice = CohortNotice.seal(server.stamp, 0, frozenset({1}), server.terms)
    assert clients[1].receive(notice).invited
    received = clients[2].receive(notice)
    assert received.invited is False
    assert received.how is How.NOTICE
    assert not received.is_new


def test_a_notice_of_a_later_round_raises_missed_rounds():
    server, clients = pair(METHODS["stc"])
    server.finish_round()
    server.finish_round()
    notice = CohortNotice.seal(server.stamp, 2, None, server.terms)
    with pytest.raises(MissedRounds, match="notice is for round 2, client 0 is at 0") as error:
        clients[0].receive(notice)
    assert error.value.leads_to == 2


def test_a_notice_of_an_earlier_round_is_ignored():
    server, clients = pair(METHODS["stc"])
    server.finish_round()
    server.finish_round()
    clients[0].receive(server.catch_up(0, 0).data)
    old = CohortNotice.seal(bytes(3), 1, None, server.terms)
    assert clients[0].receive(old).how is How.NOTHING


def test_a_notice_of_another_history_is_refused():
    _, clients = pair(METHODS["stc"])
    notice = CohortNotice.seal(bytes(3), 0, None, clients[0].terms)
    with pytest.raises(RemoteProtocolError, match="history at round 0"):
        clients[0].receive(notice)
