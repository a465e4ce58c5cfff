"""The server of an experiment: evaluates the model and writes a run directory."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fedtern.core.analytic import analytic_bits
from fedtern.core.errors import DecodeError, FedternError, LocalProtocolError, RunError
from fedtern.core.methods import MethodSpec, method_from_spec
from fedtern.core.protocol import DEFAULT_CAP, NormCap, Server
from fedtern.data import Dataset
from fedtern.data.metric_spec import MetricSpec
from fedtern.federation.interfaces import ServerLike
from fedtern.privacy.secure import FIRST_QUANTUM
from fedtern.runs import Evaluation, Experiment, open_run
from fedtern.runs.callbacks import check_callbacks, notify, started
from fedtern.runs.method_registry import known_methods
from fedtern.runs.status import FINISHED, MOST_CLIENTS, STOPPED, Clients, Lag, Status, StatusFile
from fedtern.store import DurableServer, Store
from fedtern.store.files import write_atomic
from fedtern.training.tasks import get_task
from fedtern.transports.local.trainers import require_shared_buffers
from fedtern.transports.mqtt.server import MqttServer
from fedtern.transports.mqtt.stats import Stats

log = logging.getLogger("fedtern.mqtt")

Progress = Callable[[Evaluation, MqttServer], None]


def encode_experiment(experiment: Experiment) -> bytes:
    """Return an experiment, with the spec of its method, as the payload of the topic ``about``."""
    spec = experiment.make_method().spec.to_json()
    return json.dumps({**experiment.to_json(), "method_spec": spec}).encode()


def decode_experiment(payload: bytes) -> Experiment:
    """Reverse ``encode_experiment``.

    Raises:
        DecodeError: the payload is malformed, or its method is unknown here or has another version.

    """
    try:
        values = json.loads(payload)
        experiment = Experiment.from_json(values)
        method = method_from_spec(MethodSpec.from_json(values["method_spec"]), known_methods())
        if method != experiment.make_method():
            raise ValueError(f"its method is not {method.spec.to_text()}")
        return experiment
    except (KeyError, TypeError, ValueError, FedternError) as error:
        raise DecodeError(
            f"the description of the federation's experiment is malformed: {error}"
        ) from error


class ExperimentServer:
    """Evaluates the model at intervals and writes a run directory.

    Pass ``server``, ``stats`` and ``quantum`` to ``serve``, ``round_finished`` as its ``on_round``,
    and call ``finish`` after it.

    In the metrics, an announcement counts once for each client that is present. The mean bytes up
    are per client of the cohort, the mean bytes down per client that is present.

    Args:
        experiment: task, method and environment.
        dataset: the dataset.
        federation: name of the federation.
        path: the run directory.
        store: directory for the state of the server.
        command: command line, for the run's configuration.
        progress: called after each evaluation.
        noise_seed: random seed of the noise of differential privacy, for tests only; by default
            the noise comes from the operating system.
        callbacks: objects that are called while the federation trains; see
            ``fedtern.runs.callbacks``. They cannot stop it.
        cap: how much a single upload may change the model; None for no limit, as in simulations.

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
        progress: Progress = lambda _evaluation, _server: None,
        noise_seed: int | None = None,
        callbacks: Sequence[Any] = (),
        cap: NormCap | None = DEFAULT_CAP,
    ) -> None:
        task = get_task(experiment.task)
        task.check_sgd(experiment.sgd)
        seed = experiment.seed
        privacy = None
        if experiment.privacy is not None:
            privacy = experiment.privacy.central(experiment.environment.cohort_size, noise_seed)
        split = experiment.environment.split_dataset(dataset, seed)
        self.experiment = experiment
        self.progress = progress
        self.stats = Stats()
        self.run = open_run(experiment, path.parent, path=path, command=command, engine="mqtt")
        self.run.create()
        with ExitStack() as lock:  # released again if anything below fails
            lock.enter_context(self.run.locked())
            self._model = task.flat_model(seed)
            require_shared_buffers(self._model, "mqtt")
            self._test_examples = task.examples(dataset)[1]
            server = Server(
                self._model.weights,
                experiment.make_method(),
                self._model.layout,
                federation=federation,
                seed=seed,
                carried=self._model.carried,
                privacy=privacy,
                cap=cap,
            )
            self.server: ServerLike = server if store is None else DurableServer(server, store)
            self.terms = server.terms
            self._secure_path = None if store is None else store.path / "secure.json"
            self.quantum = self._stored_quantum()
            size = self._model.layout.size
            self.run.write_setup(split, dataset, size, task.objective.primary)
            earlier = self.run.resume_metrics(on_damage=_log_damage)
            self._lock = lock.pop_all()
        self._metrics = [metric.spec for metric in task.objective.metrics]
        self.metric = task.objective.primary
        self.callbacks = check_callbacks(callbacks)
        self._lock.enter_context(started(self.callbacks, self, earlier))
        self._before = max(earlier, key=lambda r: r.round, default=None)  # of an earlier process
        self._mean_up = 0.0
        self._mean_down = 0.0
        self._total_down = 0
        # Values of the counters after the last round.
        self._seen_up = 0
        self._seen_announced = 0
        self._seen_catch_up = 0
        self._seen_secure = 0
        self._evaluation_seconds = 0.0
        self._began = time.monotonic()
        self.stats.privacy = self.server.privacy_spent
        self._status = StatusFile(self.run.path)
        self._mqtt_server: MqttServer | None = None  # known after the first round
        self._uploaded: dict[int, int] = {}  # round of each client's last upload

    def _stored_quantum(self) -> float:
        """Return the quantum of the next secure round, of an earlier process if there was one."""
        path = self._secure_path
        if path is None or not path.exists():
            return FIRST_QUANTUM
        try:
            quantum = float(json.loads(path.read_text())["quantum"])
            if not 0 < quantum < math.inf:
                raise ValueError(f"quantum {quantum} is out of range")
        except (KeyError, TypeError, ValueError) as error:
            # It adapts again within some rounds; nothing else depends on it.
            log.warning("%s is damaged (%s): starting with the first quantum", path, error)
            return FIRST_QUANTUM
        return quantum

    def _store_quantum(self, mqtt_server: MqttServer) -> None:
        secure = mqtt_server.secure
        if secure is None or secure.quantum == self.quantum:
            return
        self.quantum = secure.quantum
        if self._secure_path is not None:
            text = json.dumps({"quantum": self.quantum})
            write_atomic(self._secure_path, [text.encode()], private=True)

    def close(self) -> None:
        """Unlock the run directory."""
        self._lock.close()

    @property
    def round(self) -> int:
        """Finished rounds."""
        return self.server.round

    @property
    def metrics(self) -> Sequence[MetricSpec]:
        """Names and directions of all metrics, the primary one first."""
        return self._metrics

    @property
    def config(self) -> Mapping[str, Any]:
        """The experiment, as in ``config.json``."""
        return self.experiment.to_json()

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.run.path

    @property
    def weights(self) -> Mapping[str, Any]:
        """Copies of the model's current tensors by name."""
        self._load_model()
        return self._model.state_dict()

    def stop(self) -> None:
        """Refuse: clients would wait for rounds that never come.

        Raises:
            LocalProtocolError: always.

        """
        raise LocalProtocolError(
            "a callback cannot stop a federation over MQTT; stop fedtern serve"
        )

    @asynccontextmanager
    async def status_updates(self) -> AsyncIterator[None]:
        """Write ``status.json`` every half second while the context is open."""

        async def update() -> None:
            while True:
                self._status.write(self.status())
                await asyncio.sleep(self._status.interval)

        task = asyncio.ensure_future(update())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            ended = self.server.round >= self.rounds
            self._status.write(self.status(), FINISHED if ended else STOPPED)

    def status(self) -> Status:
        """Return the traffic and the clients of the open round."""
        stats = self.stats
        before = self._before
        return Status(
            iteration=self.iteration,
            round=self.server.round,
            up_bytes=stats.up_bytes + (before.up_bytes if before else 0),
            down_bytes=self._total_down + (before.down_bytes if before else 0),
            up_bytes_mean=self._mean_up + (before.up_bytes_mean if before else 0),
            down_bytes_mean=self._mean_down + (before.down_bytes_mean if before else 0),
            activity=self._activity(),
            seconds=dict(stats.seconds),
            clients=self._clients(),
        )

    def _activity(self) -> str:
        if self._mqtt_server is None:
            return "waiting for clients" if not self.stats.cohort else "collecting"
        return self._mqtt_server.rounds.state.name.lower()

    def _clients(self) -> Clients:
        stats = self.stats
        mqtt_server = self._mqtt_server
        awaited = [] if mqtt_server is None else mqtt_server.awaited
        presence = None if mqtt_server is None else mqtt_server.rounds.presence
        unresponsive = [] if presence is None else sorted(presence.unresponsive)
        lags = [Lag(client, self.server.round - last) for client, last in self._uploaded.items()]
        lags.sort(key=lambda lag: -lag.rounds)
        return Clients(
            total=self.experiment.environment.clients,
            cohort=stats.cohort,
            present=stats.present,
            awaited=len(awaited),
            waiting_for=awaited[:MOST_CLIENTS],
            unresponsive=unresponsive[:MOST_CLIENTS],
            behind=[lag for lag in lags[:MOST_CLIENTS] if lag.rounds > 1],
            refused={reason: count for reason, count in stats.refused.items() if count},
            capped=stats.capped,
        )

    @property
    def rounds(self) -> int:
        """Number of rounds of the experiment."""
        return -(-self.experiment.iterations // self.terms.method.local_steps)

    @property
    def iteration(self) -> int:
        """Number of local iterations of a client that takes part in every round."""
        return self.server.round * self.terms.method.local_steps

    async def round_finished(self, mqtt_server: MqttServer) -> None:
        """Count the bytes of a round, and evaluate the model if it is time to."""
        stats = self.stats
        if self._mqtt_server is None:  # the time before was spent waiting for clients
            self._status.start(self.iteration)
        self._mqtt_server = mqtt_server
        self._store_quantum(mqtt_server)
        self._uploaded |= dict.fromkeys(mqtt_server.last_counted, self.server.round)
        present = max(stats.present, 1)
        announced = stats.announced_bytes - self._seen_announced
        answered = stats.catch_up_bytes - self._seen_catch_up
        self._mean_up += (stats.up_bytes - self._seen_up) / max(stats.cohort, 1)
        # Messages of secure rounds go to the clients of a cohort only.
        secure = stats.secure_bytes - self._seen_secure
        self._mean_down += announced + answered / present + secure / max(stats.cohort, 1)
        self._total_down += announced * present + answered + secure
        self._seen_up = stats.up_bytes
        self._seen_announced = stats.announced_bytes
        self._seen_catch_up = stats.catch_up_bytes
        self._seen_secure = stats.secure_bytes
        notify(self.callbacks, "on_round", self)
        ended = mqtt_server.rounds.ended
        spent = self.server.privacy_spent
        if spent is not None:
            log.info("round %s: %s", self.server.round - 1, spent)
            if ended and self.server.round < self.rounds:
                log.warning(
                    "the federation ends after %s of %s rounds, because another round could exceed"
                    " the privacy budget: %s is spent",
                    self.server.round,
                    self.rounds,
                    spent,
                )
        every = self.experiment.evaluate_every
        before = self.iteration - self.terms.method.local_steps
        if ended or self.iteration // every > before // every:
            # In a thread, so that the keep-alive of the connection continues.
            evaluation = await asyncio.to_thread(self._evaluate)
            self.run.record(evaluation)
            notify(self.callbacks, "on_evaluation", self, evaluation)
            self.stats.scores = {"loss": evaluation.loss, **evaluation.metrics}
            self.stats.evaluated_round = evaluation.round
            if ended:
                self._write_model()
            self.progress(evaluation, mqtt_server)

    def finish(self) -> None:
        """Complete the run directory, also if an earlier process was stopped before it did."""
        if self.run.is_finished():
            return
        evaluations = self.run.evaluations()
        if not evaluations or evaluations[-1].iteration < self.iteration:
            evaluation = self._evaluate()
            self.run.record(evaluation)
            notify(self.callbacks, "on_evaluation", self, evaluation)
        self._write_model()

    def _write_model(self) -> None:
        self._load_model()
        # The privacy budget can end a run early.
        is_early = self.iteration < self.experiment.iterations
        self.run.finish(self._model.arrays(), stopped=self.iteration if is_early else None)

    def _load_model(self) -> None:
        self._model.load(self.server.weights)
        self._model.load_buffers(self.server.carried)

    def _evaluate(self) -> Evaluation:
        began = time.monotonic()
        self._load_model()
        scores = self._model.evaluate(self._test_examples)
        self._evaluation_seconds += time.monotonic() - began
        method = self.terms.method
        layout = self.terms.layout
        before = self._before
        spent = self.server.privacy_spent
        seconds = {
            "mqtt": time.monotonic() - self._began - self._evaluation_seconds,
            "evaluate": self._evaluation_seconds,
        }
        if before is not None:
            seconds = {k: v + before.seconds.get(k, 0.0) for k, v in seconds.items()}
        return Evaluation(
            iteration=self.iteration,
            round=self.server.round,
            loss=scores.loss,
            accuracy=scores.metrics.get("accuracy", math.nan),
            up_bytes=self.stats.up_bytes + (before.up_bytes if before else 0),
            down_bytes=self._total_down + (before.down_bytes if before else 0),
            up_bytes_mean=self._mean_up + (before.up_bytes_mean if before else 0),
            down_bytes_mean=self._mean_down + (before.down_bytes_mean if before else 0),
            up_bytes_paper=self.server.round * analytic_bits(method.up, layout) / 8,
            down_bytes_paper=self.server.round * analytic_bits(method.down, layout) / 8,
            dense_bytes=layout.nbytes * self.iteration,
            seconds=seconds,
            metrics=scores.metrics,
            privacy=spent.to_json() if spent else {},
        )


def _log_damage(error: RunError) -> None:
    log.warning("dropped an unreadable line of the metrics: %s", error)
