"""An experiment over a broker gives the same bytes as the local simulation."""

from __future__ import annotations

import asyncio
from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("aiomqtt")


from fedtern import Environment, LocalProtocolError, Snapshot, Store, StoreError
from fedtern.core.methods.robust import min_uploads
from fedtern.data.hyperparameters import Sgd
from fedtern.runs import Experiment
from fedtern.runs.status import STOPPED, read_status
from fedtern.training.tasks import get_task, register_task
from fedtern.transports.local.simulation import federate
from fedtern.transports.mqtt import Broker, MqttServer, RoundPolicy, Scheduled, join, serve
from fedtern.transports.mqtt.experiment_client import ExperimentClient
from fedtern.transports.mqtt.experiment_server import (
    ExperimentServer,
    decode_experiment,
    encode_experiment,
)
from training.any_tasks import TASKS as ANY_TASKS

SOME = Environment(clients=10, participation=0.5, classes_per_client=2, gamma=0.95)
IID = Environment(clients=6, participation=0.5, batch_size=6, split="iid")


def simulate_locally(experiment: Experiment) -> np.ndarray:
    task = get_task(experiment.task)
    sgd = Sgd(experiment.learning_rate, experiment.momentum, experiment.weight_decay)
    method = experiment.make_method()
    with closing(
        federate(task, task.load(), method, experiment.environment, sgd, seed=experiment.seed)
    ) as federation:
        while federation.iteration < experiment.iterations:
            federation.step()
        return federation.server.weights.copy()


async def run_over_mqtt(
    experiment: Experiment, port: int, path, stores: bool = False
) -> ExperimentServer:
    broker = Broker("127.0.0.1", port)
    dataset = get_task(experiment.task).load()
    # Simulations have no cap. Some uploads of `variance` exceed the default one.
    host = ExperimentServer(experiment, dataset, "same", path / "run", cap=None)
    policy = RoundPolicy(
        Scheduled(experiment.environment, experiment.seed),
        deadline=None,
        quorum=min_uploads(host.server.terms.method.aggregate),
        rounds=host.rounds,
        grace=0.1,
    )
    tasks = [serve(host.server, broker, policy, stats=host.stats, on_round=host.round_finished)]
    opened = []
    for i in range(experiment.environment.clients):
        store = Store(path / f"client-{i}") if stores else None
        opened += [store] if store else []
        one = ExperimentClient(experiment, dataset, i, "same", store=store)
        tasks.append(
            join(
                one.client, one.train, broker, num_examples=one.num_examples, on_upload=one.uploaded
            )
        )
    try:
        await asyncio.wait_for(asyncio.gather(*tasks), 120)
    finally:
        for store in opened:
            store.close()
    return host


@pytest.mark.parametrize(
    "method",
    [
        "stc:p_up=1/20,p_down=1/20",
        "stc:p_up=1/20,p_down=1/20,codec=adaptive,magnitudes=powers",
        "stc_plus:p_up=1/20",
        "stc:p_up=1/20,p_down=1/20,server_optimizer=nesterov,server_lr=0.7",
        "dgc",
        "signsgd",
        "structured",
        "variance",
        "fedavg:weighted=true,local_steps=5",
        "fedavg:local_steps=5,aggregate=median",
        "grid:aggregate=trimmed-mean:0.2",
        "grid:aggregate=krum:1",
        "stc:p_up=1/20,p_down=1/20,aggregate=clip:0.2",
    ],
)
def test_an_experiment_gives_the_model_of_the_local_simulation(mosquitto, tmp_path, method):
    experiment = Experiment.of(
        "logistic-digits", method, SOME, iterations=30, momentum=0.9, evaluate_every=10, seed=3
    )
    expected = simulate_locally(experiment)
    host = asyncio.run(run_over_mqtt(experiment, mosquitto.port, tmp_path))
    assert host.server.weights.tobytes() == expected.tobytes()
    found = host.run.evaluations()
    assert found[-1].iteration >= 30
    assert host.run.is_finished()
    kept = Snapshot.from_bytes(host.run.model_path.read_bytes()).arrays
    assert np.concatenate([w.ravel() for w in kept.values()]).tobytes() == expected.tobytes()
    assert found[-1].up_bytes > found[0].up_bytes > 0


