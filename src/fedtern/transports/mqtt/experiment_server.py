"""A named experiment on a broker: its server, and a run's directory that reports can be made of."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from fedtern.core.analytic import bits
from fedtern.core.errors import DecodeError, FedternError, RunError
from fedtern.core.protocol import Server
from fedtern.data import Dataset
from fedtern.federation.interfaces import ServerLike
from fedtern.runs import Evaluation, Experiment, open_run
from fedtern.store import DurableServer, Store
from fedtern.training.flat import FlatModel
from fedtern.training.tasks import get_task
from fedtern.transports.mqtt.coordinator import Coordinator
from fedtern.transports.mqtt.stats import Stats

log = logging.getLogger("fedtern.mqtt")


def describe(experiment: Experiment) -> bytes:
    """An experiment as it is kept under the topic ``about``."""
    return json.dumps(experiment.to_json()).encode()


def understand(about: bytes) -> Experiment:
    """Undo ``describe``."""
    try:
        return Experiment.from_json(json.loads(about))
    except (KeyError, TypeError, ValueError, FedternError) as error:
        raise DecodeError(f"what this federation is about cannot be read: {error}") from error


class ExperimentServer:
    """Tests the model every so often and keeps a run's directory.

    Pass ``server`` and ``stats`` to ``serve`` and ``moved`` as its ``on_round``, and call
    ``conclude`` when it has ended. Of what goes down, an announcement counts once for everybody
    present; the means are those over a cohort (up) and over the present (down).
    """

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        federation: str,
        path: Path,
        *,
        store: Store | None = None,
        command: str = "",
        progress: Callable[[Evaluation, Coordinator], None] = lambda _found, _coordinator: None,
    ) -> None:
        task, seed = get_task(experiment.task), experiment.seed
        split = experiment.environment.split_dataset(dataset, seed)
        self.experiment, self.progress, self.stats = experiment, progress, Stats()
        self.run = open_run(experiment, path.parent, path=path, command=command, engine="mqtt")
        self.run.create()
        self._held = ExitStack()
        self._held.enter_context(self.run.locked())
        self._model = FlatModel(task.build(seed))
        self._test = task.examples(dataset)[1]
        core = Server(
            self._model.weights,
            experiment.make_method(),
            self._model.layout,
            federation=federation,
            seed=seed,
        )
        self.terms = core.terms
        self.server: ServerLike = core if store is None else DurableServer(core, store)
        self.run.write_setup(split, dataset, self._model.layout.size)
        earlier = self.run.resume_metrics(on_damage=_log_damage)
        self._before = max(earlier, key=lambda r: r.round, default=None)
        self._up = self._down = 0.0  # means
        self._total = self._seen_up = self._seen_down = self._seen_catch_up = 0
        self._tested, self._began = 0.0, time.monotonic()

    def close(self) -> None:
        """Let another process have the run's directory."""
        self._held.close()

    @property
    def rounds(self) -> int:
        """How many the experiment has."""
        return -(-self.experiment.iterations // self.terms.method.local_steps)

    @property
    def iteration(self) -> int:
        """How many local iterations a client that always takes part has made."""
        return self.server.round * self.terms.method.local_steps

    async def moved(self, coordinator: Coordinator) -> None:
        """A round has ended: count what it took, and test the model if it is time to."""
        stats, present = self.stats, max(self.stats.present, 1)
        announced = stats.announced_bytes - self._seen_down
        answered = stats.catch_up_bytes - self._seen_catch_up
        self._up += (stats.up_bytes - self._seen_up) / max(stats.cohort, 1)
        self._down += announced + answered / present
        self._total += announced * present + answered
        self._seen_up, self._seen_down = stats.up_bytes, stats.announced_bytes
        self._seen_catch_up = stats.catch_up_bytes
        every, steps = self.experiment.evaluate_every, self.terms.method.local_steps
        if coordinator.rounds.ended or self.iteration // every > (self.iteration - steps) // every:
            # In a thread: the broker must not think that nobody is here any more.
            found = await asyncio.to_thread(self._evaluate)
            self.run.record(found)
            if coordinator.rounds.ended:
                self._finish()
            self.progress(found, coordinator)

    def conclude(self) -> None:
        """The federation has ended; perhaps a process was stopped before it could say so."""
        if not self.run.is_finished():
            found = self.run.evaluations()
            if not found or found[-1].iteration < self.iteration:
                self.run.record(self._evaluate())
            self._finish()

    def _finish(self) -> None:
        self.run.finish(self.terms.layout.unflatten(self.server.weights))

    def _evaluate(self) -> Evaluation:
        begin = time.monotonic()
        self._model.load(self.server.weights)
        loss, accuracy = self._model.evaluate(self._test)
        self._tested += time.monotonic() - begin
        method, layout, before = self.terms.method, self.terms.layout, self._before
        seconds = {"mqtt": time.monotonic() - self._began - self._tested, "evaluate": self._tested}
        if before is not None:
            seconds = {k: v + before.seconds.get(k, 0.0) for k, v in seconds.items()}
        return Evaluation(
            iteration=self.iteration,
            round=self.server.round,
            loss=loss,
            accuracy=accuracy,
            up_bytes=self.stats.up_bytes + (before.up_bytes if before else 0),
            down_bytes=self._total + (before.down_bytes if before else 0),
            up_bytes_mean=self._up + (before.up_bytes_mean if before else 0),
            down_bytes_mean=self._down + (before.down_bytes_mean if before else 0),
            up_bytes_paper=self.server.round * bits(method.up, layout) / 8,
            down_bytes_paper=self.server.round * bits(method.down, layout) / 8,
            dense_bytes=4 * layout.size * self.iteration,
            seconds=seconds,
        )


def _log_damage(error: RunError) -> None:
    log.warning("dropped a line that cannot be read: %s", error)
