"""Differential privacy over a broker: same bytes as the simulation, budget and metrics."""

from __future__ import annotations

import asyncio
import logging

import pytest

pytest.importorskip("dp_accounting")
pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("aiomqtt")

from fedtern import Environment, simulate
from fedtern.privacy import PrivacySettings, privacy_loss
from fedtern.runs import Experiment
from fedtern.training.tasks import get_task
from fedtern.transports.mqtt import Broker, RoundPolicy, Scheduled, join, serve
from fedtern.transports.mqtt.experiment_client import ExperimentClient
from fedtern.transports.mqtt.experiment_server import (
    ExperimentServer,
    decode_experiment,
    encode_experiment,
)
from fedtern.transports.mqtt.metrics import Collector

ENVIRONMENT = Environment(clients=4, participation=0.5)
METHOD = "stc:p_up=1/20,p_down=1/20"
# Two rounds of one client are within the budget, three are not.
SETTINGS = PrivacySettings(clip=0.05, noise_multiplier=2.0, budget=privacy_loss(2.0, 2, 1e-5))
ITERATIONS = 20
SEED = 3


def make_experiment(settings: PrivacySettings) -> Experiment:
    return Experiment.of(
        "logistic-digits",
        METHOD,
        ENVIRONMENT,
        iterations=ITERATIONS,
        evaluate_every=5,
        seed=SEED,
        privacy=settings,
    )


async def run_over_mqtt(experiment, port, path):
    broker = Broker("127.0.0.1", port)
    dataset = get_task(experiment.task).load()
    host = ExperimentServer(experiment, dataset, "private", path / "run", noise_seed=SEED)
    cohorts = Scheduled(experiment.environment, experiment.seed)
    policy = RoundPolicy(cohorts, deadline=None, rounds=host.rounds, grace=0.1)
    tasks = [serve(host.server, broker, policy, stats=host.stats, on_round=host.round_finished)]
    clients = [ExperimentClient(experiment, dataset, i, "private") for i in range(4)]
    for one in clients:
        examples = one.num_examples
        tasks.append(
            join(one.client, one.train, broker, num_examples=examples, on_upload=one.uploaded)
        )
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    host.close()
    return host, clients


def test_a_private_federation_gives_the_model_of_the_simulation_and_ends_at_the_budget(
    mosquitto, tmp_path, caplog
):
    caplog.set_level(logging.INFO, "fedtern.mqtt")
    experiment = make_experiment(SETTINGS)
    host, _ = asyncio.run(run_over_mqtt(experiment, mosquitto.port, tmp_path))
    simulation = simulate(
        "logistic-digits",
        method=METHOD,
        environment=ENVIRONMENT,
        iterations=ITERATIONS,
        evaluate_every=5,
        seed=SEED,
        privacy=SETTINGS,
    )
    last = simulation.run()
    weights = [tensor.numpy().ravel() for tensor in simulation.weights.values()]
    assert host.server.weights.tobytes() == b"".join(w.tobytes() for w in weights)
    assert 0 < host.server.round == last.round < ITERATIONS
    assert host.run.final_evaluation().privacy == last.privacy
    assert last.privacy["epsilon"] <= SETTINGS.budget
    assert host.run.is_finished()
    assert f"the federation ends after {last.round} of 20 rounds" in caplog.text
    assert f"round 0: epsilon {privacy_loss(2.0, 1, 1e-5):.3g} of" in caplog.text
    gauges = {
        metric.name: metric.samples[0].value
        for metric in Collector(host.stats, "private").collect()
        if metric.samples
    }
    assert gauges["fedtern_privacy_epsilon"] == last.privacy["epsilon"]
    assert gauges["fedtern_privacy_delta"] == 1e-5
    assert gauges["fedtern_privacy_budget"] == SETTINGS.budget


def test_clients_add_their_own_noise_in_the_local_model(mosquitto, tmp_path):
    settings = PrivacySettings(clip=0.05, noise_multiplier=8.0, model="local")
    experiment = make_experiment(settings)
    assert decode_experiment(encode_experiment(experiment)) == experiment
    host, clients = asyncio.run(run_over_mqtt(experiment, mosquitto.port, tmp_path))
    assert host.server.round == ITERATIONS
    assert host.server.privacy_spent is None
    spent = [one.client.privacy_spent for one in clients]
    assert sum(each.participations for each in spent) == 2 * ITERATIONS
    assert all(each.epsilon == privacy_loss(4.0, each.participations, 1e-5) for each in spent)
    assert [one.num_examples for one in clients] == [1] * 4
