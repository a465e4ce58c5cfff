"""Settings of rounds, selection of cohorts, and presence of clients."""

from __future__ import annotations

import pytest

from fedtern import Environment
from fedtern.core.methods import Krum, Mean
from fedtern.federation import AllClients, Presence, RoundPolicy, Sample, Scheduled
from fedtern.federation.round_policy import check_quorum


def presence_of(*clients: int, max_clients: int = 100) -> Presence:
    presence = Presence(max_clients)
    for client in clients:
        presence.add(client)
    return presence


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: RoundPolicy(deadline=0), "deadline must be positive, got 0"),
        (lambda: RoundPolicy(quorum=0), "quorum must be at least 1, got 0"),
        (lambda: RoundPolicy(min_clients=-1), "min_clients must be at least the quorum 1, got -1"),
        (
            lambda: RoundPolicy(quorum=3, min_clients=2),
            "min_clients must be at least the quorum 3, got 2",
        ),
        (
            lambda: RoundPolicy(Sample(size=2), quorum=3),
            "quorum must be at most the cohort size 2, got 3",
        ),
        (
            lambda: RoundPolicy(Scheduled(Environment(clients=4, participation=0.5)), quorum=3),
            "quorum must be at most the cohort size 2, got 3",
        ),
        (lambda: RoundPolicy(rounds=0), "rounds must be at least 1, got 0"),
        (lambda: RoundPolicy(grace=-1), "grace must not be negative, got -1"),
        (lambda: RoundPolicy(rest=-1), "rest must not be negative, got -1"),
        (Sample, "pass either size or fraction, got size=None and fraction=None"),
        (
            lambda: Sample(size=2, fraction=0.5),
            r"pass either size or fraction, got size=2 and fraction=0\.5",
        ),
        (lambda: Sample(size=0), "size must be at least 1, got 0"),
        (lambda: Sample(fraction=1.5), r"fraction must be in \(0, 1\], got 1\.5"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_sample_can_be_a_fraction_of_the_present_clients():
    assert len(Sample(fraction=0.25).choose(0, range(20))) == 5
    assert Sample(fraction=0.01).choose(3, [8]) == [8]


def test_a_sample_depends_only_on_the_seed_the_round_and_the_present_clients():
    first = Sample(size=3, seed=1).choose(5, range(50))
    assert first == Sample(size=3, seed=1).choose(5, range(50))
    assert first != Sample(size=3, seed=2).choose(5, range(50))
    assert first != Sample(size=3, seed=1).choose(6, range(50))


def test_all_clients_are_the_present_ones():
    assert AllClients().choose(0, [4, 7]) == [4, 7]


def test_scheduled_cohorts_are_those_of_the_environment():
    environment = Environment(clients=10, participation=0.3)
    policy = RoundPolicy(Scheduled(environment, seed=2))
    for round in range(5):
        assert policy.choose(round, presence_of()) == set(environment.cohort(2, round))


def test_no_cohort_is_selected_below_min_clients():
    policy = RoundPolicy(quorum=1, min_clients=3)
    assert policy.choose(0, presence_of(0, 1)) == frozenset()
    assert policy.choose(0, presence_of(0, 1, 2)) == {0, 1, 2}


def test_no_cohort_is_selected_below_the_quorum():
    policy = RoundPolicy(Sample(fraction=0.5), quorum=2)
    assert policy.choose(0, presence_of(0, 1)) == frozenset()
    assert len(policy.choose(0, presence_of(0, 1, 2))) == 2


def test_an_unresponsive_client_is_available_again_after_a_message():
    presence = presence_of(0, 1, 2)
    presence.mark_unresponsive({1, 2, 9})
    assert presence.available == [0]
    assert presence.count == 1
    presence.add(1)
    assert presence.available == [0, 1]
    presence.remove(2)
    assert presence.count == 2


def test_a_client_that_left_is_known_and_no_longer_available():
    presence = presence_of(0, 1)
    presence.remove(0)
    assert presence.available == [1]
    assert presence.left == {0}
    assert presence.known == {0, 1}
    presence.add(0)
    assert presence.left == set()


def test_a_client_that_was_never_present_cannot_leave():
    presence = presence_of(0)
    presence.remove(5)
    assert presence.left == set()


def test_a_reset_keeps_only_the_known_clients():
    presence = presence_of(0, 1, 2)
    presence.remove(0)
    presence.mark_unresponsive({1})
    presence.reset()
    assert presence.present == presence.left == presence.unresponsive == set()
    assert presence.known == {0, 1, 2}


def test_clients_beyond_the_limit_are_ignored():
    presence = presence_of(0, 1, 2, max_clients=2)
    assert presence.available == [0, 1]
    assert presence.known == {0, 1}


def test_a_client_that_never_uploads_rests_for_twice_as_long_each_time():
    presence = presence_of(0, 1)
    missed = []
    for round in range(300):
        if 1 in presence.eligible(round):
            missed.append(round)
            presence.deadline_missed(1, round, first_rest=9)
            presence.add(1)  # any message
    assert missed == [0, 10, 29, 66, 139, 284]


def test_the_longest_rest_is_128_times_the_first():
    presence = presence_of(0)
    rests = [presence.deadline_missed(0, round, first_rest=2) for round in range(20)]
    assert rests[:9] == [2, 4, 8, 16, 32, 64, 128, 256, 256]
    assert max(rests) == 256


def test_an_accepted_upload_ends_a_rest_and_excuses_one_missed_deadline():
    presence = presence_of(0, 1)
    presence.deadline_missed(1, 0, first_rest=9)
    assert presence.eligible(1) == [0]
    assert presence.count_resting(1) == 1
    presence.upload_accepted(1)
    assert presence.eligible(1) == [0, 1]
    assert presence.count_resting(1) == 0
    assert presence.deadline_missed(1, 2, first_rest=9) == 0
    assert presence.eligible(3) == [0, 1]
    assert presence.deadline_missed(1, 3, first_rest=9) == 9
    assert presence.eligible(12) == [0]
    assert presence.eligible(13) == [0, 1]


def test_a_rest_survives_a_goodbye_and_a_new_connection():
    presence = presence_of(0, 1)
    presence.deadline_missed(1, 0, first_rest=9)
    presence.remove(1)
    presence.reset()
    for client in (0, 1):
        presence.add(client)
    assert presence.eligible(5) == [0]
    assert presence.available == [0, 1]


def test_a_resting_client_counts_as_present_but_is_not_selected():
    policy = RoundPolicy(quorum=2, min_clients=3)
    presence = presence_of(0, 1, 2)
    presence.deadline_missed(2, 0, policy.rest)
    assert policy.choose(1, presence) == {0, 1}
    assert policy.choose(10, presence) == {0, 1, 2}


def test_resting_clients_are_selected_if_the_others_do_not_reach_the_quorum():
    policy = RoundPolicy(Sample(fraction=1.0), quorum=2)
    presence = presence_of(0, 1)
    presence.deadline_missed(1, 0, policy.rest)
    assert policy.choose(1, presence) == {0, 1}


def test_without_rests_a_client_that_misses_deadlines_stays_eligible():
    presence = presence_of(0)
    assert [presence.deadline_missed(0, round, 0) for round in range(5)] == [0] * 5
    assert presence.eligible(5) == [0]


def test_missed_deadlines_are_recorded_for_a_limited_number_of_clients():
    presence = presence_of(*range(10), max_clients=3)
    assert [presence.deadline_missed(c, 0, 9) for c in range(5)] == [9, 9, 9, 0, 0]


def test_a_quorum_fits_the_aggregation():
    assert check_quorum(Mean(), None) == RoundPolicy()
    assert check_quorum(Krum(2), None) == RoundPolicy(quorum=7)
    assert check_quorum(Krum(1), RoundPolicy(quorum=6)).quorum == 6
    with pytest.raises(ValueError, match="'krum' needs a quorum of at least 5, got 4"):
        check_quorum(Krum(1), RoundPolicy(quorum=4))
