"""A client of a named experiment: its share of the data, and what it remembers between rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedtern.core.errors import StoreError
from fedtern.core.layout import Vector
from fedtern.core.protocol import Client, Upload
from fedtern.core.snapshot import Snapshot
from fedtern.data import Dataset
from fedtern.federation.interfaces import ClientLike
from fedtern.runs import Experiment
from fedtern.store import DurableClient, Store
from fedtern.store.files import write_atomic
from fedtern.training.flat import FlatModel
from fedtern.training.local_training import Job
from fedtern.training.tasks import get_task
from fedtern.transports.local.trainers import choose_trainer, prepare
from fedtern.transports.mqtt.client_loop import Delta


class ExperimentClient:
    """Trains as the local engine would train the same client, to the same bits.

    (With one thread of torch, as the commands have it: sums depend on how work is shared out.)

    Pass ``client``, ``train``, ``uploaded`` and ``examples`` to ``join``. With a ``store``, it goes
    on after a kill where it was, in its data and with its momentum, too.
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
                f"client must be in 0 ... {environment.clients - 1}, as the data is dealt to"
                f" {environment.clients}, got {client_id}"
            )
        task, seed = get_task(experiment.task), experiment.seed
        model = FlatModel(task.build(seed), device)
        split = environment.deal(dataset, seed)
        core = Client(
            client_id,
            experiment.make_method(),
            model.layout,
            model.weights,
            federation=federation,
            seed=seed,
        )
        self.terms, self.examples = core.terms, int(split.sizes[client_id])
        examples, sgd = task.examples(dataset, device), experiment.sgd
        local = prepare(model, examples, split, core.terms, environment, sgd, seed)
        self._trainer = choose_trainer(local, workers=0)
        self._path = None if store is None else store.path / "training.safetensors"
        self._round, self._position = -1, 0  # after which it is how many batches into its data
        self._velocity: Vector | None = None
        self.client: ClientLike = core
        if store is not None:
            self.client = DurableClient(core, store)
            self._recover(store.path / "training.safetensors")

    def train(self, weights: Vector, round: int) -> Delta:
        """One turn; it has been had when ``uploaded`` is told what came of it."""
        job = Job(self.client.client_id, self._position, round, self._velocity)
        outcome = next(iter(self._trainer.train(weights, [job])))
        self._turn = outcome.velocity
        return Delta(outcome.delta, outcome.moments)

    def uploaded(self, data: bytes) -> None:
        """What was learned is on its way: go on from there."""
        upload, velocity = Upload.open(data, self.terms), self._turn
        if velocity is not None:
            self.terms.method.mask_momentum(velocity, upload.update)
        self._velocity, self._round = velocity, upload.head.round
        self._position += self.terms.method.local_steps
        if self._path is not None:
            arrays: dict[str, Any] = {} if velocity is None else {"velocity": velocity}
            meta = {"round": self._round, "position": self._position}
            write_atomic(self._path, Snapshot(arrays, meta).chunks())

    def _recover(self, path: Path) -> None:
        if path.exists():
            try:
                found = Snapshot.from_bytes(path.read_bytes())
                self._round, self._position = found.meta["round"], found.meta["position"]
            except (KeyError, ValueError) as error:
                raise StoreError(f"{path} is damaged ({error}): remove {path.parent}") from error
            velocity = found.arrays.get("velocity")
            self._velocity = None if velocity is None else velocity.copy()
        if self.client.pending is not None and self._round < self.client.round:
            # A kill came between the two files: the same turn leads to the same place again.
            self.train(self.client.weights.copy(), self.client.round)
            self.uploaded(self.client.pending)
