"""The round controller by itself: each transition, deadlines, quorums, void rounds and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from fedtern import Client, Environment, LocalProtocolError, RemoteProtocolError, Server, stc
from fedtern.core.protocol import CohortNotice
from fedtern.federation.round_controller import (
    TRANSITIONS,
    Event,
    RoundController,
    RoundFinished,
    RoundStarted,
    RoundState,
    Transition,
)
from fedtern.federation.round_policy import RoundPolicy, Sample, Scheduled

METHOD = stc(1 / 10, 1 / 10)
START = np.zeros(50, np.float32)
ALL_PRESENT = Sample(fraction=1.0)  # unlike the default, clients that come later may not join


class Federation:
    """A controller, its clients, and the transitions so far."""

    def __init__(
        self,
        policy: RoundPolicy | None = None,
        *,
        cohort: Iterable[int] | None = None,
        server: Server | None = None,
    ) -> None:
        self.server = server or Server(START, METHOD, federation="wards", cohort=cohort)
        self.transitions: list[Transition] = []
        self.rounds = RoundController(self.server, policy, observer=self.transitions.append)

    @property
    def state(self) -> RoundState:
        return self.rounds.state

    def start(self, clients: Iterable[int], now: float = 0.0) -> Federation:
        """Connect at ``now``, let clients come, and select a cohort after a second's grace."""
        self.rounds.connected(now)
        for client in clients:
            self.rounds.client_present(client)
        assert isinstance(self.rounds.tick(now + 1.0), RoundStarted)
        return self

    def upload(self, *clients: int) -> None:
        for i in clients:
            client = Client(i, METHOD, weights=START, federation="wards")
            if self.server.round:
                client.receive(self.server.catch_up(i, 0).data)
            self.rounds.receive(i, client.send(client.weights + 1 + i).data)


def connect_first() -> Federation:
    federation = Federation()
    federation.rounds.connected(0.0)
    return federation


def connect_again_in_the_grace_period() -> Federation:
    federation = connect_first()
    federation.rounds.connected(0.5)
    return federation


def wait_for_clients() -> Federation:
    federation = Federation(RoundPolicy(min_clients=2))
    federation.rounds.connected(0.0)
    federation.rounds.tick(1.0)
    return federation


def keep_waiting() -> Federation:
    federation = wait_for_clients()
    federation.rounds.client_present(0)
    federation.rounds.tick(2.0)
    return federation


def connect_again_while_waiting() -> Federation:
    federation = wait_for_clients()
    federation.rounds.connected(2.0)
    return federation


def select_after_waiting() -> Federation:
    federation = wait_for_clients()
    for client in (0, 1):
        federation.rounds.client_present(client)
    federation.rounds.tick(2.0)
    return federation


def select_after_the_grace_period() -> Federation:
    return Federation().start([0, 1])


def resume_after_a_restart() -> Federation:
    federation = Federation(RoundPolicy(deadline=10), cohort=[0, 1])
    federation.rounds.connected(100.0)
    return federation


def connect_again_while_collecting() -> Federation:
    federation = select_after_the_grace_period()
    federation.rounds.connected(5.0)
    return federation


def finish_with_all_uploads() -> Federation:
    federation = Federation().start([0, 1])
    federation.upload(0, 1)
    federation.rounds.tick(2.0)
    return federation


def miss_the_quorum() -> Federation:
    """At the deadline one of three clients has uploaded and the others do not answer."""
    federation = Federation(RoundPolicy(deadline=10, quorum=3)).start(range(3))
    federation.upload(0)
    federation.rounds.tick(11.0)
    return federation


def stay_overdue() -> Federation:
    federation = miss_the_quorum()
    federation.rounds.client_present(1)
    federation.rounds.tick(12.0)
    return federation


def connect_again_while_overdue() -> Federation:
    federation = miss_the_quorum()
    federation.rounds.connected(20.0)
    return federation


def reach_the_quorum_late() -> Federation:
    federation = miss_the_quorum()
    federation.upload(1, 2)
    federation.rounds.tick(12.0)
    return federation


def void_at_the_deadline() -> Federation:
    """The quorum is missed while enough other clients are present for the next round."""
    policy = RoundPolicy(Sample(size=2), deadline=10, quorum=2)
    federation = Federation(policy).start(range(4))
    federation.rounds.tick(11.0)
    return federation


