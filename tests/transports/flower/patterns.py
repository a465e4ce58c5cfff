"""Small Flower apps with the patterns of real ones, each plain and compressed by two lines.

An app is a `Pattern`: the functions of its `ClientApp` and the main function of its `ServerApp`.
The main function passes its strategy through ``wrap``: nothing in the plain app, `Compressed` in
the compressed one. All apps learn scikit-learn's handwritten digits.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from direct import DirectSimulation
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Result, Strategy
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

from fedtern.transports.flower import Compressed, compression

NODES = 4
TEST = 397  # examples that no node trains on
BATCH = 20

Wrap = Callable[[Strategy], Strategy]


@dataclass(frozen=True)
class Pattern:
    """An app.

    Attributes:
        train: The train function of the client app.
        evaluate: Its evaluate function.
        serve: The main function of the server app; returns the app's metric.
        tolerance: Largest difference of the metric that compression may make.

    """

    train: Callable[[Message, Context], Message]
    evaluate: Callable[[Message, Context], Message]
    serve: Callable[[Grid, Wrap], float]
    tolerance: float


@dataclass(frozen=True)
class Outcome:
    """Metric and traffic of a run."""

    metric: float
    up: int
    down: int


class CountingGrid(DirectSimulation):
    """Counts the bytes of arrays and of bytes values; fails where an app fails."""

    def __init__(self, root: Path, apps: list[ClientApp | None]) -> None:
        super().__init__(root, apps)
        self.up = self.down = 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        sent = list(messages)
        self.down += sum(map(payload, sent))
        replies = super().send_and_receive(sent, timeout=timeout)
        for reply in replies:
            assert not reply.has_error(), reply.error.reason
        self.up += sum(map(payload, replies))
        return replies


def payload(message: Message) -> int:
    content = message.content
    arrays = sum(len(array.data) for r in content.array_records.values() for array in r.values())
    values = (value for record in content.config_records.values() for value in record.values())
    return arrays + sum(len(value) for value in values if isinstance(value, bytes))


def run(
    pattern: Pattern,
    root: Path,
    *,
    compressed: bool,
    outer: Sequence[Mod] = (),
    inner: Sequence[Mod] = (),
    **options: Any,
) -> Outcome:
    """Run an app on nodes in this process.

    Args:
        pattern: The app.
        root: Directory for the states of nodes.
        compressed: Whether with the two lines.
        outer: Mods listed before that of the compression.
        inner: Mods listed after it.
        options: Options of `Compressed`.

    """
    torch.manual_seed(0)
    random.seed(0)  # Flower samples nodes with it
    own = [compression()] if compressed else []
    client = ClientApp(mods=[*outer, *own, *inner])
    client.train()(pattern.train)
    client.evaluate()(pattern.evaluate)
    root.mkdir(parents=True, exist_ok=True)
    grid = CountingGrid(root, [client] * NODES)
    metric = pattern.serve(
        grid, (lambda s: Compressed(s, **options)) if compressed else lambda s: s
    )
    return Outcome(metric, grid.up, grid.down)


# --- data and models ------------------------------------------------------------------------------


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    found = load_digits()
    order = np.random.default_rng(1).permutation(len(found.target))
    return (found.data[order] / 16).astype(np.float32), found.target[order]


def share(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples of a node."""
    inputs, targets = digits()
    number, count = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    return inputs[TEST:][number::count], targets[TEST:][number::count]


def held_out() -> tuple[np.ndarray, np.ndarray]:
    inputs, targets = digits()
    return inputs[:TEST], targets[:TEST]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


