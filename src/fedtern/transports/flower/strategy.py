"""``Compressed``: a Flower strategy whose messages are compressed both ways."""

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
from fedtern.transports.flower.counters import count_wire, simulated
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.metrics import aggregate, comparable, weight_of
from fedtern.transports.flower.run_totals import RunTotals
from fedtern.transports.flower.session import Reply, Session

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Compressed(Strategy):
    """Lets another strategy choose who takes part, and sends what ``method`` makes of the rest.

    Sampling, configuration and the aggregation of metrics stay with ``strategy``, which must be
    ``FedAvg``, ``FedProx`` or another subclass of ``FedAvg`` with its ``aggregate_train`` and
    ``start``: what becomes of the clients' updates is the method's business.

    Args:
        strategy: the one that would be used without compression.
        method: what is sent each way; sparse ternary compression unless said otherwise.
        store: a directory that the federation outlives a restart in; it goes on there after the
            last round that was finished.
        federation: the name that nodes know it by; by default the store's, or that of the run.
        seed: of the random choices that some methods make.

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
        self.strategy = _checked(strategy)
        self.method = stc() if method is None else method
        self.store = None if store is None else Path(store)
        self.federation = federation
        self.seed = seed
        self._session: Session | None = None
        self._offset = 0  # rounds of earlier runs
        self._central = False  # whether the model is also tested by the server
        self._measured: dict[str, object] = {}  # of the last round

    def summary(self) -> None:
        """Log what is used."""
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
        """Train for ``num_rounds`` in all, those of earlier runs of the federation included."""
        with ExitStack() as stack:
            session = self._open(grid, initial_arrays, timeout, stack)
            self._session, self._offset = session, session.server.round
            if self._offset:
                log(INFO, "fedtern: %s goes on after round %s", session.charter.federation,
                    self._offset)  # fmt: skip
            session.ledger.start(session.charter, self._offset)
            self._central = evaluate_fn is not None
            try:
                result = super().start(
                    grid,
                    self._arrays(session),
                    max(num_rounds - self._offset, 0),
                    timeout,
                    train_config,
                    evaluate_config,
                    None if evaluate_fn is None else self._noting(evaluate_fn),
                )
            finally:
                self._session = None
            result.arrays = self._arrays(session)
            return self._renumbered(result)

    def _open(self, grid: Grid, initial: ArrayRecord, timeout: float, stack: ExitStack) -> Session:
        layout = layout_of(initial)
        # What a node of a simulation knows ends with the run: any name will do.
        run = "run" if simulated(grid) else f"run-{grid.run.run_id}"
        name = self.federation or (self.store.name if self.store else run)
        key = self.strategy.arrayrecord_key
        charter = FederationSpec(name, self.method, layout, self.seed, key, simulated(grid))
        weights = to_vector(initial, layout)
        server = Server(weights, self.method, layout, federation=name, seed=self.seed)
        if self.store is None:
            return Session(charter, server, RunTotals(None), grid, timeout)
        durable = DurableServer(server, stack.enter_context(Store(self.store)))
        return Session(charter, durable, RunTotals(self.store), grid, timeout)

    def _arrays(self, session: Session) -> ArrayRecord:
        return to_arrays(session.server.weights, session.charter.layout)

    def _noting(self, evaluate_fn: Evaluate) -> Evaluate:
        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            found = evaluate_fn(server_round + self._offset, arrays)
            self._measured |= dict(found or {})
            self._note(server_round + self._offset)
            return found

        return evaluate

    def _renumbered(self, result: Result) -> Result:
        for metrics in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            renumbered = {round + self._offset: found for round, found in metrics.items()}
            metrics.clear()
            metrics.update(renumbered)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Whoever the strategy has chosen gets what it missed."""
        session, self._measured = self._current(), {}
        session.dropped = []
        chosen = self.strategy.configure_train(server_round + self._offset, arrays, config, grid)
        return session.turns(chosen, self.strategy.configrecord_key)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round with whatever can be used of the replies."""
        session = self._current()
        counted: list[Reply] = []
        sizes: list[int] = []
        for reply in session.replies(replies):
            try:
                weight = weight_of(reply, self.strategy.weighted_by_key)
            except ValueError as error:
                session.drop(reply.node, str(error))
                continue
            if (upload := session.take(reply, weight)) is not None:
                counted.append(reply)
                sizes.append(upload.upload_bytes)
        if sizes:
            session.ledger.counts.up.add(sizes, 0.0)
        taken = len(session.server.uploaded)  # those of before a restart among them
        session.server.finish_round()
        metrics = aggregate(counted, self.strategy)
        self._measured |= dict(metrics)
        metrics["uploads-counted"] = taken
        metrics["nodes-dropped"] = len(session.dropped)
        return self._arrays(session), self._with_totals(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A node that has the model already is sent nothing."""
        session = self._current()
        chosen = self.strategy.configure_evaluate(server_round + self._offset, arrays, config, grid)
        return session.turns(chosen, self.strategy.configrecord_key)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The metrics of those that could evaluate."""
        session = self._current()
        usable = [reply for reply in session.replies(replies) if session.evaluated(reply)]
        alike = comparable(usable, self.strategy.weighted_by_key)
        round, messages = server_round + self._offset, [reply.message for reply in alike]
        metrics = self.strategy.aggregate_evaluate(round, messages) or MetricRecord()
        self._measured |= dict(metrics)
        metrics = self._with_totals(metrics) if usable else metrics
        if not self._central:
            self._note(round)
        return metrics if usable else None

    def _with_totals(self, metrics: MetricRecord) -> MetricRecord:
        """Metrics with the bytes so far, which are written down as well."""
        ledger = self._current().ledger
        ledger.wire = count_wire(self._current().grid) or ledger.wire
        ledger.save()
        metrics.update(ledger.totals())
        return metrics

    def _note(self, round: int) -> None:
        session = self._current()
        session.ledger.record_round(round, session.charter, self._measured)

    def _current(self) -> Session:
        if self._session is None:
            raise LocalProtocolError("Compressed is used outside of its start(): call that")
        return self._session


def _checked(strategy: object) -> FedAvg:
    """Refuse strategies that aggregate models in a way of their own."""
    name = type(strategy).__name__
    use = "Use FedAvg, FedProx, or a subclass of them that leaves aggregate_train and start alone"
    if not isinstance(strategy, FedAvg):
        raise ValueError(f"Compressed cannot wrap {name}: it is not a FedAvg. {use}")
    if type(strategy).aggregate_train is not FedAvg.aggregate_train:
        raise ValueError(
            f"Compressed cannot wrap {name}: it aggregates models in a way of its own, where here"
            f" the method does. {use}"
        )
    if type(strategy).start is not FedAvg.start:
        raise ValueError(f"Compressed cannot wrap {name}: its start would not be called. {use}")
    return strategy