def void_when_clients_come_back() -> Federation:
    federation = miss_the_quorum()
    for client in (1, 2):
        federation.rounds.client_present(client)
    federation.rounds.tick(12.0)
    return federation


def finish_with_too_few_clients_for_the_next_round() -> Federation:
    federation = Federation(RoundPolicy(quorum=2)).start([0, 1])
    federation.upload(0, 1)
    federation.rounds.client_left(0)
    federation.rounds.tick(2.0)
    return federation


def skip_a_round_after_waiting() -> Federation:
    federation = finish_with_too_few_clients_for_the_next_round()
    federation.rounds.client_present(0)
    federation.rounds.tick(3.0)
    return federation


def finish_in_the_grace_period() -> Federation:
    """Reconnect, and finish with the last upload before the other clients report themselves."""
    federation = Federation(RoundPolicy(quorum=2)).start([0, 1])
    federation.upload(0)
    federation.rounds.connected(5.0)
    federation.upload(1)
    federation.rounds.tick(5.1)
    return federation


def skip_a_round_after_the_grace_period() -> Federation:
    federation = finish_in_the_grace_period()
    federation.rounds.client_present(0)
    assert federation.rounds.tick(5.9) is None
    federation.rounds.tick(6.0)
    return federation


def finish_the_last_round() -> Federation:
    federation = Federation(RoundPolicy(rounds=1)).start([0])
    federation.upload(0)
    federation.rounds.tick(2.0)
    return federation


def connect_again_after_the_end() -> Federation:
    federation = finish_the_last_round()
    federation.rounds.connected(3.0)
    return federation


def restart_after_the_end() -> Federation:
    server = finish_the_last_round().server
    federation = Federation(RoundPolicy(rounds=1), server=server)
    federation.rounds.connected(5.0)
    return federation


S = RoundState
E = Event
SCENARIOS: dict[tuple[RoundState, Event], Callable[[], Federation]] = {
    (S.DISCONNECTED, E.CONNECTED): connect_first,
    (S.DISCONNECTED, E.RESUMED): resume_after_a_restart,
    (S.DISCONNECTED, E.ALL_ROUNDS_FINISHED): restart_after_the_end,
    (S.DISCOVERING, E.CONNECTED): connect_again_in_the_grace_period,
    (S.DISCOVERING, E.TOO_FEW_CLIENTS): wait_for_clients,
    (S.DISCOVERING, E.COHORT_SELECTED): select_after_the_grace_period,
    (S.DISCOVERING, E.ROUND_SKIPPED): skip_a_round_after_the_grace_period,
    (S.WAITING, E.CONNECTED): connect_again_while_waiting,
    (S.WAITING, E.TOO_FEW_CLIENTS): keep_waiting,
    (S.WAITING, E.COHORT_SELECTED): select_after_waiting,
    (S.WAITING, E.ROUND_SKIPPED): skip_a_round_after_waiting,
    (S.COLLECTING, E.RESUMED): connect_again_while_collecting,
    (S.COLLECTING, E.QUORUM_REACHED): finish_with_all_uploads,
    (S.COLLECTING, E.QUORUM_MISSED): miss_the_quorum,
    (S.COLLECTING, E.ROUND_VOID): void_at_the_deadline,
    (S.OVERDUE, E.RESUMED): connect_again_while_overdue,
    (S.OVERDUE, E.QUORUM_REACHED): reach_the_quorum_late,
    (S.OVERDUE, E.QUORUM_MISSED): stay_overdue,
    (S.OVERDUE, E.ROUND_VOID): void_when_clients_come_back,
    (S.FINISHING, E.COHORT_SELECTED): finish_with_all_uploads,
    (S.FINISHING, E.GRACE_PERIOD): finish_in_the_grace_period,
    (S.FINISHING, E.TOO_FEW_CLIENTS): finish_with_too_few_clients_for_the_next_round,
    (S.FINISHING, E.ALL_ROUNDS_FINISHED): finish_the_last_round,
    (S.ENDED, E.ALL_ROUNDS_FINISHED): connect_again_after_the_end,
}


