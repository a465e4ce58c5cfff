"""What a virtual client of ``fedtern run --engine flower`` does, in whichever process it is."""

from __future__ import annotations

import json
from functools import cache, partial

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedtern.core.layout import Vector
from fedtern.core.protocol import Sent, Terms
from fedtern.core.snapshot import Snapshot
from fedtern.federation.client_session import ClientSession, Trainer
from fedtern.federation.interfaces import ClientLike
from fedtern.runs import Experiment
from fedtern.training.flat import FlatModel
from fedtern.training.local_training import LocalTraining
from fedtern.training.tasks import get_task
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.mod import request_in
from fedtern.transports.flower.node import Node, Worked
from fedtern.transports.local.trainers import choose_trainer, make_local_training

_TRAINING = "training"  # key of the record, and of the snapshot in it


def client_app(experiment: Experiment, data_dir: str | None) -> ClientApp:
    """An app that says in few bytes what it is: a simulation ships it with every message."""
    app = ClientApp()
    app.train()(partial(_turn, json.dumps(experiment.to_json()), data_dir))
    return app


@cache  # one for each process, which trains many clients one after the other
def _prepared(
    experiment: str, data_dir: str | None
) -> tuple[Trainer, LocalTraining, Vector, Terms]:
    what = Experiment.from_json(json.loads(experiment))
    task, seed, environment = get_task(what.task), what.seed, what.environment
    dataset = task.load(data_dir)
    torch.set_num_threads(1)
    model = FlatModel(task.build(seed))
    terms = Terms(model.layout, what.make_method())
    examples, split = task.examples(dataset), environment.split_dataset(dataset, seed)
    local = make_local_training(model, examples, split, terms, environment, what.sgd, seed)
    return choose_trainer(local, workers=0), local, model.weights, terms


def _turn(experiment: str, data_dir: str | None, message: Message, context: Context) -> Message:
    data = request_in(message)
    if data is None:
        raise ValueError("a message without a frame of fedtern")
    trainer, local, weights, _ = _prepared(experiment, data_dir)
    node = Node(message, context, lambda _charter: weights)
    return node.handle(data, partial(_train, trainer, local, message, context))


def _train(
    trainer: Trainer,
    local: LocalTraining,
    message: Message,
    context: Context,
    client: ClientLike,
    charter: FederationSpec,
) -> Worked:
    """Train as the local engine does, from where this client's last upload left off."""
    session = ClientSession(client.client_id, charter.method)
    record = context.state.config_records.get(_TRAINING)
    kept = None if record is None else record.get(_TRAINING)
    if isinstance(kept, bytes):
        session.restore(Snapshot.from_bytes(kept))
    outcome = session.train(client, trainer)

    def commit(sent: Sent) -> None:
        session.commit(outcome, sent)
        snapshot = session.snapshot().to_bytes()
        context.state[_TRAINING] = ConfigRecord({_TRAINING: snapshot})

    examples = local.split.sizes[client.client_id]
    content = RecordDict({"metrics": MetricRecord({"num-examples": examples})})
    reply = Message(content, reply_to=message)
    return Worked(reply, outcome.delta, outcome.moments, on_sent=commit)