class Residual(nn.Module):
    """A convolutional net with batch normalisation and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 12, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(12)
        self.second = nn.Conv2d(12, 12, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(12)
        self.last = nn.Linear(12 * 16, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        found = functional.relu(self.first_norm(self.first(inputs.view(-1, 1, 8, 8))))
        found = functional.relu(found + self.second_norm(self.second(found)))
        return self.last(functional.max_pool2d(found, 2).flatten(1))


def load(model: nn.Module, message: Message) -> nn.Module:
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: tuple[np.ndarray, np.ndarray],
    change_gradients: Callable[[nn.Module], None] = lambda _model: None,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
) -> int:
    """Train for an epoch and return the number of steps."""
    inputs, targets = torch.from_numpy(data[0]), torch.from_numpy(data[1])
    model.train()
    batches = torch.randperm(len(targets)).split(BATCH)
    for batch in batches:
        optimizer.zero_grad()
        if loss is None:
            functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        else:
            loss(model, inputs[batch], targets[batch]).backward()
        change_gradients(model)
        optimizer.step()
    return len(batches)


def accuracy(model: nn.Module, data: tuple[np.ndarray, np.ndarray]) -> float:
    model.eval()
    with torch.no_grad():
        found = model(torch.from_numpy(data[0])).argmax(1).numpy()
    return float((found == data[1]).mean())


def sgd(model: nn.Module, rate: float = 0.05, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), rate, momentum)


def reply_with(message: Message, arrays: ArrayRecord | None, **metrics: float) -> Message:
    content = RecordDict({"metrics": MetricRecord(metrics)})
    if arrays is not None:
        content["arrays"] = arrays
    return Message(content, reply_to=message)


def seed_of(message: Message, context: Context) -> int:
    server_round = int(message.content["config"]["server-round"])
    return 100 * server_round + int(context.node_config["partition-id"])


# --- a model, central evaluation ------------------------------------------------------------------


def quickstart_train(message: Message, context: Context) -> Message:
    torch.manual_seed(seed_of(message, context))
    model, data = load(mlp(), message), share(context)
    fit(model, sgd(model, float(message.content["config"]["lr"])), data)
    return reply_with(message, ArrayRecord(model.state_dict()), **{"num-examples": len(data[1])})


def quickstart_evaluate(message: Message, context: Context) -> Message:
    data = share(context)
    found = accuracy(load(mlp(), message), data)
    return reply_with(message, None, **{"eval_acc": found, "num-examples": len(data[1])})


def central_accuracy(_server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = mlp()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model, held_out())})


def serve_with(strategy: Strategy, rounds: int = 5) -> Callable[[Grid, Wrap], float]:
    """Return a main function that starts a strategy, wrapped or not."""

    def serve(grid: Grid, wrap: Wrap) -> float:
        result = wrap(copy.deepcopy(strategy)).start(
            grid=grid,
            initial_arrays=ArrayRecord(mlp().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"lr": 0.05}),
            evaluate_fn=central_accuracy,
        )
        return float(result.evaluate_metrics_serverapp[rounds]["accuracy"])

    return serve


# --- a strategy with its own start, a schedule and saved models -----------------------------------


class Saving(FedAvg):
    """Has a learning-rate schedule, and a start that keeps the best model."""

    def set_directory(self, directory: Path) -> None:
        self.directory = directory

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 3:
            config["lr"] = float(config["lr"]) * 0.5  # for all rounds from here
        return super().configure_train(server_round, arrays, config, grid)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        assert evaluate_fn is not None
        self.best = 0.0
        train_config = train_config or ConfigRecord()
        result, arrays = Result(), initial_arrays
        for current in range(1, num_rounds + 1):
            messages = self.configure_train(current, arrays, train_config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            aggregated, metrics = self.aggregate_train(current, replies)
            assert aggregated is not None
            assert metrics is not None
            arrays = result.arrays = aggregated
            result.train_metrics_clientapp[current] = metrics
            messages = self.configure_evaluate(
                current, arrays, evaluate_config or ConfigRecord(), grid
            )
            evaluations = grid.send_and_receive(messages, timeout=timeout)
            found = self.aggregate_evaluate(current, evaluations)
            assert found is not None
            assert 0 <= float(found["eval_acc"]) <= 1
            central = evaluate_fn(current, arrays)
            assert central is not None
            result.evaluate_metrics_serverapp[current] = central
            if float(central["accuracy"]) > self.best:
                self.best = float(central["accuracy"])
                torch.save(arrays.to_torch_state_dict(), self.directory / "best.pt")
        return result


HEAD = "2.weight"  # the last layer, which a node keeps in its own state


def saving_train(message: Message, context: Context) -> Message:
    torch.manual_seed(seed_of(message, context))
    model, data = load(mlp(), message), share(context)
    if "head" in context.state:
        model.load_state_dict(context.state["head"].to_torch_state_dict(), strict=False)
    fit(model, sgd(model, float(message.content["config"]["lr"])), data)
    context.state["head"] = ArrayRecord({HEAD: Array(model.state_dict()[HEAD].numpy())})
    return reply_with(message, ArrayRecord(model.state_dict()), **{"num-examples": len(data[1])})


def serve_saving(grid: Grid, wrap: Wrap) -> float:
    strategy = wrap(Saving())
    strategy.set_directory(grid.root)  # a method of the wrapped strategy
    config = ConfigRecord({"lr": 0.05})
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(mlp().state_dict()),
        num_rounds=5,
        train_config=config,
        evaluate_fn=central_accuracy,
    )
    assert float(config["lr"]) == 0.025
    model = mlp()
    model.load_state_dict(torch.load(grid.root / "best.pt"))
    assert accuracy(model, held_out()) == strategy.best
    return strategy.best


# --- an autoencoder that a trainer object fits ----------------------------------------------------


class AutoEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 64))

    def training_step(self, inputs: Tensor) -> Tensor:
        return functional.mse_loss(self.decoder(self.encoder(inputs)), inputs)


def autoencoder_train(message: Message, context: Context) -> Message:
    torch.manual_seed(seed_of(message, context))
    model, data = load(AutoEncoder(), message), share(context)
    adam = torch.optim.Adam(model.parameters(), 2e-3)
    fit(model, adam, data, loss=lambda model, inputs, _targets: model.training_step(inputs))
    return reply_with(message, ArrayRecord(model.state_dict()), **{"num-examples": len(data[1])})


def autoencoder_evaluate(message: Message, context: Context) -> Message:
    model, data = load(AutoEncoder(), message), share(context)
    with torch.no_grad():
        loss = float(model.training_step(torch.from_numpy(data[0])))
    return reply_with(message, None, **{"loss": loss, "num-examples": len(data[1])})


# --- a variational autoencoder: no metrics but the number of examples -----------------------------


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 6), nn.Linear(32, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def training_step(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        drawn = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        divergence = -0.5 * torch.mean(1 + log_variance - mean**2 - log_variance.exp())
        return functional.mse_loss(self.decoder(drawn), inputs) + 0.01 * divergence


def variational_train(message: Message, context: Context) -> Message:
    torch.manual_seed(seed_of(message, context))
    model, data = load(Variational(), message), share(context)
    fit(model, sgd(model, 0.2), data, loss=lambda model, x, _targets: model.training_step(x))
    return reply_with(message, ArrayRecord(model.state_dict()), **{"num-examples": len(data[1])})


def variational_evaluate(message: Message, context: Context) -> Message:
    torch.manual_seed(0)
    model, data = load(Variational(), message), share(context)
    with torch.no_grad():
        loss = float(model.training_step(torch.from_numpy(data[0])))
    return reply_with(message, None, **{"loss": loss, "num-examples": len(data[1])})


def serve_loss(model: Callable[[], nn.Module], rounds: int) -> Callable[[Grid, Wrap], float]:
    """Return a main function whose metric is the loss on the nodes."""

    def serve(grid: Grid, wrap: Wrap) -> float:
        strategy = wrap(FedAvg(fraction_train=0.5, fraction_evaluate=1.0))
        result = strategy.start(
            grid=grid, initial_arrays=ArrayRecord(model().state_dict()), num_rounds=rounds
        )
        return float(result.evaluate_metrics_clientapp[rounds]["loss"])

    return serve


# --- an evaluate function that returns the model --------------------------------------------------


def returning_evaluate(message: Message, context: Context) -> Message:
    data = share(context)
    model = load(mlp(), message)
    found = accuracy(model, data)
    arrays = ArrayRecord(model.state_dict())
    return reply_with(message, arrays, **{"eval_acc": found, "num-examples": len(data[1])})


# --- scikit-learn: a list of float64 arrays -------------------------------------------------------


def logistic_regression(arrays: ArrayRecord | None = None) -> LogisticRegression:
    model = LogisticRegression(max_iter=1, warm_start=True, solver="saga")
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = np.zeros((10, 64)), np.zeros(10)
    if arrays is not None:
        model.coef_, model.intercept_ = arrays.to_numpy_ndarrays()
        assert model.coef_.dtype == np.float64
    return model


def sklearn_train(message: Message, context: Context) -> Message:
    model, data = logistic_regression(message.content["arrays"]), share(context)
    model.random_state = seed_of(message, context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an epoch is not enough to converge
        model.fit(data[0].astype(np.float64), data[1])
    arrays = ArrayRecord([model.coef_, model.intercept_])
    return reply_with(message, arrays, **{"num-examples": len(data[1])})


def sklearn_evaluate(message: Message, context: Context) -> Message:
    data = share(context)
    found = logistic_regression(message.content["arrays"]).score(*data)
    return reply_with(message, None, **{"accuracy": float(found), "num-examples": len(data[1])})


def serve_sklearn(grid: Grid, wrap: Wrap) -> float:
    start = logistic_regression()
    result = wrap(FedAvg()).start(
        grid=grid,
        initial_arrays=ArrayRecord([start.coef_, start.intercept_]),
        num_rounds=10,
    )
    assert {array.numpy().dtype for array in result.arrays.values()} == {np.dtype(np.float64)}
    return float(logistic_regression(result.arrays).score(*held_out()))


# --- NumPy arrays of a functional model, as from JAX ----------------------------------------------


def functional_init() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    first = rng.normal(0, 0.15, (64, 48)).astype(np.float32)
    second = rng.normal(0, 0.15, (48, 10)).astype(np.float32)
    return [first, np.zeros(48, np.float32), second, np.zeros(10, np.float32)]


def functional_logits(parameters: list[np.ndarray], inputs: np.ndarray) -> Any:
    hidden = np.maximum(inputs @ parameters[0] + parameters[1], 0)
    return hidden, hidden @ parameters[2] + parameters[3]


def functional_train(message: Message, context: Context) -> Message:
    rng = np.random.default_rng(seed_of(message, context))
    parameters = message.content["arrays"].to_numpy_ndarrays()
    inputs, targets = share(context)
    for batch in np.array_split(rng.permutation(len(targets)), len(targets) // BATCH):
        x, y = inputs[batch], np.eye(10, dtype=np.float32)[targets[batch]]
        hidden, logits = functional_logits(parameters, x)
        odds = np.exp(logits - logits.max(1, keepdims=True))
        slope = (odds / odds.sum(1, keepdims=True) - y) / len(batch)
        back = (slope @ parameters[2].T) * (hidden > 0)
        gradients = [x.T @ back, back.sum(0), hidden.T @ slope, slope.sum(0)]
        parameters = [p - np.float32(0.5) * g for p, g in zip(parameters, gradients, strict=True)]
    return reply_with(message, ArrayRecord(parameters), **{"num-examples": len(targets)})


def functional_evaluate(message: Message, context: Context) -> Message:
    found = functional_accuracy(message.content["arrays"], share(context))
    return reply_with(message, None, **{"eval_acc": found, "num-examples": 1})


def functional_accuracy(arrays: ArrayRecord, data: tuple[np.ndarray, np.ndarray]) -> float:
    _, logits = functional_logits(arrays.to_numpy_ndarrays(), data[0])
    return float((logits.argmax(1) == data[1]).mean())


def serve_functional(grid: Grid, wrap: Wrap) -> float:
    strategy = wrap(FedAvg(fraction_train=0.5, fraction_evaluate=0.5))
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(functional_init()), num_rounds=6)
    return functional_accuracy(result.arrays, held_out())


# --- differentially private training on the nodes, own functions for metrics ----------------------


def private_train(message: Message, context: Context) -> Message:
    torch.manual_seed(seed_of(message, context))
    model, data = load(mlp(), message), share(context)

    def clip_and_add_noise(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for parameter in model.parameters():
            parameter.grad += 0.01 * torch.randn_like(parameter)

    fit(model, sgd(model), data, clip_and_add_noise)
    metrics = {"epsilon": 1.0 + context.node_config["partition-id"], "num-examples": len(data[1])}
    return reply_with(message, ArrayRecord(model.state_dict()), **metrics)


def largest_epsilon(replies: list[RecordDict], _weighted_by: str) -> MetricRecord:
    found = max(float(content["metrics"]["epsilon"]) for content in replies)
    return MetricRecord({"max_epsilon": found})


def mean_accuracy(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
    metrics = [content["metrics"] for content in replies]
    total = sum(int(record[weighted_by]) for record in metrics)
    found = sum(float(record["eval_acc"]) * int(record[weighted_by]) for record in metrics)
    return MetricRecord({"accuracy": found / total})


def serve_private(grid: Grid, wrap: Wrap) -> float:
    strategy = FedAvg(train_metrics_aggr_fn=largest_epsilon, evaluate_metrics_aggr_fn=mean_accuracy)
    result = wrap(strategy).start(
        grid=grid, initial_arrays=ArrayRecord(mlp().state_dict()), num_rounds=5
    )
    assert result.train_metrics_clientapp[5]["max_epsilon"] == NODES
    return float(result.evaluate_metrics_clientapp[5]["accuracy"])


# --- adapters on a frozen base --------------------------------------------------------------------


class Adapted(nn.Module):
    """A frozen net and a trained low-rank change of its first layer; both ends know the net."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.base = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
            self.base.requires_grad_(False)
            self.adapters = nn.ModuleDict(
                {"down": nn.Linear(64, 8, bias=False), "up": nn.Linear(8, 96, bias=False)}
            )
            nn.init.zeros_(self.adapters["up"].weight)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.base[0](inputs) + self.adapters["up"](self.adapters["down"](inputs))
        return self.base[2](functional.relu(hidden))