def test_each_transition_of_the_table_has_a_scenario():
    table = {(state, event) for state, events in TRANSITIONS.items() for event in events}
    assert set(SCENARIOS) == table
    assert set(TRANSITIONS) == set(RoundState)
    assert {event for events in TRANSITIONS.values() for event in events} == set(Event)


@pytest.mark.parametrize(
    ("state", "event"),
    SCENARIOS,
    ids=[f"{state.name}-{event.name}" for state, event in SCENARIOS],
)
def test_a_scenario_ends_with_its_transition(state, event):
    federation = SCENARIOS[state, event]()
    expected = Transition(state, event, TRANSITIONS[state][event])
    # Finishing a round takes two transitions at once.
    last = [t for t in federation.transitions[-2:] if t.source is state]
    assert last == [expected]
    assert federation.state is federation.transitions[-1].target
    assert federation.state is not S.FINISHING


def test_tick_before_the_first_connection_is_an_error():
    with pytest.raises(LocalProtocolError, match=r"call connected\(\) before tick\(\)"):
        Federation().rounds.tick(0.0)


def test_a_round_finishes_with_the_last_upload_and_starts_the_next():
    federation = Federation().start([0, 1])
    federation.upload(0)
    assert federation.rounds.tick(2.0) is None
    federation.upload(1)
    finished = federation.rounds.tick(3.5)
    assert isinstance(finished, RoundFinished)
    assert finished.broadcast.counted == {0, 1}
    assert finished.cohort == finished.next_cohort == {0, 1}
    assert (finished.void, finished.discarded) == (False, 0)
    assert finished.seconds == 2.5
    assert federation.server.round == 1


def test_a_started_round_is_announced_with_its_cohort():
    federation = Federation(RoundPolicy(Sample(size=2))).start(range(5))
    notice = CohortNotice.open(federation.rounds.cohort_notice(), federation.server.terms)
    assert notice.header.round == 0
    assert notice.cohort == federation.rounds.cohort
    assert len(federation.rounds.cohort) == 2


def test_an_open_policy_announces_no_cohort_so_that_later_clients_can_join():
    federation = Federation().start([0, 1])
    terms = federation.server.terms
    assert CohortNotice.open(federation.rounds.cohort_notice(), terms).cohort is None
    assert federation.rounds.expects(4)
    federation.upload(4)
    assert federation.server.uploaded == {4}


def test_before_a_cohort_is_selected_the_notice_names_an_empty_one():
    federation = connect_first()
    terms = federation.server.terms
    assert CohortNotice.open(federation.rounds.cohort_notice(), terms).cohort == frozenset()
    assert not federation.rounds.expects(0)


def test_an_upload_from_outside_the_cohort_is_refused():
    federation = Federation(RoundPolicy(ALL_PRESENT)).start([0, 1])
    assert not federation.rounds.admits(4)
    with pytest.raises(RemoteProtocolError, match="client 4: not in the cohort of round 0"):
        federation.upload(4)
    assert federation.server.uploaded == frozenset()
    assert 4 not in federation.rounds.presence.available


def test_the_next_tick_is_the_end_of_the_grace_period_and_then_the_deadline():
    federation = Federation(RoundPolicy(deadline=10, grace=2.0))
    federation.rounds.connected(5.0)
    assert federation.rounds.next_tick == 7.0
    federation.rounds.client_present(0)
    assert federation.rounds.tick(6.9) is None
    federation.rounds.tick(7.0)
    assert federation.rounds.next_tick == 17.0


@pytest.mark.parametrize(
    "scenario",
    [wait_for_clients, miss_the_quorum, finish_the_last_round],
    ids=["waiting", "overdue", "ended"],
)
def test_a_state_that_only_clients_can_change_has_no_next_tick(scenario):
    assert scenario().rounds.next_tick is None


def test_at_the_deadline_a_quorum_counts_and_silent_clients_are_not_selected_again():
    federation = Federation(RoundPolicy(ALL_PRESENT, deadline=10, quorum=2)).start(range(4))
    federation.upload(0, 1)
    assert federation.rounds.tick(10.9) is None
    finished = federation.rounds.tick(11.0)
    assert isinstance(finished, RoundFinished)
    assert finished.broadcast.counted == {0, 1}
    assert finished.next_cohort == {0, 1}
    assert not finished.void


