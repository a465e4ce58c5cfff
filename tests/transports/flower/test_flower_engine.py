"""``--engine flower``: Flower's simulation comes to what the local engine does, to the last bit."""

from __future__ import annotations

import gc
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: pip install 'fedtern[flower]'")
pytest.importorskip("ray", reason="FLOWER IS NOT TESTED HERE: pip install 'fedtern[flower]'")

from direct import DirectSimulation
from flwr.app import Context, RecordDict

from fedtern import METHODS as ALL_METHODS
from fedtern import Environment
from fedtern.cli import app
from fedtern.data.hyperparameters import Sgd
from fedtern.runs import Experiment
from fedtern.training.tasks import get_task
from fedtern.transports.flower import engine, engine_node
from fedtern.transports.flower.engine import EngineError, FlowerFederation
from fedtern.transports.flower.engine_node import client_app
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.simulation import federate

# Ray and Flower warn of what is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _one_thread():
    """What a client of the simulation has, too: sums by several threads have other last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _nothing_left():
    """Ray forgets to close files: here that is let pass, in the next test it would not be."""
    yield
    gc.collect()


METHODS = ["stc", "fedavg:local_steps=5", "signsgd", "topk"]


def play(what: Experiment, make) -> tuple[object, np.ndarray]:
    task = get_task(what.task)
    sgd = Sgd(what.learning_rate, what.momentum, what.weight_decay)
    federation = federate(
        task,
        task.load(),
        what.make_method(),
        what.environment,
        sgd,
        seed=what.seed,
        make=make,
    )
    try:
        for _ in range(6):
            federation.step()
        return federation.evaluate(), np.array(federation.server.weights)
    finally:
        federation.close()


class Here:
    """In the place of Flower's simulation: its apps and messages, one after the other."""

    def __init__(self, experiment, data_dir):
        app = client_app(experiment, data_dir)
        self.grid = DirectSimulation(Path(), [app] * experiment.environment.clients)

    def do(self, errand):
        return errand(self.grid)

    def close(self):
        pass


@pytest.mark.parametrize("method", ALL_METHODS)
def test_apps_of_the_engine_do_what_the_local_engine_does(monkeypatch, method):
    monkeypatch.setattr(engine, "Simulation", Here)
    few = Environment(clients=8, participation=0.5, classes_per_client=2, gamma=0.8)
    what = Experiment.of("mlp-digits", method, few, momentum=0.5, seed=1)
    here, weights = play(what, Federation)
    there, others = play(what, partial(FlowerFederation, what, None))
    assert np.array_equal(weights, others)
    for name in ("loss", "up_bytes", "down_bytes", "up_bytes_paper", "down_bytes_paper"):
        assert getattr(here, name) == getattr(there, name)


def test_a_simulation_that_dies_is_reported(monkeypatch):
    def die(*_args, **_options):
        raise RuntimeError("no room for Ray")

    monkeypatch.setattr(engine, "run_simulation", die)
    what = Experiment.of("mlp-digits", "stc", Environment(clients=2, participation=1.0))
    with pytest.raises(EngineError, match="has ended: no room for Ray"):
        play(what, partial(FlowerFederation, what, None))


def test_a_simulation_does_errands_until_it_is_closed(monkeypatch):
    def run(server, _nodes, clients, **_options):
        server(DirectSimulation(Path(), [None] * clients), Context(1, 1, {}, RecordDict(), {}))

    monkeypatch.setattr(engine, "run_simulation", run)
    what = Experiment.of("mlp-digits", "stc", Environment(clients=3, participation=1.0))
    simulation = engine.Simulation(what, None)
    assert len(simulation.do(lambda grid: grid.get_node_ids())) == 3
    with pytest.raises(ZeroDivisionError):
        simulation.do(lambda _: 1 / 0)
    simulation.close()


@pytest.mark.parametrize("when", ["hello", "turn"])
def test_a_client_that_cannot_begin_ends_the_experiment_with_a_reason(monkeypatch, when):
    prepared, calls = engine_node._prepared, []

    def fail(*args):
        calls.append(args)
        if when == "hello" or len(calls) > 2:
            raise OSError("no such dataset")
        return prepared(*args)

    monkeypatch.setattr(engine, "Simulation", Here)
    monkeypatch.setattr(engine_node, "_prepared", fail)
    what = Experiment.of("mlp-digits", "stc", Environment(clients=2, participation=1.0))
    with pytest.raises(EngineError, match=r"ends with node 100.*no such dataset") as ended:
        play(what, partial(FlowerFederation, what, None))
    assert "mods=" not in str(ended.value)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_hundred_clients_give_the_bytes_of_the_local_engine(method):
    uneven = Environment(clients=100, participation=0.1, classes_per_client=2, gamma=0.95)
    what = Experiment.of("mlp-digits", method, uneven, momentum=0.9, seed=3)
    here, weights = play(what, Federation)
    there, others = play(what, partial(FlowerFederation, what, None))
    assert np.array_equal(weights, others)
    for name in ("loss", "accuracy", "up_bytes", "down_bytes", "up_bytes_paper", "down_bytes_mean"):
        assert getattr(here, name) == getattr(there, name)


@pytest.mark.slow
def test_the_command_line_runs_an_experiment_on_either_engine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {}
    for name in ("local", "flower"):
        options = (
            "--clients 10 --participation 0.5 --iterations 6 --momentum 0.5 --method sbc --json"
        )
        run = CliRunner().invoke(app, ["run", "mlp-digits", "--engine", name, *options.split()])
        assert run.exit_code == 0, run.output
        found[name] = json.loads(run.output.splitlines()[-1])
    here, there = (found[name].pop("run") for name in ("local", "flower"))
    assert there == f"{here}-flower"
    assert json.loads((tmp_path / there / "config.json").read_text())["engine"] == "flower"
    assert found["local"] | {"seconds": 0} == found["flower"] | {"seconds": 0}
    one, other = ((tmp_path / path / "model.safetensors").read_bytes() for path in (here, there))
    assert one == other


@pytest.mark.slow
def test_a_client_that_fails_ends_the_experiment_with_a_reason():
    what = Experiment.of("mlp-digits", "stc", Environment(clients=4, participation=0.5))
    broken = Experiment.from_json({**what.to_json(), "learning_rate": 1e30})
    with pytest.raises(EngineError, match="cannot be sent"):
        play(what, partial(FlowerFederation, broken, None))


def test_what_the_engine_cannot_do_is_said_in_a_sentence(tmp_path):
    out = ["--out", str(tmp_path)]
    wrong = CliRunner().invoke(app, ["run", "--engine", "flowr", *out])
    assert wrong.exit_code == 1
    assert "Unknown engine 'flowr'. Did you mean 'flower'?" in wrong.output
    device = CliRunner().invoke(app, ["run", "--engine", "flower", "--device", "meta", *out])
    assert device.exit_code == 1
    assert "trains on the CPU" in device.output
