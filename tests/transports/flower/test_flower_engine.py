"""``--engine flower``: Flower's simulation gives the same bits as the local engine."""

from __future__ import annotations

import gc
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: install the extra flower")
pytest.importorskip("ray", reason="FLOWER IS NOT TESTED HERE: install the extra flower")

from direct import DirectSimulation
from flwr.app import Context, RecordDict

from fedtern import METHODS as ALL_METHODS
from fedtern import Environment
from fedtern.cli import app
from fedtern.data.hyperparameters import Sgd
from fedtern.runs import Evaluation, Experiment
from fedtern.training.tasks import get_task, register_task
from fedtern.transports.flower import engine, engine_node
from fedtern.transports.flower.engine import EngineError, FlowerFederation
from fedtern.transports.flower.engine_node import client_app
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.simulation import federate
from training.any_tasks import TASKS as ANY_TASKS

# Warnings of Ray and Flower are about their own code.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _collect_garbage():
    """Collect files that Ray did not close, so that they do not cause warnings in other tests."""
    yield
    gc.collect()


METHODS = ["stc", "fedavg:local_steps=5", "signsgd", "topk"]


def run_rounds(experiment: Experiment, make) -> tuple[Evaluation, np.ndarray]:
    """Run six rounds; return the evaluation and the weights after them."""
    task = get_task(experiment.task)
    sgd = Sgd(experiment.learning_rate, experiment.momentum, experiment.weight_decay)
    federation = federate(
        task,
        task.load(),
        experiment.make_method(),
        experiment.environment,
        sgd,
        seed=experiment.seed,
        make=make,
    )
    try:
        for _ in range(6):
            federation.step()
        return federation.evaluate(), np.array(federation.server.weights)
    finally:
        federation.close()


class DirectSimulationThread:
    """Replaces Flower's simulation: calls the same apps directly, one after the other."""

    def __init__(self, experiment, data_dir):
        app = client_app(experiment, data_dir)
        self.grid = DirectSimulation(Path(), [app] * experiment.environment.clients)

    def call(self, function):
        return function(self.grid)

    def close(self):
        pass


@pytest.mark.parametrize(
    "method", [*ALL_METHODS, "stc:codec=adaptive,magnitudes=powers", "stc:server_optimizer=adam"]
)
def test_client_apps_give_the_bytes_of_the_local_engine(monkeypatch, method):
    monkeypatch.setattr(engine, "Simulation", DirectSimulationThread)
    environment = Environment(clients=8, participation=0.5, classes_per_client=2, gamma=0.8)
    experiment = Experiment.of("mlp-digits", method, environment, momentum=0.5, seed=1)
    local, local_weights = run_rounds(experiment, Federation)
    flower, flower_weights = run_rounds(experiment, partial(FlowerFederation, experiment, None))
    assert np.array_equal(local_weights, flower_weights)
    for name in ("loss", "up_bytes", "down_bytes", "up_bytes_paper", "down_bytes_paper"):
        assert getattr(local, name) == getattr(flower, name)


@pytest.mark.parametrize("name", [name for name in ANY_TASKS if "local" not in name])
def test_any_task_gives_the_bytes_of_the_local_engine(monkeypatch, name):
    monkeypatch.setattr(engine, "Simulation", DirectSimulationThread)
    register_task(ANY_TASKS[name])
    environment = Environment(clients=8, participation=0.5, batch_size=6, split="iid")
    experiment = Experiment.of(name, "stc:p_up=1/5,p_down=1/5,local_steps=2", environment)
    local, local_weights = run_rounds(experiment, Federation)
    flower, flower_weights = run_rounds(experiment, partial(FlowerFederation, experiment, None))
    assert np.array_equal(local_weights, flower_weights)
    for value in ("loss", "metrics", "up_bytes", "down_bytes"):
        assert getattr(local, value) == getattr(flower, value)


def test_buffers_that_stay_on_clients_are_refused():
    register_task(ANY_TASKS["any-local"])
    environment = Environment(clients=2, participation=1.0, split="iid")
    experiment = Experiment.of("any-local", "stc", environment)
    with pytest.raises(ValueError, match="engine 'flower' does not support carry=\"local\""):
        run_rounds(experiment, partial(FlowerFederation, experiment, None))