def test_a_pause_of_the_transport_extends_the_deadline():
    federation = Federation(RoundPolicy(ALL_PRESENT, deadline=10)).start([0, 1])
    federation.upload(0)
    federation.rounds.extend_deadline(5.0)
    assert federation.rounds.next_tick == 16.0
    assert federation.rounds.tick(15.9) is None
    assert federation.rounds.tick(16.0) is not None


def test_without_a_deadline_a_client_that_left_is_awaited():
    federation = Federation(RoundPolicy(deadline=None)).start([0, 1])
    federation.upload(0)
    federation.rounds.client_left(1)
    assert federation.rounds.next_tick is None
    assert federation.rounds.tick(1e6) is None
    federation.upload(1)
    assert isinstance(federation.rounds.tick(1e6), RoundFinished)


def test_with_a_deadline_a_round_does_not_wait_for_a_client_that_left():
    federation = Federation(RoundPolicy(deadline=10)).start([0, 1])
    federation.upload(0)
    federation.rounds.client_left(1)
    assert isinstance(federation.rounds.tick(2.0), RoundFinished)


def test_without_a_quorum_clients_that_left_have_until_the_deadline_to_come_back():
    federation = Federation(RoundPolicy(deadline=10, quorum=2)).start([0, 1])
    federation.upload(0)
    federation.rounds.client_left(1)
    assert federation.rounds.tick(2.0) is None
    assert federation.state is S.COLLECTING
    federation.rounds.client_present(1)
    federation.upload(1)
    finished = federation.rounds.tick(3.0)
    assert isinstance(finished, RoundFinished)
    assert finished.broadcast.counted == {0, 1}


def test_a_void_round_counts_no_upload():
    federation = miss_the_quorum()
    for client in (1, 2):
        federation.rounds.client_present(client)
    finished = federation.rounds.tick(12.0)
    assert isinstance(finished, RoundFinished)
    assert finished.void
    assert finished.discarded == 1
    assert finished.broadcast.counted == frozenset()
    assert np.array_equal(federation.server.weights, START)


def test_a_skipped_round_is_not_void():
    federation = finish_with_too_few_clients_for_the_next_round()
    assert federation.server.cohort == frozenset()
    federation.rounds.client_present(0)
    finished = federation.rounds.tick(3.0)
    assert isinstance(finished, RoundFinished)
    assert not finished.void
    assert finished.cohort == frozenset()
    assert finished.next_cohort == {0, 1}


def test_an_empty_round_is_not_skipped_for_a_cohort_below_the_quorum():
    federation = Federation(RoundPolicy(Sample(fraction=0.5), quorum=2), cohort=[])
    federation.rounds.connected(0.0)
    for client in (0, 1):
        federation.rounds.client_present(client)
    assert federation.rounds.tick(1.0) is None
    assert federation.state is S.WAITING
    federation.rounds.client_present(2)
    finished = federation.rounds.tick(1.0)
    assert isinstance(finished, RoundFinished)
    assert len(finished.next_cohort) == 2


def test_in_the_grace_period_after_a_reconnection_no_cohort_is_selected():
    federation = finish_in_the_grace_period()
    for client in (0, 1, 2):
        federation.rounds.client_present(client)
    assert federation.rounds.tick(5.9) is None
    finished = federation.rounds.tick(6.0)
    assert isinstance(finished, RoundFinished)
    assert finished.next_cohort == {0, 1, 2}


def test_a_cohort_from_before_a_restart_keeps_its_uploads_and_gets_the_whole_deadline():
    policy = RoundPolicy(Sample(size=2), deadline=10, quorum=2)
    before = Federation(policy).start(range(3))
    before.upload(*sorted(before.rounds.cohort))
    assert before.rounds.tick(2.0) is not None
    first, second = sorted(before.rounds.cohort)
    before.upload(first)
    after = Federation(policy, server=before.server)
    after.rounds.connected(100.0)
    assert after.rounds.cohort == {first, second}
    assert after.rounds.next_tick == 110.0
    assert after.rounds.tick(109.9) is None
    after.upload(second)
    finished = after.rounds.tick(109.9)
    assert isinstance(finished, RoundFinished)
    assert finished.broadcast.counted == {first, second}