@pytest.mark.parametrize("name", ["any-average", "any-adam", "any-bfloat16", "any-text"])
def test_any_task_gives_the_model_of_the_local_simulation(mosquitto, tmp_path, name):
    task = register_task(ANY_TASKS[name])
    environment = IID
    method = "stc:p_up=1/5,p_down=1/5,local_steps=2"
    experiment = Experiment.of(name, method, environment, iterations=12, evaluate_every=4)
    expected = simulate_locally(experiment)
    host = asyncio.run(run_over_mqtt(experiment, mosquitto.port, tmp_path))
    assert host.server.weights.tobytes() == expected.tobytes()
    last = host.run.final_evaluation()
    assert last.primary[0] == task.objective.primary.name
    assert last.metrics == local_metrics(experiment)


def local_metrics(experiment: Experiment) -> dict[str, float]:
    task = get_task(experiment.task)
    method = experiment.make_method()
    with closing(
        federate(task, task.load(), method, experiment.environment, experiment.sgd, seed=0)
    ) as federation:
        while federation.iteration < experiment.iterations:
            federation.step()
        return federation.evaluate().metrics


def test_buffers_that_stay_on_clients_are_refused(tmp_path):
    task = register_task(ANY_TASKS["any-local"])
    experiment = Experiment.of(task.name, "stc", SOME)
    for make in (
        lambda: ExperimentClient(experiment, task.load(), 0, "same"),
        lambda: ExperimentServer(experiment, task.load(), "same", tmp_path / "run"),
    ):
        with pytest.raises(ValueError, match="engine 'mqtt' does not support carry=\"local\""):
            make()


@pytest.mark.parametrize("killed_early", [False, True])
def test_the_state_of_an_optimiser_survives_in_the_store(tmp_path, killed_early):
    task = register_task(ANY_TASKS["any-adam"])
    experiment = Experiment.of(task.name, "stc:p_up=1/20", IID)
    server = ExperimentServer(experiment, task.load(), "same", tmp_path / "run").server
    memory = ExperimentClient(experiment, task.load(), 1, "same")
    for round in range(3):
        sent = train_once(memory, round)
        with Store(tmp_path / "client") as store:  # as after a restart
            one = ExperimentClient(experiment, task.load(), 1, "same", store=store)
            assert train_once(one, round, commit=not killed_early).data == sent.data
        server.receive(1, sent.data)
        broadcast = server.finish_round().data
        memory.client.receive(broadcast)
        with Store(tmp_path / "client") as store:
            ExperimentClient(experiment, task.load(), 1, "same", store=store).client.receive(
                broadcast
            )


def train_once(one: ExperimentClient, round: int, *, commit: bool = True):
    delta = one.train(one.client.weights.copy(), round)
    sent = one.client.send_delta(delta.values, delta.moments, delta.carried)
    if commit:
        one.uploaded(sent)
    return sent


def test_a_client_continues_from_its_store_wherever_it_was_killed(tmp_path):
    experiment = Experiment.of("logistic-digits", "stc:p_up=1/20", SOME, momentum=0.9)
    dataset = get_task(experiment.task).load()

    def train_rounds(path, *, killed_early: bool) -> bytes:
        for round in range(4):
            with Store(path) as store:
                one = ExperimentClient(experiment, dataset, 1, "same", store=store)
                delta = one.train(one.client.weights.copy(), round)
                sent = one.client.send_delta(delta.values)
                if not killed_early:  # killed before the training state was written
                    one.uploaded(sent)
            with Store(path) as store:
                one = ExperimentClient(experiment, dataset, 1, "same", store=store)
                assert one.client.pending == sent.data
                server.receive(1, sent.data)
                one.client.receive(server.finish_round().data)
        return sent.data

    results = []
    for killed_early in (False, True):
        path = tmp_path / str(killed_early)
        server = ExperimentServer(experiment, dataset, "same", path / "run").server
        results.append(train_rounds(path / "client", killed_early=killed_early))
    assert results[0] == results[1]


def test_a_run_directory_has_one_server_at_a_time(tmp_path):
    experiment = Experiment.of("logistic-digits", "stc", SOME, iterations=1)
    dataset = get_task(experiment.task).load()
    host = ExperimentServer(experiment, dataset, "same", tmp_path / "run")
    with pytest.raises(StoreError, match="is locked by another process"):
        ExperimentServer(experiment, dataset, "same", tmp_path / "run")
    host.close()
    ExperimentServer(experiment, dataset, "same", tmp_path / "run").close()


