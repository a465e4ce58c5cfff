"""The client app of ``fedtern run --engine flower``."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import NamedTuple

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedtern.core.protocol import Sent, Terms
from fedtern.core.snapshot import Snapshot
from fedtern.federation.client_session import ClientSession, Trainer
from fedtern.federation.interfaces import ClientLike
from fedtern.runs import Experiment
from fedtern.training.tasks import get_task
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.mod import find_request
from fedtern.transports.flower.node import InitialModel, Node, WorkResult
from fedtern.transports.local.trainers import choose_trainer, make_local_training

_TRAINING = "training"  # key of the record, and of the snapshot in it


class _LoadedExperiment(NamedTuple):
    """An experiment with its data, ready to train any of its clients.

    Attributes:
        trainer: Trains one client at a time.
        num_examples: Number of training examples of each client.
        initial_model: The initial model.

    """

    trainer: Trainer
    num_examples: tuple[int, ...]
    initial_model: InitialModel


def client_app(experiment: Experiment, data_dir: str | None) -> ClientApp:
    """Return an app that trains the clients of an experiment.

    The app holds only the description of the experiment: a simulation pickles the app for every
    message, so it has to be small.
    """
    app = ClientApp()
    app.train()(partial(_handle, json.dumps(experiment.to_json()), data_dir))
    return app


@cache  # once per process, which trains many clients one after the other
def _load(experiment_json: str, data_dir: str | None) -> _LoadedExperiment:
    experiment = Experiment.from_json(json.loads(experiment_json))
    environment = experiment.environment
    task = get_task(experiment.task)
    dataset = task.load(data_dir)
    # As in the local engine: sums by several threads differ in their last bits.
    torch.set_num_threads(1)
    model = task.flat_model(experiment.seed)
    local = make_local_training(
        model,
        task.examples(dataset),
        environment.split_dataset(dataset, experiment.seed),
        Terms(model.layout, experiment.make_method()),
        environment,
        experiment.sgd,
        experiment.seed,
        optimizer=task.optimizer,
        schedule=task.schedule,
    )
    trainer = choose_trainer(local, workers=0)
    initial = InitialModel(model.weights, model.carried)
    return _LoadedExperiment(trainer, local.split.sizes, initial)


def _handle(
    experiment_json: str, data_dir: str | None, message: Message, context: Context
) -> Message:
    data = find_request(message)
    if data is None:
        raise ValueError("the message has no request of fedtern")
    loaded = _load(experiment_json, data_dir)
    node = Node(message, context, lambda _spec: loaded.initial_model)
    return node.handle(data, partial(_train, loaded, message, context))


def _train(
    loaded: _LoadedExperiment,
    message: Message,
    context: Context,
    client: ClientLike,
    spec: FederationSpec,
) -> WorkResult:
    """Train as the local engine does, from the session after this client's last upload."""
    session = ClientSession(client.client_id, spec.method)
    record = context.state.config_records.get(_TRAINING)
    saved = None if record is None else record.get(_TRAINING)
    if isinstance(saved, bytes):
        session.restore(Snapshot.from_bytes(saved))
    outcome = session.train(client, loaded.trainer)

    def commit(sent: Sent) -> None:
        session.commit(outcome, sent)
        snapshot = session.snapshot().to_bytes()
        context.state[_TRAINING] = ConfigRecord({_TRAINING: snapshot})

    num_examples = loaded.num_examples[client.client_id]
    content = RecordDict({"metrics": MetricRecord({"num-examples": num_examples})})
    reply = Message(content, reply_to=message)
    return WorkResult(
        reply, outcome.delta, outcome.moments, on_sent=commit, carried=outcome.carried
    )
