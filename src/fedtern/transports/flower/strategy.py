"""``Compressed``: a Flower strategy with compressed messages in both directions."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedtern.core.dtypes import Overflow
from fedtern.core.errors import FedternError, LocalProtocolError, NonFiniteError
from fedtern.core.methods import (
    METHODS,
    CoordinateMedian,
    Krum,
    Mean,
    Method,
    MethodSpec,
    TrimmedMean,
    for_rounds,
    make_method,
    method_from_spec,
)
from fedtern.core.protocol import Accepted, Broadcast, Server
from fedtern.core.protocol.initial import Precision, round_initial
from fedtern.core.template import STATISTICS, Template, Ties
from fedtern.runs.status import FINISHED, STOPPED
from fedtern.store import DurableServer, Store
from fedtern.transports.flower.arrays import are_equal, change_to, to_numpy, to_record
from fedtern.transports.flower.counters import count_wire, is_simulated
from fedtern.transports.flower.federation_spec import FederationSpec, digest_of
from fedtern.transports.flower.messages import KEY
from fedtern.transports.flower.metrics import (
    aggregate_train_metrics,
    comparable,
    num_examples_in,
)
from fedtern.transports.flower.run_totals import RunTotals
from fedtern.transports.flower.session import Reply, Session

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
_METHODS_OF_A_STRATEGY = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
    "summary",
)
# A federation may be without all of its nodes for this many rounds, if they have worked before.
_MAX_EMPTY_ROUNDS = 3


class NoUploads(FedternError):
    """No node has contributed to a round, so that training cannot go on."""


@dataclass
class _Run:
    """The state of one call of ``start``.

    Attributes:
        session: The exchange with the nodes.
        is_fast: Whether the method aggregates, because the strategy averages in the same way.
        original: The methods of the wrapped strategy.
        earlier_rounds: Number of rounds of earlier runs.
        weighted: Whether the updates of nodes are weighted by ``num-examples`` outside the method.
        server_evaluates: Whether there is an ``evaluate_fn``.
        arrays: The model that clients have.
        has_uploads: Whether a round of this run has counted an upload.
        empty_rounds: Number of rounds without an upload since the last one with an upload.

    """

    session: Session
    is_fast: bool
    original: dict[str, Callable[..., Any]]
    earlier_rounds: int
    weighted: bool
    server_evaluates: bool
    arrays: ArrayRecord
    has_uploads: bool = False
    empty_rounds: int = 0


class Compressed(Strategy):
    """Wraps a strategy and compresses its messages.

    The wrapped strategy samples and configures nodes, runs the rounds and aggregates metrics. For
    ``FedAvg`` and ``FedProx``, the method aggregates the clients' updates, without making them
    dense. The ``aggregate_train`` of any other strategy gets the model of each node, reconstructed
    from its upload. The result is compressed. In the next round, the strategy gets the model that
    the clients have.

    Attributes of the wrapped strategy are attributes of this object, too.

    Args:
        strategy: The strategy without compression.
        method: What clients and server send; by default one that suits the number of rounds for
            ``FedAvg`` and ``FedProx``, see ``fedtern.core.methods.for_rounds``, and ``grid`` for
            any other strategy.
        store: Directory for state that survives a restart. A federation with a store continues
            after its last finished round.
        federation: Name by which nodes recognise the federation; by default the name of the
            store's directory, or one that is made from the run's id.
        seed: Random seed of the method.
        weighted: Whether ``FedAvg`` and ``FedProx`` weight nodes by their number of examples, as
            without compression. If not, the method decides.
        initial: How precisely new clients download the initial model: "exact", "float16" or
            "int8", with a scale for each row of a tensor. The server starts from the rounded model,
            too.
        carry: How tensors that are not trained are combined: "average" or "latest". These are
            integers, booleans, and the tensors in ``carried``.
        carried: Patterns of the names of floating-point tensors that are not trained, such as the
            statistics of batch normalisation.
        detect_ties: Which tensors are one tensor with several names; "values" for those that have
            the same values in the initial model.
        overflow: What to do with a weight that is too large for the dtype of its tensor: "refuse"
            or "saturate".

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
        weighted: bool = True,
        initial: Precision = "int8",
        carry: str = "average",
        carried: Sequence[str] = STATISTICS,
        detect_ties: Ties = True,
        overflow: Overflow = "refuse",
    ) -> None:
        self._strategy = _check_strategy(strategy)
        self.method = method
        self.store = None if store is None else Path(store)
        self.federation = federation
        self.seed = seed
        self.weighted = weighted
        self.initial = initial
        self.carry = carry
        self.carried = tuple(carried)
        self.detect_ties = detect_ties
        self.overflow = overflow
        self._run: _Run | None = None
        self._round_metrics: dict[str, object] = {}  # metrics of the last round

    @property
    def strategy(self) -> Strategy:
        """The wrapped strategy."""
        return self._strategy

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped strategy."""
        if name.startswith("__") or "_strategy" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one that only the wrapped strategy has is set there."""
        inner = self.__dict__.get("_strategy")
        is_own = name in self.__dict__ or hasattr(type(self), name)
        if inner is not None and not is_own and hasattr(inner, name):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    def summary(self) -> None:
        """Log the method and the summary of the wrapped strategy."""
        method = self.method if self._run is None else self._run.session.spec.method
        name = "default method" if method is None else method.name
        log(INFO, "\t├──> Compression: %s, both ways, by fedtern", name)
        self._call("summary")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
        **options: Any,
    ) -> Result:
        """Train the federation; the arguments are those of Flower's strategies.

        The ``start`` of the wrapped strategy runs the rounds.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: The initial model.
            num_rounds: Number of rounds in total, including those of earlier runs with the same
                store.
            timeout: Seconds to wait for replies.
            train_config: Configuration for the train functions.
            evaluate_config: Configuration for the evaluate functions.
            evaluate_fn: Evaluates the model on the server.
            options: Further arguments of the strategy's own ``start``.

        Returns:
            The result of the strategy's ``start``: the final model, and the metrics by round.
            Rounds are numbered from the start of the federation, not of this run.

        Raises:
            NoUploads: All nodes fail.
            StoreError: The store is damaged, locked, or that of another federation.
            ValueError: An array cannot be compressed.

        """
        with ExitStack() as stack:
            is_fast = _averages(self._strategy)
            method = self._choose_method(num_rounds, is_fast=is_fast)
            session = self._open_session(grid, initial_arrays, method, timeout, stack)
            earlier_rounds = session.server.round
            run = _Run(
                session=session,
                is_fast=is_fast,
                original=stack.enter_context(self._in_place_of_the_strategy()),
                earlier_rounds=earlier_rounds,
                weighted=self.weighted and is_fast and _ignores_weights(method),
                server_evaluates=evaluate_fn is not None,
                arrays=_model_of(session),
            )
            if self.initial != "exact" and not earlier_rounds:
                log(
                    INFO,
                    "fedtern: both sides start from the initial model rounded to %s; pass"
                    ' initial="exact" to send it unchanged',
                    self.initial,
                )
            if earlier_rounds:
                name = session.spec.federation
                log(INFO, "fedtern: %s continues after round %s", name, earlier_rounds)
            _warn_of_clipping_on_nodes(self._strategy)
            session.totals.start(session.spec, earlier_rounds)
            given: dict[str, Any] = {
                "train_config": train_config,
                "evaluate_config": evaluate_config,
                "evaluate_fn": None if evaluate_fn is None else self._recording(evaluate_fn),
            }
            self._run = run
            try:
                result = self._strategy.start(
                    grid,
                    run.arrays,
                    num_rounds=max(num_rounds - earlier_rounds, 0),
                    timeout=timeout,
                    **{name: value for name, value in given.items() if value is not None},
                    **options,
                )
            finally:
                self._run = None
                session.write_status(STOPPED)
            session.write_status(FINISHED)
            if isinstance(result, Result):
                result.arrays = run.arrays
                _renumber(result, earlier_rounds)
            return result

    @contextmanager
    def _in_place_of_the_strategy(self) -> Iterator[dict[str, Callable[..., Any]]]:
        """Let the wrapped strategy call this object's methods instead of its own.

        So its own ``start`` runs, whatever it does between the rounds, on the object that it
        expects. Calls of ``super()`` inside the strategy stay as they are.

        Yields:
            The strategy's own methods.

        """
        strategy = self._strategy
        replaced = {n: vars(strategy)[n] for n in _METHODS_OF_A_STRATEGY if n in vars(strategy)}
        original = {name: getattr(strategy, name) for name in _METHODS_OF_A_STRATEGY}
        for name in _METHODS_OF_A_STRATEGY:
            setattr(strategy, name, getattr(self, name))
        try:
            yield original
        finally:
            for name in _METHODS_OF_A_STRATEGY:
                delattr(strategy, name)
            for name, method in replaced.items():
                setattr(strategy, name, method)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the wrapped strategy."""
        if self._run is None:
            return getattr(self._strategy, name)(*arguments)
        return self._run.original[name](*arguments)

    def _open_session(
        self,
        grid: Grid,
        initial: ArrayRecord,
        method: Method,
        timeout: float,
        stack: ExitStack,
    ) -> Session:
        if not initial:
            raise ValueError("initial_arrays contain no array, so there is nothing to train")
        arrays = to_numpy(initial)
        template = Template.of(
            arrays,
            carry=_check_carry(self.carry),
            carried=self.carried,
            detect_ties=self.detect_ties,
            overflow=self.overflow,
        )
        parts = template.split(arrays)
        # The states of simulated nodes end with the run, so that any name is unique enough.
        run = "run" if is_simulated(grid) else f"run-{grid.run.run_id}"
        name = self.federation or (self.store.name if self.store else run)
        server = Server(
            parts.weights,
            method,
            template.layout,
            carried=parts.carried,
            initial=self.initial,
            federation=name,
            seed=self.seed,
            cap=None,  # the result is that of the strategy, which decides whom to trust
        )
        rounded = round_initial(parts.weights, template.layout, self.initial)
        spec = FederationSpec(
            federation=name,
            method=method,
            layout=template.layout,
            seed=self.seed,
            arrays_key=self._setting("arrayrecord_key", "arrays"),
            in_context=is_simulated(grid),
            template=template,
            initial=self.initial,
            # Without a name, nothing but this call of start() can continue the federation.
            session="" if self.federation or self.store else secrets.token_hex(8),
            weights_digest=digest_of(rounded, parts.carried),
        )
        if self.store is None:
            return Session(spec, server, RunTotals(None), grid, timeout)
        durable = DurableServer(server, stack.enter_context(Store(self.store)))
        return Session(spec, durable, RunTotals(self.store), grid, timeout)

    def _choose_method(self, num_rounds: int, *, is_fast: bool) -> Method:
        if self.method is None:
            method = self._stored_method() or default_method(num_rounds, is_fast=is_fast)
        else:
            method = self.method
        return _with_weights(method) if self.weighted and is_fast else method

    def _stored_method(self) -> Method | None:
        """Return the method of the federation in the store; None if it is a new one."""
        try:
            config = json.loads((cast(Path, self.store) / "config.json").read_text())
            return make_method(config["method"])
        except (AttributeError, KeyError, OSError, TypeError, ValueError):
            return None

    def _setting(self, name: str, default: str) -> str:
        """Return a setting of the wrapped strategy, or of the one that this wraps in turn."""
        strategy: object = self._strategy
        while strategy is not None:
            if isinstance(value := getattr(strategy, name, None), str):
                return value
            strategy = getattr(strategy, "strategy", None)
        return default

    def _recording(self, evaluate_fn: Evaluate) -> Evaluate:
        """Return a function that also records the metrics of an evaluation on the server."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            round = server_round + self._current_run().earlier_rounds
            metrics = evaluate_fn(round, arrays)
            self._round_metrics |= dict(metrics or {})
            self._record_round(round)
            return metrics

        return evaluate

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the training requests for the nodes that the strategy chooses."""
        run = self._current_run()
        run.session.start_round()
        self._round_metrics = {}
        return self._configure("configure_train", server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the evaluation requests; a node that has the newest model receives no update."""
        return self._configure("configure_evaluate", server_round, arrays, config, grid)

    def _configure(
        self, name: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        run = self._current_run()
        if arrays is not run.arrays and not are_equal(arrays, run.arrays):
            raise LocalProtocolError(
                f"{name} of {type(self._strategy).__name__} was called with other arrays than"
                " aggregate_train returned, which Compressed cannot send: let aggregate_train"
                " return the arrays for the next round"
            )
        _give_model_back(self._strategy, arrays)
        chosen = self._call(name, server_round + run.earlier_rounds, arrays, config, grid)
        # A list, not an iterator: some of Flower's grids iterate over it twice.
        config_key = self._setting("configrecord_key", "config")
        messages = run.session.requests(chosen, config_key, arrays).messages
        run.session.write_status()
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round with the usable uploads in the replies.

        Raises:
            NoUploads: No node has sent an upload, and this will not change by itself.

        """
        run = self._current_run()
        session = run.session
        round = server_round + run.earlier_rounds
        messages = list(replies)
        counted = self._accept_uploads(run, messages)
        has_uploads = bool(session.server.uploaded)
        if run.is_fast:
            broadcast = self._finish_by_method(run)
            metrics = aggregate_train_metrics(counted, cast(FedAvg, self._strategy))
        else:
            failed = [message for message in messages if message.has_error()]
            broadcast, metrics = self._finish_by_strategy(run, round, counted, failed)
        run.arrays = _model_of(session)
        self._round_metrics |= dict(metrics)
        metrics["uploads-counted"] = len(broadcast.counted)
        metrics["nodes-dropped"] = len(session.dropped)
        self._add_totals(metrics)
        session.write_status()
        unused = None
        if has_uploads and not broadcast.counted and session.lasting_failure() is None:
            unused = f"the aggregate_train of {type(self._strategy).__name__} returned no arrays"
        _check_progress(run, round, len(broadcast.counted), unused)
        return run.arrays, metrics

    def _accept_uploads(self, run: _Run, messages: Iterable[Message]) -> list[Reply]:
        """Pass the uploads to the server, and return the replies that have one."""
        session = run.session
        key = self._setting("weighted_by_key", "num-examples")
        counted: list[Reply] = []
        sizes: list[int] = []
        for reply in session.replies(messages):
            # Before the checks: an upload that is dropped has been sent, too.
            if nbytes := session.upload_nbytes(reply):
                sizes.append(nbytes)
            try:
                num_examples = num_examples_in(reply, key)
            except ValueError as error:
                if run.is_fast:
                    session.drop(reply.node, str(error), lasting=True)
                    continue
                num_examples = 1  # the strategy itself reads the weight if it needs one
            if session.accept_upload(reply, num_examples) is not None:
                counted.append(reply)
        if sizes:
            session.totals.counts.up.add(sizes, 0.0)
        return counted

    def _finish_by_method(self, run: _Run) -> Broadcast:
        """Aggregate the uploads as the method does, or as FedAvg does."""
        aggregate = Mean(weighted=True) if run.weighted else None
        return run.session.server.finish_round(aggregate=aggregate)

    def _finish_by_strategy(
        self, run: _Run, round: int, counted: Sequence[Reply], failed: Sequence[Message]
    ) -> tuple[Broadcast, MetricRecord]:
        """Let the strategy aggregate the models of the nodes, and compress its result."""
        session = run.session
        server = session.server
        uploads = {upload.client_id: upload for upload in server.uploads()}
        messages: list[Message] = []
        clients: list[int] = []
        # Sorted, because the rounding of a sum must not depend on the order of arrival.
        for client, reply in sorted((_client_of(reply), reply) for reply in counted):
            try:
                messages.append(_with_model(reply, uploads[client], session))
                clients.append(client)
            except NonFiniteError as error:
                session.drop(reply.node, str(error), lasting=True)
        arrays, metrics = self._call("aggregate_train", round, [*messages, *failed])
        if arrays is None:
            broadcast = server.finish_round(counted=())  # updates return to clients' residuals
            return broadcast, metrics or MetricRecord()
        template = _template_of(session)
        try:
            delta, carried = change_to(to_numpy(arrays), template, server.weights)
        except ValueError as error:
            returned = f"the aggregate_train of {type(self._strategy).__name__} returned"
            if isinstance(error, NonFiniteError):
                raise NonFiniteError(f"{returned} arrays that cannot be sent: {error}") from error
            raise ValueError(f"{returned} arrays of another model: {error}") from error
        broadcast = server.finish_round(delta=delta, carried=carried or None, counted=clients)
        return broadcast, metrics or MetricRecord()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the metrics of the nodes that could evaluate; None if there are none."""
        run = self._current_run()
        session = run.session
        evaluated = [
            reply for reply in session.replies(replies) if session.accept_evaluation(reply)
        ]
        where = "replies of evaluate functions"
        sizes = [session.count_arrays(reply.content, where) for reply in evaluated]
        if any(sizes):
            session.totals.counts.up.add(sizes, 0.0)
        round = server_round + run.earlier_rounds
        usable = evaluated
        if isinstance(self._strategy, FedAvg):  # which raises an error if metrics differ
            usable = comparable(evaluated, self._setting("weighted_by_key", "num-examples"))
        key = session.spec.arrays_key
        messages = [_put_model(reply, ArrayRecord(dict(run.arrays)), key) for reply in usable]
        metrics: MetricRecord = self._call("aggregate_evaluate", round, messages) or MetricRecord()
        self._round_metrics |= dict(metrics)
        if evaluated:
            self._add_totals(metrics)
        if not run.server_evaluates:
            self._record_round(round)
        return metrics if evaluated else None

    def _add_totals(self, metrics: MetricRecord) -> None:
        """Add the traffic so far to metrics, and save it."""
        session = self._current_run().session
        totals = session.totals
        totals.wire_bytes = count_wire(session.grid) or totals.wire_bytes
        totals.save()
        metrics.update(totals.to_metrics())

    def _record_round(self, round: int) -> None:
        session = self._current_run().session
        session.totals.record_round(round, session.spec, self._round_metrics)

    def _current_run(self) -> _Run:
        if self._run is None:
            raise LocalProtocolError(
                "Compressed works only inside its start(): call that. It must be the outermost"
                " strategy, such as Compressed(DifferentialPrivacyServerSideFixedClipping(...))"
            )
        return self._run


def default_method(num_rounds: int, *, is_fast: bool) -> Method:
    """Return the method of a federation whose app names none.

    Args:
        num_rounds: Number of rounds in total.
        is_fast: Whether the method aggregates, and not the strategy. A strategy of its own may have
            momentum, which is unstable if most values are sent only after many rounds.

    """
    return for_rounds(num_rounds, sparse=is_fast)


def _averages(strategy: Strategy) -> bool:
    """Return whether a strategy aggregates models as FedAvg does.

    It does not if a subclass, or the object itself, has its own ``aggregate_train`` or a helper of
    it, which may filter the replies.
    """
    return isinstance(strategy, FedAvg) and not any(
        name in vars(strategy) or getattr(type(strategy), name, None) is not getattr(FedAvg, name)
        for name in ("aggregate_train", "_check_and_log_replies")
        if hasattr(FedAvg, name)
    )


def _give_model_back(strategy: object, arrays: ArrayRecord) -> None:
    """Replace the model that a strategy has kept by the one that clients have.

    Its own result contains what the last broadcast left out, which the server adds in the next one:
    a strategy that continued from its own result would count it twice.
    """
    inner: Any = strategy
    while inner is not None:
        # FedAvgM keeps a record; the other strategies of Flower take the given arrays themselves.
        if isinstance(getattr(inner, "current_arrays", None), ArrayRecord):
            inner.current_arrays = arrays
        inner = getattr(inner, "strategy", None)


def _ignores_weights(method: Method) -> bool:
    """Return whether a method takes the mean without weights, and has no option to weight."""
    return isinstance(method.aggregate, Mean) and not method.aggregate.weighted


def _with_weights(method: Method) -> Method:
    """Return a method that weights clients by their examples, if it has an option for this."""
    recipe = METHODS.get(method.name)
    if recipe is None or "weighted" not in recipe.defaults:
        return method
    if isinstance(method.aggregate, CoordinateMedian | TrimmedMean | Krum):  # without weights
        return method
    parameters = {**method.parameters, "weighted": True}
    return method_from_spec(MethodSpec(method.name, method.version, parameters))


def _template_of(session: Session) -> Template:
    assert session.spec.template is not None  # every session of a strategy has one
    return session.spec.template


def _model_of(session: Session) -> ArrayRecord:
    """Return the model that clients have."""
    return to_record(_template_of(session), session.server.weights, session.server.carried)


def _client_of(reply: Reply) -> int:
    assert reply.answer is not None
    assert reply.answer.client is not None  # both hold for every accepted upload
    return reply.answer.client


def _with_model(reply: Reply, upload: Accepted, session: Session) -> Message:
    """Return a reply with the node's model in the place of its upload."""
    server = session.server
    weights = np.array(server.weights)
    upload.update.add_to(weights)
    model = to_record(_template_of(session), weights, {**server.carried, **upload.carried})
    return _put_model(reply, model, session.spec.arrays_key)


def _put_model(reply: Reply, model: ArrayRecord, default_key: str) -> Message:
    """Put a model into a reply, in the place where the app had put it, if it had."""
    if reply.answer is not None:
        key = reply.answer.arrays_key or default_key
        reply.message.content = RecordDict(
            {
                key if name == KEY else name: model if name == KEY else record
                for name, record in reply.content.items()
            }
        )
    return reply.message


def _check_progress(run: _Run, round: int, num_uploads: int, unused: str | None) -> None:
    """Stop a run whose rounds count no uploads, and will not count any.

    Args:
        run: The run.
        round: Number of the round.
        num_uploads: Number of uploads that the round counted.
        unused: Why the round counted none of the uploads that it had; None if it had none.

    Raises:
        NoUploads: There is no upload in this round, and this will not change by itself.

    """
    session = run.session
    if num_uploads:
        run.has_uploads = True
        run.empty_rounds = 0
        return
    if unused is None and not session.dropped:
        return  # the strategy has asked no node
    run.empty_rounds += 1
    lasting = session.lasting_failure()
    if unused is None:
        others = len(session.dropped) - 1
        reason = (lasting or session.dropped[0]) + (f" (and {others} more nodes)" if others else "")
    else:
        reason = unused
    sentence = f"Round {round} has counted no upload: {reason}"
    log(ERROR, "fedtern: %s", sentence)
    is_hopeless = lasting is not None and not run.has_uploads
    if is_hopeless or run.empty_rounds >= _MAX_EMPTY_ROUNDS:
        raise NoUploads(sentence)


def _renumber(result: Result, earlier_rounds: int) -> None:
    """Number the rounds in a result from the start of the federation."""
    for metrics in (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    ):
        renumbered = {round + earlier_rounds: value for round, value in metrics.items()}
        metrics.clear()
        metrics.update(renumbered)


def _warn_of_clipping_on_nodes(strategy: object) -> None:
    """Warn if the privacy of a strategy depends on the size of what nodes send."""
    names = (
        "DifferentialPrivacyClientSideFixedClipping",
        "DifferentialPrivacyClientSideAdaptiveClipping",
    )
    if type(strategy).__name__ in names:
        log(
            WARNING,
            "fedtern: %s clips the change of one round, but an upload also has what earlier uploads"
            " left out and can be larger, so that the privacy budget does not hold; use the"
            " server-side wrapper",
            type(strategy).__name__,
        )


def _check_carry(carry: str) -> Any:
    if carry not in ("average", "latest"):
        raise ValueError(f'carry must be "average" or "latest", got {carry!r}')
    return carry


def _check_strategy(strategy: object) -> Strategy:
    """Return the strategy; raise if its messages cannot be compressed."""
    name = type(strategy).__name__
    if isinstance(strategy, Compressed):
        raise ValueError("Compressed cannot wrap another Compressed: wrap the strategy once")
    if not isinstance(strategy, Strategy):
        raise ValueError(
            f"Compressed cannot wrap {name}: it is not a strategy of flwr.serverapp.strategy"
        )
    inner: object = strategy
    while inner is not None:
        if isinstance(inner, flower.FedXgbBagging | flower.FedXgbCyclic):
            raise ValueError(
                f"Compressed cannot wrap {type(inner).__name__}: its arrays are the bytes of"
                " decision trees, and not numbers whose small changes can be left out. Use it"
                " without Compressed, and its ClientApp without compression()"
            )
        if isinstance(inner, Compressed):
            raise ValueError(
                f"Compressed must be the outermost strategy: Compressed({name}(FedAvg(...)))"
            )
        inner = getattr(inner, "strategy", None)
    return strategy