def adapted(arrays: ArrayRecord) -> Adapted:
    model = Adapted()
    model.adapters.load_state_dict(arrays.to_torch_state_dict())
    return model


def adapter_train(message: Message, context: Context) -> Message:
    torch.manual_seed(seed_of(message, context))
    config = message.content["config"]
    model, data = adapted(message.content["arrays"]), share(context)
    rate = 2e-2 * 0.5 * (1 + np.cos(np.pi * float(config["server-round"]) / 8))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert config["save_path"]
    fit(model, torch.optim.AdamW(trained, rate), data)
    arrays = ArrayRecord(model.adapters.state_dict())
    return reply_with(message, arrays, **{"num-examples": len(data[1])})


def no_evaluate(message: Message, _context: Context) -> Message:
    raise AssertionError("this app does not evaluate on its nodes")


def serve_adapters(grid: Grid, wrap: Wrap) -> float:
    saved: list[float] = []

    def save(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == 8:
            saved.append(accuracy(adapted(arrays), held_out()))
        return MetricRecord()  # an evaluation without metrics

    wrap(FedAvg(fraction_train=0.5, fraction_evaluate=0.0)).start(
        grid=grid,
        initial_arrays=ArrayRecord(Adapted().adapters.state_dict()),
        num_rounds=8,
        train_config=ConfigRecord({"save_path": "results"}),
        evaluate_fn=save,
    )
    return saved[0]


# --- batch normalisation --------------------------------------------------------------------------


def normalised_train(message: Message, context: Context) -> Message:
    torch.manual_seed(seed_of(message, context))
    model, data = load(Residual(), message), share(context)
    before = int(model.state_dict()["first_norm.num_batches_tracked"])
    steps = fit(model, sgd(model), data)
    assert int(model.state_dict()["first_norm.num_batches_tracked"]) == before + steps
    return reply_with(message, ArrayRecord(model.state_dict()), **{"num-examples": len(data[1])})


def serve_normalised(grid: Grid, wrap: Wrap) -> float:
    def evaluate(_server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = Residual()
        model.load_state_dict(arrays.to_torch_state_dict())
        for name, tensor in model.state_dict().items():
            assert not name.endswith("running_var") or float(tensor.min()) >= 0
        return MetricRecord({"accuracy": accuracy(model, held_out())})

    result = wrap(FedAvg(fraction_evaluate=0.0)).start(
        grid=grid,
        initial_arrays=ArrayRecord(Residual().state_dict()),
        num_rounds=5,
        evaluate_fn=evaluate,
    )
    return float(result.evaluate_metrics_serverapp[5]["accuracy"])


# --- further arrays in requests and replies: control variates (SCAFFOLD) --------------------------


class Scaffold(FedAvg):
    """Sends a control variate beside the model, and receives its changes."""

    control: dict[str, np.ndarray] | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self.control is None:
            self.control = {name: np.zeros_like(a.numpy()) for name, a in arrays.items()}
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content["control"] = named(self.control)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        assert self.control is not None
        for reply in replies:
            change = reply.content.pop("control-change")
            for name, array in change.items():
                self.control[name] = self.control[name] + array.numpy() / NODES
        return super().aggregate_train(server_round, replies)


def named(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def scaffold_train(message: Message, context: Context) -> Message:
    torch.manual_seed(seed_of(message, context))
    model, data = load(mlp(), message), share(context)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    control = message.content["control"].to_torch_state_dict()
    own = {name: torch.zeros_like(tensor) for name, tensor in control.items()}
    if "control" in context.state:
        own = context.state["control"].to_torch_state_dict()

    def correct(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.grad += control[name] - own[name]

    steps = fit(model, sgd(model, 0.2, 0.0), data, correct)
    new = {
        name: (own[name] - control[name] + (start[name] - tensor) / (steps * 0.2)).numpy()
        for name, tensor in model.state_dict().items()
    }
    context.state["control"] = named(new)
    reply = reply_with(message, ArrayRecord(model.state_dict()), **{"num-examples": len(data[1])})
    reply.content["control-change"] = named({n: a - own[n].numpy() for n, a in new.items()})
    return reply


# --- a strategy that leaves replies out by a record in them ---------------------------------------


class Exclusive(FedAvg):
    """Averages the models of the nodes that say they have trained."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        assert len(replies) == NODES
        trained = []
        for reply in replies:
            (record,) = reply.content.config_records.values()
            if record["trained"]:
                trained.append(reply)
        assert len(trained) == NODES - 1
        return super().aggregate_train(server_round, trained)


def exclusive_train(message: Message, context: Context) -> Message:
    is_trained = context.node_config["partition-id"] != 0
    if is_trained:
        reply = quickstart_train(message, context)
    else:
        untrained = message.content["arrays"]
        reply = reply_with(message, untrained, **{"num-examples": 350})
    reply.content["status"] = ConfigRecord({"trained": is_trained})
    return reply


# --- all of them ----------------------------------------------------------------------------------

PATTERNS = {
    "central evaluation": Pattern(
        quickstart_train, quickstart_evaluate, serve_with(FedAvg(fraction_evaluate=0.5)), 0.02
    ),
    "own start, schedule and saved models": Pattern(
        saving_train, quickstart_evaluate, serve_saving, 0.02
    ),
    "autoencoder with Adam": Pattern(
        autoencoder_train, autoencoder_evaluate, serve_loss(AutoEncoder, 6), 0.004
    ),
    "variational autoencoder": Pattern(
        variational_train, variational_evaluate, serve_loss(Variational, 6), 0.004
    ),
    "evaluate returns the model": Pattern(
        quickstart_train, returning_evaluate, serve_with(FedAvg()), 0.02
    ),
    "scikit-learn in float64": Pattern(sklearn_train, sklearn_evaluate, serve_sklearn, 0.02),
    "list of NumPy arrays": Pattern(functional_train, functional_evaluate, serve_functional, 0.02),
    "private training": Pattern(private_train, quickstart_evaluate, serve_private, 0.02),
    "adapters only": Pattern(adapter_train, no_evaluate, serve_adapters, 0.02),
    "batch normalisation": Pattern(normalised_train, no_evaluate, serve_normalised, 0.02),
    "FedAdam": Pattern(
        quickstart_train,
        quickstart_evaluate,
        serve_with(FedAdam(eta=0.03, eta_l=0.05), rounds=8),
        0.02,
    ),
    "FedMedian": Pattern(quickstart_train, quickstart_evaluate, serve_with(FedMedian()), 0.02),
    "further arrays in requests and replies": Pattern(
        scaffold_train, quickstart_evaluate, serve_with(Scaffold(), rounds=6), 0.02
    ),
    "replies left out by a record in them": Pattern(
        exclusive_train, quickstart_evaluate, serve_with(Exclusive()), 0.02
    ),
}
