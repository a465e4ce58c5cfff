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

from fedtern.core.analytic import analytic_bits
from fedtern.core.errors import FedternError
from fedtern.core.protocol import Accepted
from fedtern.core.updates import count_entries
from fedtern.runs import Experiment
from fedtern.transports.flower.engine_node import client_app
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.metrics import num_examples_in
from fedtern.transports.flower.run_totals import RunTotals
from fedtern.transports.flower.session import Session
from fedtern.transports.local.federation import Exchange, Federation, UploadSize
from fedtern.transports.local.trainers import available_cores, require_shared_buffers

T = TypeVar("T")
_TIMEOUT = 3600.0


class EngineError(FedternError):
    """A simulated client failed; without it, the experiment would be a different one."""


class Simulation:
    """Flower's simulation in a thread, which executes functions that need its grid.

    ``run_simulation`` blocks until the server app ends. The server app therefore takes functions
    from a queue until ``close`` is called.

    Args:
        experiment: The experiment, for the client apps.
        data_dir: Directory of the datasets.

    """

    def __init__(self, experiment: Experiment, data_dir: str | None) -> None:
        self._calls: queue.Queue[tuple[Callable[[Grid], Any], Future[Any]] | None] = queue.Queue()
        self._error: BaseException | None = None
        _silence_flower()
        server_app = ServerApp()
        server_app.main()(self._serve)
        nodes = client_app(experiment, data_dir)
        self._thread = threading.Thread(
            target=self._run,
            args=(server_app, nodes, experiment.environment.clients),
            daemon=True,
        )
        self._thread.start()

    def _run(self, server_app: ServerApp, nodes: Any, clients: int) -> None:
        try:
            run_simulation(
                server_app,
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
        except BaseException as error:  # reported by the next call
            self._error = error

    def _serve(self, grid: Grid, _context: Context) -> None:
        while (call := self._calls.get()) is not None:
            function, result = call
            try:
                result.set_result(function(grid))
            except BaseException as error:
                result.set_exception(error)

    def call(self, function: Callable[[Grid], T]) -> T:
        """Call a function with the grid, in the thread of the simulation.

        Returns:
            The result of the function.

        Raises:
            EngineError: The simulation has ended.

        """
        result: Future[T] = Future()
        self._calls.put((function, result))
        while not result.done():
            if not self._thread.is_alive():
                raise EngineError(f"Flower's simulation has ended: {self._error}")
            try:
                return result.result(timeout=1)
            except TimeoutError:
                continue
        return result.result()

    def close(self) -> None:
        """End the simulation."""
        self._calls.put(None)
        self._thread.join(60)


class FlowerFederation(Federation):
    """A federation whose clients train in Flower's simulation.

    Everything else is as in ``Federation``, and so are the bytes of all messages. Clients keep
    their states in the simulation, so that an interrupted run has to start again.

    Args:
        experiment: The experiment, for the client apps.
        data_dir: Directory of the datasets.
        arguments: Positional arguments of ``Federation``.
        options: Keyword arguments of ``Federation``. ``workers`` is ignored: Ray has its own.

    """

    resumable: ClassVar[bool] = False

    def __init__(
        self, experiment: Experiment, data_dir: str | None, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **{**options, "workers": 0})
        require_shared_buffers(self.model, "flower")
        self._simulation = Simulation(experiment, data_dir)
        self._session: Session | None = None

    def exchange(self, cohort: list[int]) -> Exchange:
        """Let the clients of a cohort download, train and upload, in the simulation.

        Raises:
            EngineError: A client failed, or the simulation has ended.

        """
        with self.meter.phase("train"):
            return self._simulation.call(lambda grid: self._exchange(cohort, grid))

    def _exchange(self, cohort: list[int], grid: Grid) -> Exchange:
        if self._session is None:
            self._session = self._start_session(grid)
        session = self._session
        nodes = [session.nodes.node_of(client) for client in cohort]
        empty = RecordDict({"config": ConfigRecord()})
        requests = session.requests(
            [Message(empty, node, MessageType.TRAIN) for node in nodes], "config"
        )
        _require_all_clients(session)
        uploads: dict[int, UploadSize] = {}
        for reply in session.replies(grid.send_and_receive(requests.messages, timeout=_TIMEOUT)):
            upload = session.accept_upload(reply, num_examples_in(reply, "num-examples"))
            if upload is not None and upload.accepted is not None:
                uploads[reply.node] = self._size_of(upload.accepted)
        _require_all_clients(session)
        return Exchange(requests.sizes, [uploads[node] for node in nodes])

    def _start_session(self, grid: Grid) -> Session:
        """Wait for all nodes and ask each for its client."""
        terms = self.server.terms
        spec = FederationSpec(
            federation="",
            method=terms.method,
            layout=terms.layout,
            seed=self.seed,
            arrays_key="arrays",
            in_context=True,
        )
        session = Session(spec, self.server, RunTotals(None), grid, _TIMEOUT)
        deadline = time.monotonic() + _TIMEOUT
        while len(nodes := list(grid.get_node_ids())) < len(self.split):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{len(nodes)} of {len(self.split)} simulated nodes registered within"
                    f" {_TIMEOUT:g} s"
                )
            time.sleep(0.1)  # nodes register one after the other
        session.handshake(nodes, hint="")
        _require_all_clients(session)
        return session

    def _size_of(self, upload: Accepted) -> UploadSize:
        terms = self.server.terms
        paper_bits = analytic_bits(terms.method.up, terms.layout, sent=count_entries(upload.update))
        return UploadSize(len(upload.data), paper_bits)

    def close(self) -> None:
        """End the simulation."""
        self._simulation.close()
        super().close()


def _require_all_clients(session: Session) -> None:
    if session.dropped:
        raise EngineError(f"the experiment cannot continue without {session.dropped[0]}")


def _silence_flower() -> None:
    """Hide the logs of Flower and Ray, and disable their telemetry and update checks."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