def test_failed_simulation_is_reported(monkeypatch):
    def die(*_args, **_options):
        raise RuntimeError("no room for Ray")

    monkeypatch.setattr(engine, "run_simulation", die)
    experiment = Experiment.of("mlp-digits", "stc", Environment(clients=2, participation=1.0))
    with pytest.raises(EngineError, match="has ended: no room for Ray"):
        run_rounds(experiment, partial(FlowerFederation, experiment, None))


def test_simulation_calls_functions_until_it_is_closed(monkeypatch):
    def run(server, _nodes, clients, **_options):
        server(DirectSimulation(Path(), [None] * clients), Context(1, 1, {}, RecordDict(), {}))

    monkeypatch.setattr(engine, "run_simulation", run)
    experiment = Experiment.of("mlp-digits", "stc", Environment(clients=3, participation=1.0))
    simulation = engine.Simulation(experiment, None)
    assert len(simulation.call(lambda grid: grid.get_node_ids())) == 3
    with pytest.raises(ZeroDivisionError):
        simulation.call(lambda _: 1 / 0)
    simulation.close()


@pytest.mark.parametrize("when", ["handshake", "training"])
def test_client_that_cannot_load_its_data_ends_the_experiment(monkeypatch, when):
    load = engine_node._load
    calls = []

    def fail(*args):
        calls.append(args)
        if when == "handshake" or len(calls) > 2:
            raise OSError("no such dataset")
        return load(*args)

    monkeypatch.setattr(engine, "Simulation", DirectSimulationThread)
    monkeypatch.setattr(engine_node, "_load", fail)
    experiment = Experiment.of("mlp-digits", "stc", Environment(clients=2, participation=1.0))
    with pytest.raises(EngineError, match=r"without node 100.*no such dataset") as ended:
        run_rounds(experiment, partial(FlowerFederation, experiment, None))
    assert "mods=" not in str(ended.value)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_simulation_of_100_clients_gives_the_bytes_of_the_local_engine(method):
    environment = Environment(clients=100, participation=0.1, classes_per_client=2, gamma=0.95)
    experiment = Experiment.of("mlp-digits", method, environment, momentum=0.9, seed=3)
    local, local_weights = run_rounds(experiment, Federation)
    flower, flower_weights = run_rounds(experiment, partial(FlowerFederation, experiment, None))
    assert np.array_equal(local_weights, flower_weights)
    for name in ("loss", "accuracy", "up_bytes", "down_bytes", "up_bytes_paper", "down_bytes_mean"):
        assert getattr(local, name) == getattr(flower, name)


@pytest.mark.slow
def test_command_line_gives_the_same_model_with_both_engines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {}
    for name in ("local", "flower"):
        options = (
            "--clients 10 --participation 0.5 --iterations 6 --momentum 0.5 --method sbc --json"
        )
        run = CliRunner().invoke(app, ["run", "mlp-digits", "--engine", name, *options.split()])
        assert run.exit_code == 0, run.output
        found[name] = json.loads(run.output.splitlines()[-1])
    local, flower = (tmp_path / found[name].pop("run") for name in ("local", "flower"))
    assert flower.name == f"{local.name}-flower"
    assert json.loads((flower / "config.json").read_text())["engine"] == "flower"
    assert found["local"] | {"seconds": 0} == found["flower"] | {"seconds": 0}
    models = {(run / "model.safetensors").read_bytes() for run in (local, flower)}
    assert len(models) == 1


@pytest.mark.slow
def test_client_with_an_overflow_ends_the_experiment():
    experiment = Experiment.of("mlp-digits", "stc", Environment(clients=4, participation=0.5))
    broken = Experiment.from_json({**experiment.to_json(), "learning_rate": 1e30})
    with pytest.raises(EngineError, match="cannot be sent"):
        run_rounds(experiment, partial(FlowerFederation, broken, None))


def test_unknown_engine_and_device_are_reported(tmp_path):
    out = ["--out", str(tmp_path)]
    wrong = CliRunner().invoke(app, ["run", "--engine", "flowr", *out])
    assert wrong.exit_code == 1
    assert "Unknown engine 'flowr'. Did you mean 'flower'?" in wrong.output
    device = CliRunner().invoke(app, ["run", "--engine", "flower", "--device", "meta", *out])
    assert device.exit_code == 1
    assert "trains on the CPU" in device.output
