"""Apps of Flower's earlier API: ``NumPyClient``, ``server_fn`` and ``flwr.server.strategy``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
)
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    GetParametersIns,
    Parameters,
    parameters_to_ndarrays,
)
from flwr.common.constant import MessageTypeLegacy
from flwr.compat.common import recorddict_compat as compat
from flwr.server import ServerAppComponents, ServerConfig, SimpleClientManager
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.app_utils import start_update_client_manager_thread
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.strategy import FedAvgM, FedOpt
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fedtern.core.errors import RemoteProtocolError
from fedtern.core.methods import Method
from fedtern.transports.flower.strategy import Compressed

ServerFn = Callable[[Context], ServerAppComponents]


def compressed_server_app(
    server_fn: ServerFn, method: Method | None = None, **options: Any
) -> ServerApp:
    """Return a compressed app in the place of ``ServerApp(server_fn=server_fn)``.

    The strategy of the app runs as before, with the model of each node. The ``ClientApp`` gets the
    mod: ``ClientApp(client_fn=client_fn, mods=[compression()])``.

    Args:
        server_fn: The function of the app.
        method: What clients and server send; see ``Compressed``.
        options: Further arguments of ``Compressed``.

    Returns:
        The app.

    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        components = server_fn(context)
        if components.server is not None:
            raise ValueError(
                f"server_fn returns a {type(components.server).__name__}, whose rounds Compressed"
                " cannot run; return a strategy and a config only"
            )
        config = components.config or ServerConfig()
        strategy = components.strategy or LegacyFedAvg()
        manager = components.client_manager or SimpleClientManager()
        thread, stop, is_ready = start_update_client_manager_thread(grid, manager)
        try:
            is_ready.wait()
            adapted = Adapted(strategy, manager)
            timeout = config.round_timeout
            Compressed(adapted, method, **options).start(
                grid,
                adapted.initial_arrays(grid),
                config.num_rounds,
                3600 if timeout is None else timeout,
                evaluate_fn=adapted.evaluate,
            )
        finally:
            stop.set()
            thread.join()

    app.main()(main)
    return app


class Adapted(Strategy):
    """A strategy of ``flwr.server.strategy`` as one of ``flwr.serverapp.strategy``.

    Args:
        strategy: The strategy.
        client_manager: Knows the nodes.

    """

    arrayrecord_key = "fitins.parameters"
    configrecord_key = "fitins.config"
    weighted_by_key = "num_examples"

    def __init__(self, strategy: LegacyStrategy, client_manager: ClientManager) -> None:
        self.adapted = strategy
        self.client_manager = client_manager
        self._proxies: dict[int, ClientProxy] = {}  # of the nodes of the last requests

    def summary(self) -> None:
        """Do nothing: these strategies have no summary."""

    def initial_arrays(self, grid: Grid) -> ArrayRecord:
        """Return the initial model, from the strategy or from a node.

        Raises:
            RemoteProtocolError: The node did not return its parameters.

        """
        parameters = self.adapted.initialize_parameters(self.client_manager)
        if parameters is not None:
            return compat.parameters_to_arrayrecord(parameters, keep_input=True)
        node = self.client_manager.sample(1)[0].node_id
        content = compat.getparametersins_to_recorddict(GetParametersIns({}))
        request = Message(content, node, MessageTypeLegacy.GET_PARAMETERS, group_id="0")
        for reply in grid.send_and_receive([request]):
            if reply.has_content() and reply.content.array_records:
                return next(iter(reply.content.array_records.values()))
        raise RemoteProtocolError(
            f"node {node} did not return its initial parameters; pass initial_parameters to the"
            " strategy"
        )

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate the model on the server, if the strategy does."""
        found = self.adapted.evaluate(server_round, _to_parameters(arrays))
        return None if found is None else _to_metrics({"loss": found[0], **found[1]})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests of the strategy's ``configure_fit``."""
        parameters = _to_parameters(arrays)
        _give_model_back(self.adapted, parameters)
        chosen = self.adapted.configure_fit(server_round, parameters, self.client_manager)
        self._proxies = {proxy.node_id: proxy for proxy, _ in chosen}
        return [
            Message(
                compat.fitins_to_recorddict(instructions, keep_input=True),
                proxy.node_id,
                MessageType.TRAIN,
                group_id=str(server_round),
            )
            for proxy, instructions in chosen
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the result of the strategy's ``aggregate_fit``."""
        results: list[tuple[ClientProxy, FitRes]] = []
        failures: list[tuple[ClientProxy, FitRes] | BaseException] = []
        for reply in replies:
            if not reply.has_content():
                failures.append(RemoteProtocolError(str(reply.error.reason)))
                continue
            proxy = self._proxies[reply.metadata.src_node_id]
            result = compat.recorddict_to_fitres(reply.content, keep_input=False)
            is_ok = result.status.code == Code.OK
            (results if is_ok else failures).append((proxy, result))
        parameters, metrics = self.adapted.aggregate_fit(server_round, results, failures)
        if parameters is None:
            return None, _to_metrics(metrics)
        arrays = compat.parameters_to_arrayrecord(parameters, keep_input=True)
        return arrays, _to_metrics(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests of the strategy's ``configure_evaluate``."""
        chosen = self.adapted.configure_evaluate(
            server_round, _to_parameters(arrays), self.client_manager
        )
        self._proxies = {proxy.node_id: proxy for proxy, _ in chosen}
        return [
            Message(
                compat.evaluateins_to_recorddict(instructions, keep_input=True),
                proxy.node_id,
                MessageType.EVALUATE,
                group_id=str(server_round),
            )
            for proxy, instructions in chosen
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the result of the strategy's ``aggregate_evaluate``."""
        results: list[tuple[ClientProxy, EvaluateRes]] = []
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException] = []
        for reply in replies:
            if not reply.has_content():
                failures.append(RemoteProtocolError(str(reply.error.reason)))
                continue
            proxy = self._proxies[reply.metadata.src_node_id]
            result = compat.recorddict_to_evaluateres(reply.content)
            is_ok = result.status.code == Code.OK
            (results if is_ok else failures).append((proxy, result))
        loss, metrics = self.adapted.aggregate_evaluate(server_round, results, failures)
        return _to_metrics(metrics if loss is None else {"loss": loss, **metrics})


def _give_model_back(strategy: object, parameters: Parameters) -> None:
    """Replace the model that a strategy has kept by the one that nodes have.

    These strategies compute from their own last result, or from the initial model before its
    rounding, and not from the parameters that ``configure_fit`` gets.
    """
    inner: object = strategy
    while inner is not None:
        if isinstance(inner, FedOpt):
            inner.current_weights = parameters_to_ndarrays(parameters)
        elif isinstance(inner, FedAvgM):
            inner.initial_parameters = parameters
        inner = getattr(inner, "strategy", None)


def _to_parameters(arrays: ArrayRecord) -> Parameters:
    return compat.arrayrecord_to_parameters(arrays, keep_input=True)


def _to_metrics(values: Mapping[str, object]) -> MetricRecord:
    """Return those metrics that are numbers: a ``MetricRecord`` holds nothing else."""
    return MetricRecord({n: v for n, v in values.items() if isinstance(v, int | float)})