def test_a_server_stopped_before_the_last_evaluation_finishes_the_run_later(tmp_path):
    experiment = Experiment.of("logistic-digits", "stc", SOME, iterations=1)
    dataset = get_task(experiment.task).load()
    for _ in range(2):  # the second time changes nothing
        with Store(tmp_path / "server") as store:
            host = ExperimentServer(experiment, dataset, "same", tmp_path / "run", store=store)
            if host.server.round == 0:
                host.server.finish_round()
            host.finish()
            host.finish()
            host.close()
        assert host.run.is_finished()
        assert [found.round for found in host.run.evaluations()] == [1]


def test_the_status_of_a_server_has_its_clients_and_ends_with_the_federation(tmp_path):
    experiment = Experiment.of("logistic-digits", "stc", SOME, iterations=2)
    host = ExperimentServer(experiment, get_task(experiment.task).load(), "same", tmp_path / "run")
    mqtt_server = MqttServer(host.server, RoundPolicy(rounds=host.rounds), stats=host.stats)

    async def serve_rounds() -> None:
        async with host.status_updates():
            await asyncio.sleep(0)
            assert read_status(tmp_path / "run").status.activity == "waiting for clients"
            mqtt_server.connected(0.0)
            for client in (0, 1):
                mqtt_server.receive("alive", client, b"1", 100.0)
            mqtt_server.receive("up", 1, b"damaged", 100.0)
            mqtt_server.tick(200.0)
            await host.round_finished(mqtt_server)
            clients = host.status().clients
            assert (clients.total, clients.present) == (SOME.clients, 2)
            assert (clients.cohort, clients.awaited, clients.waiting_for) == (1, 1, [1])
            assert clients.unresponsive == [0]
            assert sum(clients.refused.values()) == 1
            assert host.status().activity == "collecting"

    asyncio.run(serve_rounds())
    assert read_status(tmp_path / "run").state == STOPPED
    while host.server.round < host.rounds:
        host.server.finish_round()
    host.close()


def test_callbacks_of_a_server_see_each_evaluation_and_cannot_stop_it(tmp_path):
    experiment = Experiment.of("logistic-digits", "stc", SOME, iterations=1)
    dataset = get_task(experiment.task).load()
    calls = []

    class Record:
        def on_start(self, training):
            calls.append(("start", training.round))

        def on_evaluation(self, training, evaluation):
            calls.append(("evaluation", evaluation.round, sorted(training.weights)))

        def on_end(self, training):
            calls.append(("end", training.path.name))

    host = ExperimentServer(experiment, dataset, "same", tmp_path / "run", callbacks=[Record()])
    host.server.finish_round()
    host.finish()
    with pytest.raises(LocalProtocolError, match="cannot stop a federation over MQTT"):
        host.stop()
    host.close()
    names = ["1.bias", "1.weight"]
    assert calls == [("start", 0), ("evaluation", 1, names), ("end", "run")]


def test_a_server_resumes_without_the_damaged_lines_of_its_metrics(tmp_path, caplog):
    experiment = Experiment.of("logistic-digits", "stc", SOME, iterations=1)
    dataset = get_task(experiment.task).load()
    host = ExperimentServer(experiment, dataset, "same", tmp_path / "run")
    host.server.finish_round()
    host.finish()
    host.close()
    metrics = host.run.metrics.path
    whole = metrics.read_text()
    metrics.write_text("damage\n" + whole + '{"iteration": 2')
    ExperimentServer(experiment, dataset, "same", tmp_path / "run").close()
    assert f"{metrics}: line 1 is damaged" in caplog.text
    assert metrics.read_text() == whole


def test_an_experiment_survives_encoding_and_malformed_ones_are_refused():
    experiment = Experiment.of("logistic-digits", "stc", SOME, seed=5)
    assert decode_experiment(encode_experiment(experiment)) == experiment
    newer = encode_experiment(experiment).replace(b'"version": 1', b'"version": 2')
    with pytest.raises(ValueError, match="has version 1 here, the peer uses version 2"):
        decode_experiment(newer)
    other = encode_experiment(experiment).replace(b'"local_steps": 1', b'"local_steps": 2', 1)
    with pytest.raises(ValueError, match="its method is not"):
        decode_experiment(other)
    for noise in (b"", b"{}", b"[]", b'{"environment": {"clients": -1}}'):
        with pytest.raises(ValueError, match="is malformed"):
            decode_experiment(noise)