def test_a_restarted_cohort_smaller_than_the_new_quorum_does_not_block_the_federation():
    federation = Federation(RoundPolicy(Sample(size=2), deadline=None, quorum=2), cohort=[0])
    federation.rounds.connected(0.0)
    federation.upload(0)
    assert federation.rounds.tick(1.0) is None
    assert federation.state is S.OVERDUE
    federation.rounds.client_present(1)
    finished = federation.rounds.tick(2.0)
    assert isinstance(finished, RoundFinished)
    assert finished.void
    assert finished.next_cohort == {0, 1}


def test_after_the_last_round_a_restarted_server_starts_no_round():
    federation = restart_after_the_end()
    assert federation.rounds.ended
    federation.rounds.client_present(0)
    assert federation.rounds.tick(100.0) is None
    assert federation.server.round == 1


def test_a_round_finished_behind_the_back_of_the_controller_is_an_error():
    federation = Federation(RoundPolicy(rounds=1)).start([0])
    federation.server.finish_round()
    with pytest.raises(
        LocalProtocolError, match="ALL_ROUNDS_FINISHED is not possible in state COL"
    ):
        federation.rounds.connected(2.0)


def test_void_and_skipped_rounds_count_towards_the_last_round():
    federation = Federation(RoundPolicy(quorum=2, rounds=2)).start([0, 1])
    federation.upload(0, 1)
    federation.rounds.client_left(0)
    federation.rounds.tick(2.0)
    federation.rounds.client_present(0)
    finished = federation.rounds.tick(3.0)
    assert isinstance(finished, RoundFinished)
    assert finished.next_cohort == frozenset()
    assert federation.rounds.ended


def test_all_clients_left_after_every_known_client_said_goodbye():
    federation = Federation(RoundPolicy(rounds=1)).start([0, 1])
    federation.upload(0, 1)
    federation.rounds.tick(2.0)
    federation.rounds.client_left(0)
    assert not federation.rounds.all_clients_left
    federation.rounds.client_left(1)
    assert federation.rounds.all_clients_left


def test_a_scheduled_cohort_is_selected_even_if_other_clients_are_present():
    environment = Environment(clients=4, participation=0.5)
    policy = RoundPolicy(Scheduled(environment, seed=1), deadline=None)
    federation = Federation(policy).start([99])
    assert federation.rounds.cohort == set(environment.cohort(1, 0))


def test_presence_is_recorded_for_a_limited_number_of_clients():
    rounds = RoundController(Server(START, METHOD), max_clients=3)
    rounds.connected(0.0)
    for client in range(10):
        rounds.client_present(client)
    assert rounds.presence.available == [0, 1, 2]


def test_a_silent_client_costs_one_deadline_in_the_first_ten_rounds():
    federation = Federation(RoundPolicy(ALL_PRESENT, deadline=10)).start(range(4))
    now, waits = 1.0, 0
    for _ in range(10):
        federation.upload(0, 1, 2)
        finished = federation.rounds.tick(now)
        if finished is None:
            waits += 1
            now += 10
            finished = federation.rounds.tick(now)
            assert finished.resting == {3: 9}
        federation.rounds.client_present(3)  # it answers, but does not upload
    assert waits == 1
    assert federation.server.round == 10
    assert 3 in federation.rounds.cohort  # it is selected again


def test_a_client_that_leaves_and_comes_back_in_every_round_without_a_quorum_rests():
    policy = RoundPolicy(Sample(size=2), deadline=10, quorum=2)
    federation = Federation(policy).start([0, 1])
    federation.upload(0)
    federation.rounds.client_left(1)
    assert federation.rounds.tick(5.0) is None
    federation.rounds.client_present(1)
    federation.rounds.client_present(2)
    federation.rounds.client_left(1)
    federation.rounds.client_present(0)
    assert isinstance(federation.rounds.tick(11.0), RoundFinished)
    federation.rounds.client_present(1)
    assert federation.rounds.presence.eligible(1) == [0, 2]


def test_a_client_that_is_unheard_of_since_a_reconnection_is_excused():
    federation = Federation(RoundPolicy(ALL_PRESENT, deadline=10)).start([0, 1])
    federation.rounds.connected(5.0)
    federation.upload(0)
    assert isinstance(federation.rounds.tick(15.0), RoundFinished)
    federation.rounds.client_present(1)
    assert federation.rounds.presence.eligible(1) == [0, 1]
