"""``Compressed``: a Flower strategy with compressed messages in both directions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedtern.core.errors import LocalProtocolError
from fedtern.core.methods import Method, stc
from fedtern.core.protocol import Server
from fedtern.store import DurableServer, Store
from fedtern.transports.flower.arrays import layout_of, to_arrays, to_vector
from fedtern.transports.flower.counters import count_wire, is_simulated
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.metrics import (
    aggregate_train_metrics,
    comparable,
    num_examples_in,
)
from fedtern.transports.flower.run_totals import RunTotals
from fedtern.transports.flower.session import Reply, Session

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Compressed(Strategy):
    """Wraps a strategy and compresses its messages.

    The wrapped strategy samples and configures nodes and aggregates metrics. The method aggregates
    the clients' updates. The wrapped strategy must therefore be ``FedAvg``, ``FedProx`` or another
    subclass of ``FedAvg`` that does not override ``aggregate_train`` or ``start``.

    Args:
        strategy: The strategy without compression.
        method: What clients and server send; sparse ternary compression by default.
        store: Directory for state that survives a restart. A federation with a store continues
            after its last finished round.
        federation: Name by which nodes recognise the federation; by default the name of the
            store's directory, or one that is made from the run's id.
        seed: Random seed of the method.

    Raises:
        ValueError: The strategy cannot be wrapped.

    """

    def __init__(
        self,
        strategy: Strategy,
        method: Method | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
        federation: str | None = None,
        seed: int = 0,
    ) -> None:
        self.strategy = _check_strategy(strategy)
        self.method = stc() if method is None else method
        self.store = None if store is None else Path(store)
        self.federation = federation
        self.seed = seed
        self._session: Session | None = None
        self._earlier_rounds = 0  # rounds of earlier runs
        self._server_evaluates = False  # whether start() has an evaluate_fn
        self._round_metrics: dict[str, object] = {}  # metrics of the last round

    def summary(self) -> None:
        """Log the method and the summary of the wrapped strategy."""
        log(INFO, "\t├──> Compression: %s, both ways, by fedtern", self.method.name)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Train the federation; the arguments are those of Flower's strategies.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: The initial model; all arrays must be float32.
            num_rounds: Number of rounds in total, including those of earlier runs with the same
                store.
            timeout: Seconds to wait for replies.
            train_config: Configuration for the train functions.
            evaluate_config: Configuration for the evaluate functions.
            evaluate_fn: Evaluates the model on the server.

        Returns:
            The final model, and the metrics by round. Rounds are numbered from the start of the
            federation, not of this run.

        Raises:
            ValueError: An array cannot be compressed.
            StoreError: The store is damaged, locked, or that of another federation.

        """
        with ExitStack() as stack:
            session = self._open_session(grid, initial_arrays, timeout, stack)
            self._session = session
            self._earlier_rounds = session.server.round
            if self._earlier_rounds:
                log(
                    INFO,
                    "fedtern: %s continues after round %s",
                    session.spec.federation,
                    self._earlier_rounds,
                )
            session.totals.start(session.spec, self._earlier_rounds)
            self._server_evaluates = evaluate_fn is not None
            try:
                result = super().start(
                    grid,
                    self._arrays(session),
                    max(num_rounds - self._earlier_rounds, 0),
                    timeout,
                    train_config,
                    evaluate_config,
                    None if evaluate_fn is None else self._recording(evaluate_fn),
                )
            finally:
                self._session = None
            result.arrays = self._arrays(session)
            self._renumber(result)
            return result

    def _open_session(
        self, grid: Grid, initial: ArrayRecord, timeout: float, stack: ExitStack
    ) -> Session:
        layout = layout_of(initial)
        # The states of simulated nodes end with the run, so that any name is unique enough.
        run = "run" if is_simulated(grid) else f"run-{grid.run.run_id}"
        name = self.federation or (self.store.name if self.store else run)
        spec = FederationSpec(
            federation=name,
            method=self.method,
            layout=layout,
            seed=self.seed,
            arrays_key=self.strategy.arrayrecord_key,
            in_context=is_simulated(grid),
        )
        weights = to_vector(initial, layout)
        server = Server(weights, self.method, layout, federation=name, seed=self.seed)
        if self.store is None:
            return Session(spec, server, RunTotals(None), grid, timeout)
        durable = DurableServer(server, stack.enter_context(Store(self.store)))
        return Session(spec, durable, RunTotals(self.store), grid, timeout)

    def _arrays(self, session: Session) -> ArrayRecord:
        return to_arrays(session.server.weights, session.spec.layout)

    def _recording(self, evaluate_fn: Evaluate) -> Evaluate:
        """Return a function that also records the metrics of an evaluation on the server."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            round = server_round + self._earlier_rounds
            metrics = evaluate_fn(round, arrays)
            self._round_metrics |= dict(metrics or {})
            self._record_round(round)
            return metrics

        return evaluate

    def _renumber(self, result: Result) -> None:
        """Number the rounds in a result from the start of the federation."""
        for metrics in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            renumbered = {round + self._earlier_rounds: value for round, value in metrics.items()}
            metrics.clear()
            metrics.update(renumbered)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the training requests for the nodes that the strategy chooses."""
        session = self._current_session()
        session.start_round()
        self._round_metrics = {}
        round = server_round + self._earlier_rounds
        chosen = self.strategy.configure_train(round, arrays, config, grid)
        # A list, not an iterator: some of Flower's grids iterate over it twice.
        return session.requests(chosen, self.strategy.configrecord_key).messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round with the usable uploads in the replies."""
        session = self._current_session()
        counted: list[Reply] = []
        sizes: list[int] = []
        for reply in session.replies(replies):
            try:
                num_examples = num_examples_in(reply, self.strategy.weighted_by_key)
            except ValueError as error:
                session.drop(reply.node, str(error))
                continue
            if (upload := session.accept_upload(reply, num_examples)) is not None:
                counted.append(reply)
                sizes.append(upload.nbytes)
        if sizes:
            session.totals.counts.up.add(sizes, 0.0)
        num_uploads = len(session.server.uploaded)  # including those from before a restart
        session.server.finish_round()
        metrics = aggregate_train_metrics(counted, self.strategy)
        self._round_metrics |= dict(metrics)
        metrics["uploads-counted"] = num_uploads
        metrics["nodes-dropped"] = len(session.dropped)
        self._add_totals(metrics)
        return self._arrays(session), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the evaluation requests; a node that has the newest model receives no update."""
        session = self._current_session()
        round = server_round + self._earlier_rounds
        chosen = self.strategy.configure_evaluate(round, arrays, config, grid)
        return session.requests(chosen, self.strategy.configrecord_key).messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the metrics of the nodes that could evaluate; None if there are none."""
        session = self._current_session()
        evaluated = [
            reply for reply in session.replies(replies) if session.accept_evaluation(reply)
        ]
        round = server_round + self._earlier_rounds
        usable = comparable(evaluated, self.strategy.weighted_by_key)
        messages = [reply.message for reply in usable]
        metrics = self.strategy.aggregate_evaluate(round, messages) or MetricRecord()
        self._round_metrics |= dict(metrics)
        if evaluated:
            self._add_totals(metrics)
        if not self._server_evaluates:
            self._record_round(round)
        return metrics if evaluated else None

    def _add_totals(self, metrics: MetricRecord) -> None:
        """Add the traffic so far to metrics, and save it."""
        session = self._current_session()
        totals = session.totals
        totals.wire_bytes = count_wire(session.grid) or totals.wire_bytes
        totals.save()
        metrics.update(totals.to_metrics())

    def _record_round(self, round: int) -> None:
        session = self._current_session()
        session.totals.record_round(round, session.spec, self._round_metrics)

    def _current_session(self) -> Session:
        if self._session is None:
            raise LocalProtocolError("Compressed works only inside its start(): call that")
        return self._session


def _check_strategy(strategy: object) -> FedAvg:
    """Return the strategy; raise if it aggregates models in its own way."""
    name = type(strategy).__name__
    remedy = "Use FedAvg, FedProx, or a subclass that does not override aggregate_train or start"
    if not isinstance(strategy, FedAvg):
        raise ValueError(f"Compressed cannot wrap {name}: it is not a FedAvg. {remedy}")
    if type(strategy).aggregate_train is not FedAvg.aggregate_train:
        raise ValueError(
            f"Compressed cannot wrap {name}: it aggregates models in its own way, but here the"
            f" method aggregates updates. {remedy}"
        )
    if type(strategy).start is not FedAvg.start:
        raise ValueError(
            f"Compressed cannot wrap {name}: its start method would not be called. {remedy}"
        )
    return strategy
