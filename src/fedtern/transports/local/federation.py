"""A whole federation in one process, on real messages in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedtern.core.analytic import bits
from fedtern.core.methods import Method
from fedtern.core.protocol import Client, Server, Uplink
from fedtern.core.protocol.catchup import open_for_client
from fedtern.core.snapshot import Snapshot
from fedtern.core.updates import count_entries
from fedtern.data import Split
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import ClientSession, Job, Outcome
from fedtern.federation.meter import Meter, Traffic
from fedtern.runs import Evaluation
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel
from fedtern.transports.local.client_states import States, Vectors
from fedtern.transports.local.trainers import choose_trainer, prepare

_FEEDBACK = "feedback."  # prefix of the arrays of a client's feedback state
_VELOCITY = "training.velocity"
_WITNESS = (1 << 64) - 1  # the id of a client that only listens


class Federation:
    """A server and many clients that share one copy of the model.

    Replicas are bit-exact, so a client that has caught up holds the same weights as everybody: one
    client that hears every broadcast keeps them for all. Each client has its own residual, its own
    momentum and its own place in its data; and it pays for what it missed, in messages that are
    written and read like any other.
    """

    resumable: ClassVar[bool] = True  # whether a snapshot holds all that there is to know

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
    ) -> None:
        self.environment, self.split, self.seed = environment, split, seed
        self.server = Server(model.weights, method, model.layout, seed=seed)
        local = prepare(model, examples, split, self.server.terms, environment, sgd, seed)
        self.trainer = choose_trainer(local, workers)
        self.witness = Client(_WITNESS, method, model.layout, model.weights)
        self.meter = Meter()
        self._states = States(memory_bytes, spill_directory)
        self._sizes = split.sizes
        self._rounds = np.zeros(len(split), np.int64)  # that each client's replica is at
        self._batches = np.zeros(len(split), np.int64)  # that each client has trained on

    @property
    def iteration(self) -> int:
        """How many local iterations a client that always takes part has made."""
        return self.server.round * self.server.terms.method.local_steps

    def step(self) -> None:
        """One round: everybody in the cohort catches up, trains and uploads; the server answers."""
        method, layout = self.server.terms.method, self.server.terms.layout
        cohort = self.environment.cohort(self.seed, self.server.round)
        lags = [self.server.round - int(self._rounds[i]) for i in cohort]
        down, up = self.exchange(cohort)
        self._rounds[cohort] = self.server.round
        with self.meter.phase("aggregate"):
            broadcast = self.server.finish_round()
        with self.meter.phase("decode"):
            self.witness.receive(broadcast.data)
        self.meter.up.add([size for size, _ in up], sum(paper for _, paper in up))
        self.meter.down.add(down, sum(bits(method.down, layout, lag) for lag in lags if lag))

    def exchange(self, cohort: list[int]) -> tuple[list[int], list[tuple[int, float]]]:
        """Let a cohort catch up, train and upload; their bytes down, and up with the paper's."""
        # Other processes, if there are any, have begun when this returns. What is done beside them
        # is done bit by bit, or one of them would be held up by all of it.
        outcomes = self.trainer.train(self.witness.weights, (self._job(i) for i in cohort))
        downloads = (self._download(i) for i in cohort)
        down, up = list(islice(downloads, self.trainer.together)), []
        for i in cohort:
            with self.meter.phase("train"):
                trained = next(outcomes)
            up.append(self._upload(i, trained))
            down += islice(downloads, 1)
        return down, up

    def _download(self, i: int) -> int:
        """Bring a client up to date; the bytes that took."""
        since = int(self._rounds[i])
        if since == self.server.round:
            return 0
        with self.meter.phase("encode"):
            missed = self.server.download(i, since)
        with self.meter.phase("decode"):
            open_for_client(missed.data, self.server.terms)
        return len(missed.data)

    def _training_session(self, i: int, vectors: Vectors) -> ClientSession:
        """Return a client's training session as it was after its last upload."""
        method = self.server.terms.method
        return ClientSession(i, method, int(self._batches[i]), vectors.get(_VELOCITY))

    def _job(self, i: int) -> Job:
        with self.meter.phase("states"):
            vectors = self._states.get(i)
        return self._training_session(i, vectors).job(self.server.round)

    def _upload(self, i: int, trained: Outcome) -> tuple[int, float]:
        """Upload the outcome of a client's training; return its bytes and the paper's bits."""
        method = self.server.terms.method
        with self.meter.phase("states"):
            vectors = self._states.get(i)
        feedback = {
            name.removeprefix(_FEEDBACK): vector
            for name, vector in vectors.items()
            if name.startswith(_FEEDBACK)
        }
        uplink = Uplink(i, self.server.terms, self.seed, feedback)
        with self.meter.phase("compress"):
            update, after = uplink.compress(trained.delta, self.server.round, trained.moments)
        with self.meter.phase("encode"):
            sent = uplink.seal(update, after, self.witness.stamp, self.server.round)
        with self.meter.phase("decode"):
            self.server.receive(i, sent.data, num_examples=self._sizes[i])
        session = self._training_session(i, vectors)
        session.commit(trained, sent)
        self._batches[i] = session.position
        kept: Vectors = {f"{_FEEDBACK}{name}": vector for name, vector in after.items()}
        if session.velocity is not None:
            kept[_VELOCITY] = session.velocity
        with self.meter.phase("states"):
            self._states.put(i, kept)
        return len(sent.data), bits(method.up, self.server.terms.layout, sent=count_entries(update))

    def close(self) -> None:
        """End the processes that train, if there are any."""
        self.trainer.close()

    def evaluate(self) -> Evaluation:
        """Test the model as the clients have it."""
        with self.meter.phase("evaluate"):
            loss, accuracy = self.trainer.evaluate(self.witness.weights)
        up, down = self.meter.up, self.meter.down
        return Evaluation(
            iteration=self.iteration,
            round=self.server.round,
            loss=loss,
            accuracy=accuracy,
            up_bytes=up.total,
            down_bytes=down.total,
            up_bytes_mean=up.mean,
            down_bytes_mean=down.mean,
            up_bytes_paper=up.paper,
            down_bytes_paper=down.paper,
            dense_bytes=4 * self.server.terms.layout.size * self.iteration,
            seconds=dict(self.meter.seconds),
        )

    def snapshot(self) -> Snapshot:
        """Everything, for ``restore``."""
        server, witness = self.server.snapshot(), self.witness.snapshot()
        arrays: dict[str, Any] = {
            **{f"server.{name}": array for name, array in server.arrays.items()},
            **{f"witness.{name}": array for name, array in witness.arrays.items()},
            "rounds": self._rounds.copy(),
            "batches": self._batches.copy(),
        }
        for client, vectors in self._states.items():
            arrays |= {f"client.{client}.{name}": vector for name, vector in vectors.items()}
        meta = {"server": server.meta, "witness": witness.meta, "meter": asdict(self.meter)}
        return Snapshot(arrays, meta)

    def restore(self, snapshot: Snapshot) -> None:
        """Become what ``snapshot`` was taken of."""
        for part in ("server", "witness"):
            arrays = snapshot.starting_with(f"{part}.")
            getattr(self, part).restore(Snapshot(arrays, snapshot.meta[part]))
        self._rounds = snapshot.arrays["rounds"].copy()
        self._batches = snapshot.arrays["batches"].copy()
        limit, directory = self._states.limit, self._states.directory
        self._states.close()
        self._states = States(limit, directory)
        for client, vectors in _by_client(snapshot):
            self._states.put(client, vectors)
        meter = snapshot.meta["meter"]
        self.meter = Meter(Traffic(**meter["up"]), Traffic(**meter["down"]))
        self.meter.seconds.update(meter["seconds"])


def _by_client(snapshot: Snapshot) -> Iterator[tuple[int, Vectors]]:
    """Copies of each client's vectors, one client at a time."""
    names = snapshot.starting_with("client.")
    for client, group in groupby(names, key=lambda name: name.partition(".")[0]):
        yield int(client), {name.partition(".")[2]: names[name].copy() for name in group}


def advance(federation: Federation, iterations: int, evaluate_every: int) -> Evaluation | None:
    """Play a round; say where things stand if it has passed a multiple of ``evaluate_every``.

    A round is never split: it may go past such a multiple, or past the end, which is one too.
    """
    before = federation.iteration // evaluate_every
    federation.step()
    ended = federation.iteration >= iterations
    due = ended or federation.iteration // evaluate_every > before
    return federation.evaluate() if due else None


def rounds_of(federation: Federation, iterations: int, evaluate_every: int) -> Iterator[Evaluation]:
    """Train for a number of iterations and say where things stand every so often."""
    while federation.iteration < iterations:
        if (found := advance(federation, iterations, evaluate_every)) is not None:
            yield found
