"""Privacy loss: equal to dp-accounting's, for known cases and for compositions."""

from __future__ import annotations

import sys

import pytest

from fedtern import MissingExtraError
from fedtern.privacy import CentralPrivacy, LocalPrivacy, largest_participations, privacy_loss
from fedtern.privacy.accounting import require_accounting

dp_accounting = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld")


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (8.0, 10), (20.0, 100)])
def test_epsilon_equals_that_of_composed_gaussian_events(noise, rounds):
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
    expected = accountant.get_epsilon(1e-5)
    found = privacy_loss(noise, rounds, 1e-5)
    # The accountant rounds up.
    assert expected - 1e-4 < found <= expected + 1e-9


def test_epsilon_of_one_gaussian_release_is_the_published_one():
    # Noise that the analytic Gaussian mechanism needs for (1, 1e-5), from Balle and Wang (2018).
    assert privacy_loss(3.730631634944469, 1, 1e-5) == pytest.approx(1.0, rel=1e-6)


def test_a_client_that_never_took_part_has_spent_nothing():
    assert privacy_loss(1.0, 0, 1e-5) == 0


def test_epsilon_grows_with_every_participation():
    losses = [privacy_loss(4.0, k, 1e-6) for k in range(30)]
    assert losses == sorted(set(losses))


@pytest.mark.parametrize("budget", [0.5, 3.0, 10.0])
def test_the_largest_number_of_participations_is_within_the_budget(budget):
    most = largest_participations(8.0, 1e-5, budget)
    assert privacy_loss(8.0, most, 1e-5) <= budget < privacy_loss(8.0, most + 1, 1e-5)


def test_the_local_model_counts_twice_the_sensitivity():
    local = LocalPrivacy(1.0, 8.0).spent(5)
    assert local.epsilon == CentralPrivacy(1.0, 4.0, 10).spent(5).epsilon


def test_the_error_without_dp_accounting_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[privacy\]'"):
        require_accounting()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "clip must be positive"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier must be positive and finite"),
        ({"delta": 1.0}, "delta must be between 0 and 1"),
        ({"budget": -1.0}, "budget must be positive"),
        ({"budget": 0.1}, "budget 0.1 allows no round: one participation costs epsilon"),
        ({"clients_per_round": 0}, "clients_per_round must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    good = {"clip": 1.0, "noise_multiplier": 2.0, "clients_per_round": 10}
    with pytest.raises(ValueError, match=message):
        CentralPrivacy(**{**good, **settings})
