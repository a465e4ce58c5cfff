"""What a virtual client of ``fedtern run --engine flower`` does, in whichever process it is."""

from __future__ import annotations

import json
from functools import cache, partial

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedtern.core.layout import Vector
from fedtern.core.protocol import Terms, Upload
from fedtern.federation.interfaces import ClientLike
from fedtern.runs import Experiment
from fedtern.training.flat import FlatModel
from fedtern.training.local_training import Job, LocalTraining, Trainer
from fedtern.training.tasks import get_task
from fedtern.transports.flower import messages
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.messages import KEY
from fedtern.transports.flower.mod import request_in
from fedtern.transports.flower.node import Node, Worked
from fedtern.transports.local.trainers import choose_trainer, prepare

_TRAINING, _POSITION, _VELOCITY = "training", "position", "velocity"


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
    examples, split = task.examples(dataset), environment.deal(dataset, seed)
    local = prepare(model, examples, split, terms, environment, what.sgd, seed)
    return choose_trainer(local, workers=0), local, model.weights, terms


def _turn(experiment: str, data_dir: str | None, message: Message, context: Context) -> Message:
    data = request_in(message)
    if data is None:
        raise ValueError("a message without a frame of fedtern")
    trainer, local, weights, terms = _prepared(experiment, data_dir)
    node = Node(message, context, lambda _charter: weights)
    work = partial(_train, trainer, local, message, context)
    reply = node.handle(data, work)
    _mask(reply, context, terms)
    return reply


def _train(
    trainer: Trainer,
    local: LocalTraining,
    message: Message,
    context: Context,
    client: ClientLike,
    charter: FederationSpec,
) -> Worked:
    """Train as the local engine does, with what this client remembers of the time before."""
    kept = context.state.config_records.setdefault(_TRAINING, ConfigRecord({_POSITION: 0}))
    if _TRAINING not in context.state:
        context.state[_TRAINING] = kept
    velocity = kept.get(_VELOCITY)
    job = Job(
        client.client_id,
        int(str(kept[_POSITION])),
        client.round,
        np.frombuffer(velocity, np.float32) if isinstance(velocity, bytes) else None,
    )
    (outcome,) = trainer.train(np.array(client.weights), [job])
    kept[_POSITION] = job.position + local.local_steps
    if outcome.velocity is not None:
        kept[_VELOCITY] = outcome.velocity.tobytes()
    examples = local.split.sizes[client.client_id]
    content = RecordDict({"metrics": MetricRecord({"num-examples": examples})})
    return Worked(Message(content, reply_to=message), outcome.delta, outcome.moments)


def _mask(reply: Message, context: Context, terms: Terms) -> None:
    """Forget the momentum of the weights that an upload told of, where the method says so."""
    method, kept = terms.method, context.state.config_records.get(_TRAINING)
    velocity = None if kept is None else kept.get(_VELOCITY)
    if method.momentum != "mask" or kept is None or not isinstance(velocity, bytes):
        return
    answer = messages.read_answer(bytes(reply.content.config_records[KEY][KEY]))  # type: ignore[arg-type]
    if answer.kind != messages.UPLOAD:
        return
    masked = np.frombuffer(velocity, np.float32).copy()
    method.mask_momentum(masked, Upload.open(answer.data, terms).update)
    kept[_VELOCITY] = masked.tobytes()
