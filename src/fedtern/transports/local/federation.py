"""A whole federation on one machine, with real messages in both directions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtern.core.analytic import analytic_bits
from fedtern.core.carried import NO_VALUES, Values, changed_values, check_carried
from fedtern.core.feedback import State
from fedtern.core.methods import Method
from fedtern.core.protocol import Broadcast, Client, PrivacySpent, Sent, Server, Uplink
from fedtern.core.protocol.catchup import read_server_message
from fedtern.core.snapshot import Snapshot
from fedtern.core.updates import count_entries
from fedtern.data import Split
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import ClientSession, Job, Outcome
from fedtern.federation.meter import Meter, Traffic
from fedtern.privacy import PrivacySettings
from fedtern.runs import Evaluation
from fedtern.runs.metrics import START
from fedtern.runs.status import MOST_CLIENTS, Clients, Lag, Status
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel
from fedtern.training.optimizers import OptimizerFactory, Schedule
from fedtern.transports.local.client_states import ClientStates, Vectors
from fedtern.transports.local.trainers import (
    choose_trainer,
    make_local_training,
    require_no_local_buffers,
)

_FEEDBACK = "feedback."  # prefix of the arrays of a client's feedback state
_VELOCITY = "training.velocity"
_STATE = "training.state"
_WITNESS = (1 << 64) - 1  # client id of the witness


class UploadSize(NamedTuple):
    """Size of one upload.

    Attributes:
        nbytes: Bytes of the message.
        paper_bits: Bits according to the paper's formula.

    """

    nbytes: int
    paper_bits: float


class Exchange(NamedTuple):
    """Sizes of the messages of one cohort in one round, in the order of the cohort.

    Attributes:
        downloads: Bytes that each client downloaded; 0 for a client that was up to date.
        uploads: Size of each client's upload.

    """

    downloads: list[int]
    uploads: list[UploadSize]


class Federation:
    """A server and many clients that share one copy of the model.

    Replicas are bit-exact: all clients that are up to date hold the same weights. One client
    without data, the witness, receives every broadcast and holds these weights for all. Every
    client has its own residual, its own momentum and its own position in its data. Before it
    trains, it downloads the rounds that it missed; the messages are encoded and decoded as in any
    other transport.

    An engine that trains elsewhere overrides ``exchange`` and ``close``, and sets ``resumable`` to
    False if the clients' states are not in this process. ``FlowerFederation`` is an example.

    Args:
        model: The initial model.
        examples: Training and test examples.
        split: The training examples of each client.
        method: What clients and server send.
        environment: The number of clients, their participation and batch size.
        sgd: Hyperparameters of each client's SGD.
        seed: Random seed.
        memory_bytes: Memory for residuals and momentum; the rest is kept on disk.
        spill_directory: Directory of the file for that rest.
        workers: Processes that train in parallel; by default as many as are useful.
        optimizer: Makes an optimiser of torch, which replaces SGD.
        schedule: Factor of the learning rate at each iteration.
        privacy: Differential privacy, with noise from the seed.

    """

    resumable: ClassVar[bool] = True
    """Whether a snapshot contains the whole state, so that ``restore`` can continue from it."""

    def __init__(
        self,
        model: FlatModel,
        examples: tuple[Examples, Examples],
        split: Split,
        method: Method,
        environment: Environment,
        sgd: Sgd,
        *,
        seed: int = 0,
        memory_bytes: int | None = None,
        spill_directory: Path | None = None,
        workers: int | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        privacy: PrivacySettings | None = None,
    ) -> None:
        if privacy is not None:
            require_no_local_buffers(model)
        self.environment = environment
        self.split = split
        self.seed = seed
        self.model = model
        carried = model.carried
        self.server = Server(
            model.weights,
            method,
            model.layout,
            seed=seed,
            carried=carried,
            privacy=None if privacy is None else privacy.central(environment.cohort_size, seed),
            cap=None,  # simulated clients do not lie, and methods are compared as published
        )
        self._local_privacy = None if privacy is None else privacy.local(seed)
        if self._local_privacy is not None:
            self._local_privacy.check(self.server.terms)
        self._local = make_local_training(
            model,
            examples,
            split,
            self.server.terms,
            environment,
            sgd,
            seed,
            optimizer=optimizer,
            schedule=schedule,
        )
        self.trainer = choose_trainer(self._local, workers)
        self.witness = Client(_WITNESS, method, model.layout, model.weights, carried=carried)
        self.meter = Meter()
        self._states = ClientStates(memory_bytes, spill_directory)
        self._sizes = split.sizes
        self._rounds = np.zeros(len(split), np.int64)  # round of each client's replica
        self._batches = np.zeros(len(split), np.int64)  # batches that each client has trained on
        self._uploads = np.zeros(len(split), np.int64)  # uploads that each client has made
        self._rounds_timed = _FirstTime(self.meter)
        self._evaluations_timed = _FirstTime(self.meter)

    @property
    def iteration(self) -> int:
        """Local iterations of a client that takes part in every round."""
        return self.server.round * self.server.terms.method.local_steps

    @property
    def privacy_spent(self) -> PrivacySpent | None:
        """The largest privacy loss of any client so far; None without privacy."""
        if self._local_privacy is not None:
            return self._local_privacy.spent(int(self._uploads.max(initial=0)))
        return self.server.privacy_spent

    @property
    def allows_round(self) -> bool:
        """Whether the privacy budget allows another round."""
        if self._local_privacy is not None:
            return self._local_privacy.allows(int(self._uploads.max(initial=0)) + 1)
        return self.server.allows_round()

    @property
    def clients_on_disk(self) -> int:
        """Number of clients whose residual and momentum are on disk."""
        return self._states.num_spilled

    def step(self) -> None:
        """Run one round: the cohort downloads, trains and uploads, and the server broadcasts."""
        with self._rounds_timed:
            self._step()

    def _step(self) -> None:
        method = self.server.terms.method
        layout = self.server.terms.layout
        cohort = self.environment.cohort(self.seed, self.server.round)
        lags = [self.server.round - int(self._rounds[i]) for i in cohort]
        downloads, uploads = self.exchange(cohort)
        self._rounds[cohort] = self.server.round
        with self.meter.phase("aggregate"):
            broadcast = self.finish_round()
        with self.meter.phase("decode"):
            self.witness.receive(broadcast.data)
        paper_up = sum(upload.paper_bits for upload in uploads)
        paper_down = sum(analytic_bits(method.down, layout, lag) for lag in lags if lag)
        self.meter.up.add([upload.nbytes for upload in uploads], paper_up)
        self.meter.down.add(downloads, paper_down)

    def finish_round(self) -> Broadcast:
        """Aggregate what the cohort has uploaded, and return the broadcast."""
        return self.server.finish_round()

    def exchange(self, cohort: list[int]) -> Exchange:
        """Let the clients of a cohort download, train and upload.

        When it returns, the server has accepted an upload from every client of the cohort.

        Args:
            cohort: The clients of this round.

        Returns:
            The sizes of their messages.

        """
        # Worker processes, if there are any, have started when train() returns. This process
        # alternates between downloads and uploads in small steps, so that no worker has to wait
        # for a long piece of its work.
        outcomes = self.trainer.train(
            self.witness.weights, (self.job(i) for i in cohort), self.witness.carried
        )
        remaining = (self.download(i) for i in cohort)
        downloads = list(islice(remaining, self.trainer.together))
        uploads = []
        for i in cohort:
            with self.meter.phase("train"):
                outcome = next(outcomes)
            uploads.append(self._upload(i, outcome))
            downloads += islice(remaining, 1)
        return Exchange(downloads, uploads)

    def download(self, i: int) -> int:
        """Bring a client up to date and return the size of the message."""
        since = int(self._rounds[i])
        if since == self.server.round:
            return 0
        with self.meter.phase("encode"):
            catch_up = self.server.download(i, since)
        with self.meter.phase("decode"):
            read_server_message(catch_up.data, self.server.terms)
        return len(catch_up.data)

    def _training_session(self, i: int, vectors: Vectors) -> ClientSession:
        """Return a client's training session in its state after the last upload."""
        method = self.server.terms.method
        return ClientSession(
            i, method, int(self._batches[i]), vectors.get(_VELOCITY), vectors.get(_STATE)
        )

    def job(self, i: int) -> Job:
        """Return the training of a client in this round."""
        with self.meter.phase("states"):
            vectors = self._states.get(i)
        return self._training_session(i, vectors).job(self.server.round)

    def uplink(self, i: int) -> Uplink:
        """Return a client's link to the server in its state after the last upload."""
        with self.meter.phase("states"):
            vectors = self._states.get(i)
        feedback = {
            name.removeprefix(_FEEDBACK): vector
            for name, vector in vectors.items()
            if name.startswith(_FEEDBACK)
        }
        privacy = self._local_privacy
        return Uplink(i, self.server.terms, self.seed, feedback, privacy=privacy)

    def commit(self, i: int, outcome: Outcome, sent: Sent, feedback: State) -> None:
        """Keep a client's new state.

        Args:
            i: The client.
            outcome: The outcome of its training.
            sent: The upload that was made of it.
            feedback: The state of its link after the upload.

        """
        with self.meter.phase("states"):
            vectors = self._states.get(i)
        session = self._training_session(i, vectors)
        session.commit(outcome, sent)
        self._batches[i] = session.position
        kept: Vectors = {f"{_FEEDBACK}{name}": vector for name, vector in feedback.items()}
        if session.velocity is not None:
            kept[_VELOCITY] = session.velocity
        if session.state is not None:
            kept[_STATE] = session.state
        with self.meter.phase("states"):
            self._states.put(i, kept)

    def _upload(self, i: int, outcome: Outcome) -> UploadSize:
        """Upload the outcome of a client's training and keep the client's new state."""
        method = self.server.terms.method
        uplink = self.uplink(i)
        changed = self._changed_tensors(outcome)
        with self.meter.phase("compress"):
            update, after = uplink.compress(outcome.delta, self.server.round, outcome.moments)
        with self.meter.phase("encode"):
            sent = uplink.seal(update, after, self.witness.stamp, self.server.round, changed)
        with self.meter.phase("decode"):
            self.server.receive(i, sent.data, num_examples=self._sizes[i])
        self.commit(i, outcome, sent, after)
        self._uploads[i] += 1
        paper_bits = analytic_bits(method.up, self.server.terms.layout, sent=count_entries(update))
        return UploadSize(len(sent.data), paper_bits)

    def _changed_tensors(self, outcome: Outcome) -> Values:
        """Return the carried tensors that a client's training has changed."""
        if outcome.carried is None:
            return NO_VALUES
        values = check_carried(outcome.carried, self.server.terms.layout)
        return changed_values(values, self.witness.carried)

    @property
    def test_examples(self) -> Examples:
        """The examples of evaluations."""
        return self._local.test_examples

    def close(self) -> None:
        """End the worker processes, if there are any."""
        self.trainer.close()

    def evaluate(self) -> Evaluation:
        """Evaluate the model of the clients and return it with the traffic and time so far."""
        with self._evaluations_timed, self.meter.phase("evaluate"):
            scores = self.trainer.evaluate(self.witness.weights, self._buffers())
        up = self.meter.up
        down = self.meter.down
        spent = self.privacy_spent
        return Evaluation(
            iteration=self.iteration,
            round=self.server.round,
            loss=scores.loss,
            accuracy=scores.metrics.get("accuracy", math.nan),
            up_bytes=up.total,
            down_bytes=down.total,
            up_bytes_mean=up.mean,
            down_bytes_mean=down.mean,
            up_bytes_paper=up.paper,
            down_bytes_paper=down.paper,
            dense_bytes=self.server.terms.layout.nbytes * self.iteration,
            seconds=dict(self.meter.seconds),
            metrics=scores.metrics,
            privacy=spent.to_json() if spent else {},
        )

    def status(self) -> Status:
        """Return the traffic, the time and the clients of the last round, without an evaluation."""
        lags = self.server.round - self._rounds
        # Clients that never trained have no weights that could be outdated.
        lags[self._batches == 0] = 0
        last = np.argsort(-lags, kind="stable")[:MOST_CLIENTS]
        return Status(
            iteration=self.iteration,
            round=self.server.round,
            up_bytes=self.meter.up.total,
            down_bytes=self.meter.down.total,
            up_bytes_mean=self.meter.up.mean,
            down_bytes_mean=self.meter.down.mean,
            seconds=dict(self.meter.seconds),
            clients=Clients(
                total=len(self._sizes),
                cohort=self.environment.cohort_size,
                present=len(self._sizes),
                behind=[Lag(int(i), int(lags[i])) for i in last if lags[i] > 1],
            ),
        )

    def _buffers(self) -> dict[str, NDArray[Any]]:
        """Return the buffers of an evaluation: carried ones, and means of those on the clients."""
        if not self._local.model.local_buffers:
            return self.witness.carried
        return self._local.mean_buffers(
            vectors[_STATE] for _, vectors in self._states.items() if _STATE in vectors
        )

    def trained_model(self) -> FlatModel:
        """Return the model of this process with the clients' current weights and buffers."""
        self.model.load(self.witness.weights)
        self.model.load_buffers(self._buffers())
        return self.model

    def snapshot(self) -> Snapshot:
        """Return the whole state, for ``restore``."""
        server = self.server.snapshot()
        witness = self.witness.snapshot()
        arrays: dict[str, Any] = {
            **{f"server.{name}": array for name, array in server.arrays.items()},
            **{f"witness.{name}": array for name, array in witness.arrays.items()},
            "rounds": self._rounds.copy(),
            "batches": self._batches.copy(),
        }
        if self._local_privacy is not None:
            arrays["uploads"] = self._uploads.copy()
        for client, vectors in self._states.items():
            arrays |= {f"client.{client}.{name}": vector for name, vector in vectors.items()}
        meta = {"server": server.meta, "witness": witness.meta, "meter": asdict(self.meter)}
        return Snapshot(arrays, meta)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from the state of a snapshot.

        Raises:
            ValueError: The snapshot is of another federation.
            KeyError: The snapshot is incomplete.

        """
        for name, part in (("server", self.server), ("witness", self.witness)):
            part.restore(Snapshot(snapshot.arrays_with_prefix(f"{name}."), snapshot.meta[name]))
        self._rounds = snapshot.arrays["rounds"].copy()
        self._batches = snapshot.arrays["batches"].copy()
        if self._local_privacy is not None:
            self._uploads = snapshot.arrays["uploads"].copy()
        self._states.close()
        self._states = ClientStates(self._states.limit, self._states.directory)
        for client, vectors in _vectors_by_client(snapshot):
            self._states.put(client, vectors)
        meter = snapshot.meta["meter"]
        self.meter = Meter(Traffic(**meter["up"]), Traffic(**meter["down"]))
        self.meter.seconds.update(meter["seconds"])
        self._rounds_timed = _FirstTime(self.meter)
        self._evaluations_timed = _FirstTime(self.meter)


class _FirstTime:
    """Context manager of repeated work that moves the cost of the first time to its own phase.

    The first round of a process starts workers and loads parts of libraries. No method should pay
    for that, least of all only the first method of a comparison. The difference to the second time
    is the cost of the start.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._times = 0
        self._before: dict[str, float] = {}
        self._first: dict[str, float] = {}

    def __enter__(self) -> None:
        if self._times < 2:
            self._before = dict(self._meter.seconds)

    def __exit__(self, *_error: object) -> None:
        self._times += 1
        if self._times > 2:
            return
        total = self._meter.seconds
        spent = {name: total[name] - self._before.get(name, 0.0) for name in total}
        if self._times == 1:
            self._first = spent
            return
        for name, seconds in self._first.items():
            excess = max(seconds - spent.get(name, 0.0), 0.0)
            total[name] -= excess
            total[START] = total.get(START, 0.0) + excess


