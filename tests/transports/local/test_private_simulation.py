"""Differential privacy in the local simulation."""

from __future__ import annotations

import pytest

pytest.importorskip("dp_accounting")
pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch
from torch import nn

from fedtern import Environment, simulate
from fedtern.privacy import PrivacySettings, privacy_loss

ENVIRONMENT = Environment(clients=20, participation=0.5)


def run(model="logistic-digits", **options):
    settings = {
        "method": "stc:p_up=1/20,p_down=1/20",
        "environment": ENVIRONMENT,
        "iterations": 12,
        "evaluate_every": 4,
        "workers": 0,
        "privacy": PrivacySettings(clip=0.05, noise_multiplier=2.0),
    }
    return simulate(model, **{**settings, **options})


def bits(simulation) -> bytes:
    return b"".join(weights.numpy().tobytes() for weights in simulation.weights.values())


@pytest.mark.parametrize("model", ["central", "local"])
def test_the_same_seed_gives_the_same_weights(model):
    settings = PrivacySettings(clip=0.05, noise_multiplier=2.0, model=model)

    def weights(**options):
        simulation = run(privacy=settings, **options)
        simulation.run()
        return bits(simulation)

    assert weights() == weights()
    assert weights() != weights(seed=1)


@pytest.mark.parametrize(("model", "noise"), [("central", 2.0), ("local", 1.0)])
def test_training_stops_before_the_budget_is_exceeded(model, noise, tmp_path):
    budget = privacy_loss(noise, 3, 1e-5)
    settings = PrivacySettings(clip=0.05, noise_multiplier=2.0, budget=budget, model=model)
    found = list(run(privacy=settings, out=tmp_path / "run"))
    last = found[-1]
    assert 3 <= last.round < 12
    assert last.privacy["epsilon"] <= budget < privacy_loss(noise, 4, 1e-5)
    assert last.privacy["participations"] == 3
    again = run(privacy=settings, out=tmp_path / "run", resume=True)
    assert again.run() == last  # the run is finished


@pytest.mark.parametrize("model", ["central", "local"])
def test_a_resumed_run_has_the_noise_and_the_account_of_one_without_a_break(model, tmp_path):
    settings = PrivacySettings(clip=0.05, noise_multiplier=2.0, model=model)
    whole = run(privacy=settings)
    expected = whole.run()
    with run(privacy=settings, out=tmp_path / "run") as first:
        next(first)
    rest = run(privacy=settings, out=tmp_path / "run", resume=True)
    assert rest.run().privacy == expected.privacy
    assert bits(rest) == bits(whole)


def test_uploads_have_the_same_size_as_without_privacy():
    private = run().run()
    plain = run(privacy=None).run()
    assert plain.privacy == {}
    assert private.up_bytes == pytest.approx(plain.up_bytes, rel=0.05)
    assert private.down_bytes == pytest.approx(plain.down_bytes, rel=0.05)


@pytest.mark.parametrize("carry", ["average", "local"])
def test_statistics_of_batch_normalisation_are_refused(carry):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    data = (torch.randn(100, 4).numpy(), torch.randint(3, (100,)).numpy())
    with pytest.raises(ValueError, match=r"does not support .*running_mean"):
        run(
            model,
            data=data,
            environment=Environment(clients=5, split="iid", participation=1),
            learning_rate=0.1,
            carry=carry,
        )
