"""A client of an experiment: its part of the data, and its training state between rounds."""

from __future__ import annotations

from pathlib import Path

from fedtern.core.errors import DamagedStoreError, DecodeError, LocalProtocolError
from fedtern.core.layout import Vector
from fedtern.core.protocol import Client, Sent
from fedtern.core.snapshot import Snapshot
from fedtern.data import Dataset
from fedtern.federation.client_session import ClientSession, Outcome
from fedtern.federation.interfaces import ClientLike
from fedtern.runs import Experiment
from fedtern.store import DurableClient, Store
from fedtern.store.files import write_atomic
from fedtern.training.tasks import get_task
from fedtern.transports.local.trainers import (
    choose_trainer,
    make_local_training,
    require_shared_buffers,
)
from fedtern.transports.mqtt.client import Delta


class ExperimentClient:
    """Trains like the same client of the local simulation, to the same bits.

    This holds with one thread of torch, as in the commands: the order of sums depends on the number
    of threads.

    Pass ``client``, ``train``, ``num_examples`` and ``uploaded`` to ``join``.

    Args:
        experiment: task, method and environment.
        dataset: the whole dataset; the client uses its part.
        client_id: number of the client.
        federation: name of the federation.
        store: directory for the state of the client and of its training.
        device: torch device.

    Raises:
        ValueError: the experiment has no such client.
        DamagedStoreError: the store is damaged.

    """

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        client_id: int,
        federation: str,
        *,
        store: Store | None = None,
        device: str = "cpu",
    ) -> None:
        environment = experiment.environment
        if not 0 <= client_id < environment.clients:
            raise ValueError(
                f"client must be in 0 ... {environment.clients - 1}, because the experiment has"
                f" {environment.clients} clients, got {client_id}"
            )
        task = get_task(experiment.task)
        seed = experiment.seed
        model = task.flat_model(seed, device)
        require_shared_buffers(model, "mqtt")
        split = environment.split_dataset(dataset, seed)
        privacy = None if experiment.privacy is None else experiment.privacy.local()
        client = Client(
            client_id,
            experiment.make_method(),
            model.layout,
            model.weights,
            federation=federation,
            seed=seed,
            carried=model.carried,
            privacy=privacy,
        )
        # The number of examples is private, too.
        self.num_examples = int(split.sizes[client_id]) if privacy is None else 1
        examples = task.examples(dataset, device)
        local = make_local_training(
            model,
            examples,
            split,
            client.terms,
            environment,
            experiment.sgd,
            seed,
            optimizer=task.optimizer,
            schedule=task.schedule,
        )
        self._trainer = choose_trainer(local, workers=0)
        self.client: ClientLike = client if store is None else DurableClient(client, store)
        self._session = ClientSession(client_id, client.terms.method)
        self._outcome: Outcome | None = None  # of the training that is not uploaded yet
        self._path = None if store is None else store.path / "training.safetensors"
        if store is not None and self._path is not None:
            self._recover(self._path, accept_loss=store.accept_loss)

    def train(self, weights: Vector, round: int) -> Delta:
        """Train for a round; ``uploaded`` commits the result."""
        jobs = [self._session.job(round)]
        (self._outcome,) = self._trainer.train(weights, jobs, self.client.carried)
        return Delta(self._outcome.delta, self._outcome.moments, self._outcome.carried)

    def uploaded(self, sent: Sent) -> None:
        """Commit the last training, whose upload has been made."""
        if self._outcome is None:
            raise LocalProtocolError("no training precedes this upload: call train first")
        self._session.commit(self._outcome, sent)
        self._outcome = None
        self._save()

    def _save(self) -> None:
        if self._path is not None:
            write_atomic(self._path, self._session.snapshot().chunks(), private=True)

    def _recover(self, path: Path, *, accept_loss: bool) -> None:
        try:
            if path.exists():
                self._session.restore(Snapshot.from_bytes(path.read_bytes()))
            elif self.client.pending is None and self.client.residual.any():
                # Every upload is followed by a write of this file.
                raise DecodeError("it is missing, although the client has uploaded")
        except DecodeError as error:
            if not accept_loss:
                raise DamagedStoreError(
                    f"{path} is damaged ({error}); remove {path.parent}, or continue without the"
                    " state of the training with --accept-loss"
                ) from error
        if self._session.recover(self.client, self._trainer):
            self._save()