def _vectors_by_client(snapshot: Snapshot) -> Iterator[tuple[int, Vectors]]:
    """Yield each client with copies of its vectors.

    One client at a time: the vectors of all clients together may not fit into memory.
    """
    arrays = snapshot.arrays_with_prefix("client.")
    # Sorted, because a file has arrays of different types in different places.
    names_of_clients = sorted(arrays, key=_client_in)
    for client, names in groupby(names_of_clients, key=_client_in):
        yield client, {name.partition(".")[2]: arrays[name].copy() for name in names}


def _client_in(name: str) -> int:
    """Return the client that a name such as ``5.feedback.residual`` begins with."""
    return int(name.partition(".")[0])


def advance(federation: Federation, iterations: int, evaluate_every: int) -> Evaluation | None:
    """Run one round, and evaluate if it passes a multiple of ``evaluate_every`` or the end.

    A round is never split: with several local steps it may go past such a multiple, or past
    ``iterations``.

    Args:
        federation: The federation to advance.
        iterations: Local iterations in total.
        evaluate_every: Local iterations between evaluations.

    Returns:
        The evaluation; None if none was due.

    """
    before = federation.iteration // evaluate_every
    federation.step()
    ended = federation.iteration >= iterations or not federation.allows_round
    due = ended or federation.iteration // evaluate_every > before
    return federation.evaluate() if due else None


def evaluations(
    federation: Federation, iterations: int, evaluate_every: int
) -> Iterator[Evaluation]:
    """Train to the end and yield each evaluation; see ``advance`` for the arguments."""
    while federation.iteration < iterations and federation.allows_round:
        if (evaluation := advance(federation, iterations, evaluate_every)) is not None:
            yield evaluation
