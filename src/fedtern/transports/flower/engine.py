"""``fedtern run --engine flower``: an experiment in Flower's simulation, on Ray."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedtern.core.analytic import bits
from fedtern.core.errors import FedternError
from fedtern.core.protocol import Accepted
from fedtern.core.updates import count_entries
from fedtern.runs import Experiment
from fedtern.transports.flower.engine_node import client_app
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.metrics import weight_of
from fedtern.transports.flower.run_totals import RunTotals
from fedtern.transports.flower.session import Session
from fedtern.transports.local.federation import Exchange, Federation, UploadSize
from fedtern.transports.local.trainers import available_cores

T = TypeVar("T")
_TIMEOUT = 3600.0


class EngineError(FedternError):
    """A virtual client failed: an experiment without it would be another one."""


class Simulation:
    """Flower's simulation in a thread, which does what it is asked to with its grid."""

    def __init__(self, experiment: Experiment, data_dir: str | None) -> None:
        self._errands: queue.Queue[tuple[Callable[[Grid], Any], Future[Any]] | None] = queue.Queue()
        self._error: BaseException | None = None
        _be_quiet()
        app = ServerApp()
        app.main()(self._serve)
        nodes = client_app(experiment, data_dir)
        self._thread = threading.Thread(
            target=self._run, args=(app, nodes, experiment.environment.clients), daemon=True
        )
        self._thread.start()

    def _run(self, app: ServerApp, nodes: Any, clients: int) -> None:
        try:
            run_simulation(
                app,
                nodes,
                clients,
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {
                        "num_cpus": available_cores(),
                        "include_dashboard": False,
                        "logging_level": "error",
                        "log_to_driver": False,
                    },
                },
            )
        except BaseException as error:  # told to whoever waits for an errand
            self._error = error

    def _serve(self, grid: Grid, _context: Context) -> None:
        while (errand := self._errands.get()) is not None:
            do, done = errand
            try:
                done.set_result(do(grid))
            except BaseException as error:
                done.set_exception(error)

    def do(self, errand: Callable[[Grid], T]) -> T:
        """Do something with the grid, where it lives."""
        done: Future[T] = Future()
        self._errands.put((errand, done))
        while not done.done():
            if not self._thread.is_alive():
                raise EngineError(f"Flower's simulation has ended: {self._error}")
            try:
                return done.result(timeout=1)
            except TimeoutError:
                continue
        return done.result()

    def close(self) -> None:
        """End the simulation."""
        self._errands.put(None)
        self._thread.join(60)


class FlowerFederation(Federation):
    """A federation whose clients train in a simulation of Flower's, and nothing else is different.

    Clients keep their states in the simulation: a run that was interrupted begins again.
    """

    resumable: ClassVar[bool] = False

    def __init__(
        self, experiment: Experiment, data_dir: str | None, *parts: Any, **options: Any
    ) -> None:
        super().__init__(*parts, **{**options, "workers": 0})
        terms = self.server.terms
        self._charter = FederationSpec("", terms.method, terms.layout, self.seed, "arrays", True)
        self._ledger = RunTotals(None)
        self._simulation = Simulation(experiment, data_dir)
        self._session: Session | None = None

    def exchange(self, cohort: list[int]) -> Exchange:
        """Let a cohort catch up, train and upload, somewhere else."""
        with self.meter.phase("train"):
            return self._simulation.do(lambda grid: self._exchange(cohort, grid))

    def _exchange(self, cohort: list[int], grid: Grid) -> Exchange:
        session = self._session or self._meet(grid)
        nodes = [session.roster.node_of(client) for client in cohort]
        empty = RecordDict({"config": ConfigRecord()})
        turns = session.turns([Message(empty, n, MessageType.TRAIN) for n in nodes], "config")
        _insist_on_everybody(session)
        sizes = dict(zip(nodes, session.sizes, strict=True))
        found: dict[int, UploadSize] = {}
        for reply in session.replies(grid.send_and_receive(turns, timeout=_TIMEOUT)):
            upload = session.take(reply, weight_of(reply, "num-examples"))
            if upload is not None and upload.accepted is not None:
                found[reply.node] = self._counted(upload.accepted)
        _insist_on_everybody(session)
        return Exchange([sizes[node] for node in nodes], [found[node] for node in nodes])

    def _meet(self, grid: Grid) -> Session:
        self._session = Session(self._charter, self.server, self._ledger, grid, _TIMEOUT)
        while len(nodes := list(grid.get_node_ids())) < len(self.split):
            time.sleep(0.1)  # they register one by one
        self._session.greet(nodes, hint="")
        _insist_on_everybody(self._session)
        return self._session

    def _counted(self, upload: Accepted) -> UploadSize:
        terms = self.server.terms
        paper_bits = bits(terms.method.up, terms.layout, sent=count_entries(upload.update))
        return UploadSize(len(upload.data), paper_bits)

    def close(self) -> None:
        """End the simulation."""
        self._simulation.close()
        super().close()


def _insist_on_everybody(session: Session) -> None:
    if session.dropped:
        raise EngineError(f"the experiment ends with {session.dropped[0]}")


def _be_quiet() -> None:
    """A run says how it goes by itself, and nobody is called."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
