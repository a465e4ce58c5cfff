"""Strategies, models and apps of any kind: compression changes bytes, not results."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: install the extra flower")

from direct import DirectGrid, DirectSimulation, app, evaluate, initial, train
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server import strategy as legacy_strategies
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedProx

from fedtern import METHODS, LocalProtocolError, fedavg, signsgd, stc
from fedtern.transports.flower import Compressed, compressed_server_app, compression
from fedtern.transports.flower.messages import ATTACHMENT, KEY
from fedtern.transports.flower.strategy import NoUploads

NODES = {"min_available_nodes": 1, "min_train_nodes": 1, "min_evaluate_nodes": 1}
LOSSLESS = fedavg(1)


@pytest.fixture
def flower_log(caplog):
    """Capture the log of Flower, which fedtern writes to."""
    caplog.set_level(logging.INFO, "flwr")
    return caplog


def returning(change, examples=lambda number: 10 * number, loss="loss"):
    """Return a train function whose arrays are ``change(name, array, number of the node)``."""

    def train(message, context):
        number = int(context.node_config["partition-id"]) + 1
        arrays = message.content.array_records["arrays"]
        changed = {
            name: Array(np.asarray(change(name, array.numpy(), number)))
            for name, array in arrays.items()
        }
        metrics = MetricRecord({"num-examples": examples(number), loss: 1.0 / number})
        content = RecordDict({"arrays": ArrayRecord(changed), "metrics": metrics})
        return Message(content, reply_to=message)

    return train


def record(**arrays):
    return ArrayRecord({name.replace("__", "."): Array(a) for name, a in arrays.items()})


def run(tmp_path, apps, strategy, arrays, rounds=2, **start):
    grid = DirectGrid(tmp_path, apps)
    return strategy.start(grid, arrays, rounds, 1, **start)


def values(result):
    return {name: array.numpy() for name, array in result.arrays.items()}


def last(result, name):
    return list(result.train_metrics_clientapp.values())[-1][name]


# Weights of nodes ------------------------------------------------------------------------------


def to_number(_name, array, number):
    return np.full_like(array, number - 1)


@pytest.mark.parametrize("weights", [(999, 1), (0.75, 0.25), (2.5, 0.001)])
@pytest.mark.parametrize("name", ["fedavg", "sgd", "topk", "terngrad"])
def test_updates_are_weighted_by_num_examples(tmp_path, name, weights):
    step = returning(to_number, examples=lambda number: weights[number - 1])
    method = METHODS[name](**({"p_up": 1.0} if name == "topk" else {}))
    strategy = Compressed(FedAvg(**NODES), method)
    result = run(tmp_path, [app(step), app(step)], strategy, record(w=np.zeros(3, np.float32)), 1)
    assert values(result)["w"] == pytest.approx(weights[1] / sum(weights), abs=1e-6)


def test_default_method_weights_by_num_examples(tmp_path):
    step = returning(to_number, examples=lambda number: (999, 1)[number - 1])
    arrays = record(w=np.zeros(1, np.float32))
    result = run(tmp_path, [app(step), app(step)], Compressed(FedAvg(**NODES)), arrays, 1)
    assert values(result)["w"] == pytest.approx(0.001, abs=0.001)  # the mean is 0.5


def test_weighted_can_be_switched_off(tmp_path):
    step = returning(to_number, examples=lambda number: (999, 1)[number - 1])
    arrays = record(w=np.zeros(1, np.float32))
    strategy = Compressed(FedAvg(**NODES), LOSSLESS, weighted=False)
    result = run(tmp_path, [app(step), app(step)], strategy, arrays, 1)
    assert values(result)["w"] == pytest.approx(0.5)


def test_a_median_ignores_num_examples(tmp_path):
    step = returning(to_number, examples=lambda number: (999, 1)[number - 1])
    method = METHODS["fedavg"](aggregate="median")
    strategy = Compressed(FedAvg(**NODES), method)
    result = run(tmp_path, [app(step), app(step)], strategy, record(w=np.zeros(3, np.float32)), 1)
    assert values(result)["w"] == pytest.approx(0.5)


def test_weights_may_have_another_key(tmp_path):
    def step(message, context):
        reply = returning(to_number)(message, context)
        number = int(context.node_config["partition-id"])
        reply.content["metrics"] = MetricRecord({"weight": (3, 1)[number]})
        return reply

    arrays = record(w=np.zeros(1, np.float32))
    strategy = Compressed(FedAvg(**NODES, weighted_by_key="weight"), LOSSLESS)
    result = run(tmp_path, [app(step), app(step)], strategy, arrays, 1)
    assert values(result)["w"] == pytest.approx(0.25)


# Tensors of any kind ---------------------------------------------------------------------------


def batch_norm_step(name, array, number):
    if name.endswith("num_batches_tracked"):
        return array + 10 * number
    if name.endswith("running_var"):
        return (0.5 * array + 0.5 * number).astype(array.dtype)
    return array + np.asarray(0.1 * number, array.dtype)


BATCH_NORM = {
    "bn__weight": np.ones(4, np.float32),
    "bn__running_var": np.full(4, 1, np.float32),
    "bn__num_batches_tracked": np.array(5),
}


@pytest.mark.parametrize("method", [stc(1 / 4, 1 / 4), signsgd(), LOSSLESS])
def test_batch_norm_statistics_are_averaged_and_counters_take_the_maximum(tmp_path, method):
    step = returning(batch_norm_step, examples=lambda number: (3, 1)[number - 1])
    strategy = Compressed(FedAvg(**NODES), method)
    result = run(tmp_path, [app(step), app(step)], strategy, record(**BATCH_NORM), 2)
    found = values(result)
    assert found["bn.num_batches_tracked"] == 5 + 20 + 20
    assert found["bn.num_batches_tracked"].dtype == np.int64
    # signsgd gives every client the same vote, and so the same share.
    mean = 1.5 if method.name == "signsgd" else 1.25
    assert found["bn.running_var"] == pytest.approx((1 + mean) / 2 / 2 + mean / 2)


def test_latest_statistics_are_kept_if_the_user_says_so(tmp_path):
    step = returning(batch_norm_step)
    strategy = Compressed(FedAvg(**NODES), LOSSLESS, carry="latest")
    result = run(tmp_path, [app(step), app(step)], strategy, record(**BATCH_NORM), 1)
    assert set(values(result)["bn.running_var"]) <= {1.0, 1.5}  # that of one of the nodes
    with pytest.raises(ValueError, match='carry must be "average" or "latest", got \'local\''):
        run(tmp_path, [app()], Compressed(FedAvg(), carry="local"), record(**BATCH_NORM))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("name", ["grid", "qsgd", "terngrad"])
def test_latest_statistics_are_those_of_the_reply_that_arrived_last(tmp_path, name, stored):
    class Reversed(DirectGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            return sorted(replies, key=lambda reply: -reply.metadata.src_node_id)

    step = returning(batch_norm_step)
    grid = Reversed(tmp_path, [app(step) for _ in range(3)])
    store = tmp_path / "fed" if stored else None
    wrapped = Compressed(FedAvg(**NODES), METHODS[name](), carry="latest", store=store)
    result = wrapped.start(grid, record(**BATCH_NORM), 1, 1)
    client_of_first_node = 0.5 + 0.5 * 1
    assert values(result)["bn.running_var"] == pytest.approx(client_of_first_node)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_model_keeps_its_dtype_and_layout_on_nodes_and_in_the_result(tmp_path, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    seen = []

    def look(message, context):
        (array,) = message.content["arrays"].values()
        seen.append((array.dtype, array.shape, array.stype))
        raw = array.numpy().view(np.dtype(dtype)).astype(np.float32) + np.float32(0.25)
        changed = ArrayRecord({"w": Array(raw.astype(dtype))})
        content = {"arrays": changed, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    arrays = ArrayRecord({"w": Array(np.zeros((2, 3), dtype))})
    strategy = Compressed(FedAvg(**NODES, fraction_evaluate=0.0), LOSSLESS)
    result = run(tmp_path, [app(look), app(look)], strategy, arrays, 2)
    assert set(seen) == {(dtype, (2, 3), "numpy.ndarray")}
    final = result.arrays["w"]
    assert final.dtype == dtype
    assert (final.numpy().view(np.dtype(dtype)).astype(np.float32) == 0.5).all()


def test_fortran_order_and_empty_arrays_are_read(tmp_path):
    arrays = record(
        w=np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        none=np.zeros((0, 3), np.float32),
        scalar=np.array(1.5, np.float32),
    )
    step = returning(lambda _name, array, _number: array + 1)
    strategy = Compressed(FedAvg(**NODES), LOSSLESS, initial="exact")
    result = run(tmp_path, [app(step)], strategy, arrays, 1)
    assert (values(result)["w"] == np.arange(6).reshape(2, 3) + 1).all()
    assert values(result)["none"].shape == (0, 3)
    assert values(result)["scalar"] == 2.5


def test_tied_tensors_are_sent_once_if_the_user_says_so(tmp_path):
    weights = np.random.default_rng(0).standard_normal((50, 20)).astype(np.float32)
    arrays = record(embedding=weights, head=weights)
    step = returning(lambda _name, array, _number: array + 1)
    one = Compressed(FedAvg(**NODES), LOSSLESS, detect_ties="values")
    tied = run(tmp_path / "a", [app(step)], one, arrays, 1)
    both = Compressed(FedAvg(**NODES), LOSSLESS)
    untied = run(tmp_path / "b", [app(step)], both, arrays, 1)
    assert (values(tied)["head"] == values(tied)["embedding"]).all()
    assert last(tied, "payload-up-bytes") < 0.55 * last(untied, "payload-up-bytes")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weight_too_large_for_its_dtype_is_refused_or_saturated_as_chosen(tmp_path, dtype):
    arrays = record(w=np.full(3, 6e4, dtype))
    step = returning(lambda _name, array, _number: (array / 1.2).astype(dtype))
    up = stc(1.0, 1.0)

    class Doubling(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            wide = arrays["w"].numpy().astype(np.float32) * 2
            return ArrayRecord({"w": Array(wide)}), metrics

    if dtype == "float32":
        result = run(tmp_path, [app(step)], Compressed(Doubling(**NODES), up), arrays, 1)
        assert values(result)["w"] == pytest.approx(1e5, rel=1e-3)
        return
    with pytest.raises(ValueError, match=r"'w' is too large for float16; pass overflow="):
        run(tmp_path / "a", [app(step)], Compressed(Doubling(**NODES), up), arrays, 1)
    saturated = Compressed(Doubling(**NODES), up, overflow="saturate")
    result = run(tmp_path / "b", [app(step)], saturated, arrays, 1)
    assert (values(result)["w"] == np.finfo(np.float16).max).all()


# Strategies ------------------------------------------------------------------------------------

STRATEGIES = {
    "FedAdam": {"eta": 0.01},
    "FedYogi": {"eta": 0.01},
    "FedAdagrad": {},
    "FedAvgM": {"server_momentum": 0.5, "server_learning_rate": 0.9},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.25},
    "Krum": {},
    "MultiKrum": {"num_nodes_to_select": 3},
    "Bulyan": {},
    "QFedAvg": {"client_learning_rate": 0.1, "train_loss_key": "loss"},
    "FedAvg": {},
    "FedProx": {"proximal_mu": 0.1},
}


def pull(_name, array, number):
    end = number**2 / 5
    target = np.linspace(-end, end, array.size, dtype=np.float32).reshape(array.shape)
    return array + np.float32(0.3) * (target - array)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_gives_the_same_model_as_without_compression_if_nothing_is_lost(tmp_path, name):
    def make():
        return getattr(strategies, name)(**NODES, **STRATEGIES[name])

    step = returning(pull)
    plain = run(tmp_path, [app(step, compressed=False) for _ in range(5)], make(), initial(), 4)
    wrapped = Compressed(make(), LOSSLESS)
    result = run(tmp_path, [app(step) for _ in range(5)], wrapped, initial(), 4)
    for key, array in values(plain).items():
        assert values(result)[key] == pytest.approx(array, abs=2e-5), key
    assert result.train_metrics_clientapp[4]["loss"] == pytest.approx(
        plain.train_metrics_clientapp[4]["loss"]
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_nodes_have_the_model_that_the_strategy_gets_next(tmp_path, name):
    given = []
    base = getattr(strategies, name)

    class Watching(base):
        def configure_train(self, server_round, arrays, config, grid):
            given.append(np.concatenate([a.numpy().ravel() for a in arrays.values()]))
            return super().configure_train(server_round, arrays, config, grid)

    grid = DirectGrid(tmp_path, [app(returning(pull)) for _ in range(5)])
    strategy = Compressed(Watching(**NODES, **STRATEGIES[name]), stc(1 / 5, 1 / 5))
    central = []
    strategy.start(grid, initial(), 3, 1, evaluate_fn=lambda _, arrays: central.append(arrays))
    assert len(given) == 3
    final = np.concatenate([a.numpy().ravel() for a in central[-1].values()])
    for node in grid.apps:
        assert np.array_equal(grid.weights(node), final)


def test_strategy_state_is_relative_to_the_model_of_the_nodes(tmp_path):
    """FedAdam with a sparse broadcast: its current arrays are what nodes have, not its result."""
    strategy = strategies.FedAdam(**NODES, eta=0.1)
    wrapped = Compressed(strategy, stc(1.0, 1 / 100))
    result = run(tmp_path, [app(returning(pull))] * 2, wrapped, initial(), 3)
    moved = [np.count_nonzero(a) for a in strategy.current_arrays.values()]
    assert 0 < sum(moved) <= 2 * 3  # two rounds of 1 % of 310 values each
    assert np.count_nonzero(values(result)["weight"]) <= 3 * 3


OPTIMUM = np.random.default_rng(0).normal(size=400).astype(np.float32)
RATES = np.linspace(0.02, 0.3, 400, dtype=np.float32)


def descend(array):
    """Take a step on a quadratic whose directions have different curvatures."""
    return array + RATES * (OPTIMUM - array)


def distance(array):
    return float(np.linalg.norm(array - OPTIMUM) / np.linalg.norm(OPTIMUM))


@pytest.mark.parametrize(("momentum", "rate"), [(0.5, 0.1), (0.9, 0.1), (0.9, 1.0)])
def test_server_momentum_over_many_rounds_ends_near_the_plain_model(tmp_path, momentum, rate):
    def end(compressed):
        strategy = strategies.FedAvgM(
            **NODES, fraction_evaluate=0.0, server_momentum=momentum, server_learning_rate=rate
        )
        node = app(returning(lambda _name, array, _number: descend(array)), compressed=compressed)
        grid = DirectSimulation(tmp_path, [node])
        arrays = record(w=np.zeros(400, np.float32))
        made = Compressed(strategy) if compressed else strategy
        return distance(values(made.start(grid, arrays, 100, 1))["w"])

    assert end(compressed=True) == pytest.approx(end(compressed=False), abs=0.03)


@pytest.mark.parametrize("kind", ["FedAvgM", "Private"])
def test_strategy_with_its_own_model_continues_from_that_of_the_nodes(tmp_path, kind):
    inner = strategies.FedAvgM(**NODES, server_momentum=0.5, server_learning_rate=0.1)
    strategy = inner
    if kind == "Private":
        wrapper = strategies.DifferentialPrivacyServerSideFixedClipping
        strategy = wrapper(inner, 0.0, 100.0, 2)
    wrapped = Compressed(strategy, stc(1.0, 1 / 100))
    run(tmp_path, [app(returning(pull))] * 2, wrapped, initial(), 3)
    # The last arrays are its own result, on top of two rounds of 1 % of 310 values each.
    seen = []
    inner.configure_train = lambda *_: seen.append(flat(inner.current_arrays)) or []
    run(tmp_path, [app(returning(pull))] * 2, wrapped, initial(), 1)
    assert not np.count_nonzero(seen[0])


@pytest.mark.parametrize("kind", ["FedAvg", "FedMedian"])
def test_default_method_of_a_strategy_that_aggregates_sends_every_value(kind):
    wrapped = Compressed(getattr(strategies, kind)())
    is_fast = kind == "FedAvg"
    assert wrapped._choose_method(200, is_fast=is_fast).name == ("stc" if is_fast else "grid")


class Recorder(FedAvg):
    """Like an app that saves models, logs metrics and changes the learning rate, in its start."""

    def __init__(self, **options):
        super().__init__(**options)
        self.saved = []
        self.best = -1.0

    def note(self, text):
        self.saved.append(text)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.note(f"aggregated {server_round} from {len(replies)}")
        return arrays, metrics

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 2:
            config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None, *, tag=""):
        self.best = 0.0
        self.note(f"started {tag}")
        every = [initial_arrays]
        for number in range(1, num_rounds + 1):
            messages = self.configure_train(number, every[-1], train_config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            arrays, metrics = self.aggregate_train(number, replies)
            every.append(arrays)
            self.best = max(self.best, metrics["loss"])
        return every


class Filtering(FedAvg):
    """Counts the first node only, in a helper of ``aggregate_train``."""

    def _check_and_log_replies(self, replies, is_train, validate=True):
        valid, errors = super()._check_and_log_replies(replies, is_train, validate)
        return [reply for reply in valid if reply.metadata.src_node_id == 100], errors


def test_helper_of_a_subclass_that_filters_replies_is_used(tmp_path):
    wrapped = Compressed(Filtering(**NODES), LOSSLESS)
    step = returning(lambda _name, array, number: array + np.float32(number))
    result = run(tmp_path, [app(step), app(step)], wrapped, initial(), 1)
    assert (values(result)["bias"] == 1).all()


def test_strategy_with_its_own_start_runs_it_and_keeps_its_attributes(tmp_path):
    rates = []

    def look(message, context):
        rates.append(message.content["config"]["lr"])
        return returning(pull)(message, context)

    strategy = Compressed(Recorder(**NODES), LOSSLESS)
    strategy.note("before")  # a method of the wrapped strategy
    strategy.best = 7.0
    grid = DirectGrid(tmp_path, [app(look), app(look)])
    config = ConfigRecord({"lr": 0.1})
    every = strategy.start(grid, initial(), 3, 1, train_config=config, tag="today")
    expected = ["before", "started today", *(f"aggregated {i} from 2" for i in (1, 2, 3))]
    assert strategy.saved == strategy.strategy.saved == expected
    assert strategy.best == strategy.strategy.best == pytest.approx(2 / 3)
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.05, 0.05]
    assert np.array_equal(grid.weights(100), flat(every[2]))  # from which it has trained last
    assert "aggregate_train" not in vars(strategy.strategy)  # its own methods are back


def test_attribute_that_nobody_has_raises():
    with pytest.raises(AttributeError, match="colour"):
        Compressed(FedAvg()).colour  # noqa: B018


def test_other_arrays_than_those_of_the_last_round_are_refused(tmp_path):
    class Replacing(FedAvg):
        def start(self, grid, initial_arrays, num_rounds=3, timeout=3600):
            self.configure_train(1, initial(3.0), ConfigRecord(), grid)

    with pytest.raises(LocalProtocolError, match="configure_train of Replacing was called with"):
        run(tmp_path, [app()], Compressed(Replacing(**NODES)), initial(), 1)


def test_strategy_that_returns_another_model_is_reported(tmp_path):
    class Cutting(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return ArrayRecord({"weight": arrays["weight"], "bias": Array(np.zeros(3))}), metrics

    with pytest.raises(
        ValueError, match=r"of Cutting returned .* 'bias' is \(3,\), expected \(10,"
    ):
        run(tmp_path, [app()], Compressed(Cutting(**NODES)), initial(), 1)


class Overwriting(FedAvg):
    """Returns the given values of the array ``n``."""

    def __init__(self, returned):
        super().__init__(**NODES)
        self.returned = returned

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        arrays["n"] = Array(self.returned)
        return arrays, metrics


LARGEST = np.iinfo(np.int64).max


@pytest.mark.parametrize(
    ("dtype", "returned", "expected"),
    [
        ("int64", np.array([1e19, -1e19, np.inf, 2.6]), [LARGEST, -LARGEST - 1, LARGEST, 3]),
        ("int64", np.array([2.0**63, -(2.0**63)], np.float32), [LARGEST, -LARGEST - 1]),
        ("int64", np.array([2**53 + 1, LARGEST]), [2**53 + 1, LARGEST]),
        ("uint64", np.array([1e20, -1.0]), [2**64 - 1, 0]),
        ("uint64", np.array([-5, 7]), [0, 7]),
        ("int8", np.array([300, -300, 5]), [127, -128, 5]),
        ("int8", np.array([300, 5], np.float16), [127, 5]),
    ],
)
def test_carried_integers_of_a_strategy_are_clipped_exactly(tmp_path, dtype, returned, expected):
    arrays = record(w=np.zeros(3, np.float32), n=np.zeros(len(expected), dtype))
    node = app(returning(lambda _name, array, _number: array))
    result = run(tmp_path, [node], Compressed(Overwriting(returned)), arrays, 1)
    assert values(result)["n"].dtype == dtype
    assert values(result)["n"].tolist() == expected


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_carried_nan_of_a_strategy_is_refused_by_name(tmp_path, dtype):
    arrays = record(w=np.zeros(3, np.float32), n=np.zeros(2, dtype))
    wrapped = Compressed(Overwriting(np.array([1.0, np.nan])))
    with pytest.raises(ValueError, match=f"of Overwriting .* 'n' has the value nan, which {dtype}"):
        run(tmp_path, [app(returning(lambda _name, array, _number: array))], wrapped, arrays, 1)


def test_updates_that_a_strategy_does_not_aggregate_return_to_the_residuals(tmp_path):
    class Skipping(FedAvg):
        def aggregate_train(self, server_round, replies):
            found = super().aggregate_train(server_round, replies)
            return (None, None) if server_round == 1 else found

    step = returning(lambda _name, array, _number: array + np.float32(1))
    result = run(tmp_path, [app(step)], Compressed(Skipping(**NODES), LOSSLESS), initial(), 2)
    assert (values(result)["bias"] == 2).all()  # both rounds count in the second one
    counted = [m["uploads-counted"] for m in result.train_metrics_clientapp.values()]
    assert counted == [0, 1]


def test_run_whose_strategy_returns_no_arrays_stops_after_three_rounds(tmp_path):
    class Idle(FedAvg):
        def aggregate_train(self, server_round, replies):
            return None, None

    reason = r"^Round 3 has counted no upload: the aggregate_train of Idle returned no arrays$"
    with pytest.raises(NoUploads, match=reason):
        run(tmp_path, [app(), app()], Compressed(Idle(**NODES)), initial(), 6)


@pytest.mark.parametrize("name", ["FedXgbBagging", "FedXgbCyclic"])
def test_trees_are_refused_with_the_reason(name):
    made = getattr(strategies, name)()
    with pytest.raises(ValueError, match=f"cannot wrap {name}: its arrays are the bytes of"):
        Compressed(made)


def test_failures_of_nodes_reach_the_strategy(tmp_path):
    seen = []

    class Counting(FedAvg):
        def aggregate_train(self, server_round, replies):
            seen.append([reply.has_error() for reply in replies])
            return super().aggregate_train(server_round, replies)

    def fail(message, context):
        raise RuntimeError("out of memory")

    result = run(tmp_path, [app(), app(fail)], Compressed(Counting(**NODES)), initial(), 1)
    assert seen == [[False, True]]
    assert last(result, "uploads-counted") == 1


# Differential privacy --------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [False, True])
def test_central_privacy_clips_and_adds_noise_inside(tmp_path, adaptive):
    step = returning(lambda _name, array, _number: array + np.float32(5))
    if adaptive:
        private = strategies.DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvg(**NODES), 0.01, 2, initial_clipping_norm=0.5, clipped_count_stddev=0.1
        )
    else:
        private = strategies.DifferentialPrivacyServerSideFixedClipping(
            FedAvg(**NODES), 0.01, 0.5, 2
        )
    result = run(tmp_path, [app(step), app(step)], Compressed(private, LOSSLESS), initial(), 1)
    moved = np.concatenate([array.ravel() for array in values(result).values()])
    assert 0.1 < np.linalg.norm(moved) < 20  # without clipping: 88
    assert np.unique(moved).size > 300  # noise


@pytest.mark.parametrize("adaptive", [False, True])
def test_clipping_on_nodes_works_as_an_inner_mod_with_a_warning(tmp_path, flower_log, adaptive):
    step = returning(lambda _name, array, _number: array + np.float32(5))
    if adaptive:
        private = strategies.DifferentialPrivacyClientSideAdaptiveClipping(
            FedAvg(**NODES), 0.01, 2, initial_clipping_norm=0.5, clipped_count_stddev=0.1
        )
    else:
        private = strategies.DifferentialPrivacyClientSideFixedClipping(
            FedAvg(**NODES), 0.0, 0.5, 2
        )
    mod = adaptiveclipping_mod if adaptive else fixedclipping_mod
    made = []
    for _ in range(2):
        node = ClientApp()
        node.train(mods=[compression(), mod])(step)
        node.evaluate(mods=[compression()])(evaluate)
        made.append(node)
    result = run(tmp_path, made, Compressed(private, LOSSLESS), initial(), 1)
    assert "so that the privacy budget does not hold; use the server-side" in flower_log.text
    moved = np.concatenate([array.ravel() for array in values(result).values()])
    assert 0.1 < np.linalg.norm(moved) < 20
    if not adaptive:
        assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-3)


def test_compression_inside_a_privacy_wrapper_names_the_right_order(tmp_path):
    inside = strategies.DifferentialPrivacyServerSideFixedClipping(
        Compressed(FedAvg(**NODES)), 1.0, 0.5, 2
    )
    with pytest.raises(LocalProtocolError, match="must be the outermost strategy"):
        run(tmp_path, [app()], inside, initial(), 1)
    with pytest.raises(ValueError, match="must be the outermost strategy"):
        Compressed(inside)


def test_local_privacy_works_inside_and_is_reported_outside(tmp_path):
    private = LocalDpMod(0.5, 0.01, 1.0, 1e-3)

    def node(*mods):
        made = ClientApp(mods=list(mods))
        made.train()(train)
        return made

    def strategy():
        return Compressed(FedAvg(**NODES, fraction_evaluate=0.0), LOSSLESS)

    result = run(tmp_path / "a", [node(compression(), private)], strategy(), initial(), 2)
    assert last(result, "uploads-counted") == 1
    expected = r"LocalDpMod expects exactly one ArrayRecord.* \(list compression\(\) before all"
    with pytest.raises(NoUploads, match=expected):
        run(tmp_path / "b", [node(private, compression())], strategy(), initial(), 2)


# Mods, records and contexts --------------------------------------------------------------------


def test_compression_may_be_the_last_mod(tmp_path):
    seen = []

    def reading(message, context, call_next):
        seen.append((message.metadata.message_type, message.content["config"]["server-round"]))
        return call_next(message, context)

    made = ClientApp(mods=[reading, compression()])
    made.train()(train)
    made.evaluate()(evaluate)
    result = run(tmp_path, [made], Compressed(FedAvg(**NODES)), initial(), 2)
    assert last(result, "uploads-counted") == 1
    assert seen[:2] == [("train", 1), ("train", 1)]  # handshake and request


def test_handshake_has_the_action_of_the_strategy(tmp_path):
    class Acting(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                yield Message(message.content, message.metadata.dst_node_id, "train.mine")

    made = ClientApp(mods=[compression()])
    made.train("mine")(train)
    made.evaluate()(evaluate)
    result = run(tmp_path, [made], Compressed(Acting(**NODES)), initial(), 1)
    assert last(result, "uploads-counted") == 1


@pytest.mark.parametrize("change", ["replace", "clear", "fill"])
def test_app_may_do_anything_with_the_state_of_its_context(tmp_path, monkeypatch, change):
    monkeypatch.setattr("fedtern.transports.flower.strategy.is_simulated", lambda _grid: True)
    seen = []

    class Keeping(DirectSimulation):
        def deliver(self, node, message):
            made = self.apps[node]
            config = {"partition-id": node - 100, "num-partitions": len(self.apps)}
            context = Context(7, node, config, self._states[node], {})
            reply = made(message, context)
            self._states[node] = context.state
            return reply

    def meddle(message, context):
        seen.append(list(context.state))
        if change == "replace":
            context.state = RecordDict({"mine": ConfigRecord({"round": len(seen)})})
        elif change == "clear":
            context.state.clear()
        else:
            context.state["mine"] = initial(1.0)
        return train(message, context)

    grid = Keeping(tmp_path, [app(meddle)])
    strategy = Compressed(FedAvg(**NODES, fraction_evaluate=0.0))
    result = strategy.start(grid, initial(), 3, 1)
    assert [m["uploads-counted"] for m in result.train_metrics_clientapp.values()] == [1, 1, 1]
    assert last(result, "whole-models-sent") == 1
    assert seen == ([[], [], []] if change == "clear" else [[], ["mine"], ["mine"]])


@pytest.mark.parametrize("simulated", [True, False])
def test_second_start_with_another_model_works(tmp_path, monkeypatch, simulated):
    monkeypatch.setattr("fedtern.transports.flower.strategy.is_simulated", lambda _grid: simulated)
    make = DirectSimulation if simulated else DirectGrid
    grid = make(tmp_path, [app(), app()])
    strategy = Compressed(FedAvg(**NODES, fraction_evaluate=0.0))
    first = strategy.start(grid, initial(), 2, 1)
    other = record(w=np.zeros(7, np.float32))
    second = strategy.start(grid, other, 2, 1)
    again = Compressed(FedProx(**NODES), signsgd()).start(grid, initial(), 2, 1)
    for result in (first, second, again):
        assert last(result, "uploads-counted") == 2
        assert last(result, "whole-models-sent") == 2
    assert list(values(second)) == ["w"]


def with_more(message, context):
    """Return further records of each kind around the model."""
    reply = train(message, context)
    number = int(context.node_config["partition-id"])
    content = {
        "before": ConfigRecord({"text": f"node {number}", "raw": b"\x00\xff"}),
        **reply.content,
        "control": initial(float(number)),
        "timing": MetricRecord({"seconds": 1.5}),
    }
    reply.content = RecordDict(content)
    return reply


def test_further_records_of_replies_and_requests_are_passed_through_and_counted(
    tmp_path, flower_log
):
    seen = []

    class Scaffold(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                message.content["control"] = initial(0.5)
                yield message

        def aggregate_train(self, server_round, replies):
            for reply in replies:
                seen.append(list(reply.content))
                assert reply.content["before"]["raw"] == b"\x00\xff"
                assert reply.content["control"]["bias"].numpy().mean() in (0, 1)
                for name in ("before", "control", "timing"):
                    del reply.content[name]
            return super().aggregate_train(server_round, replies)

    def look(message, context):
        assert message.content["control"]["bias"].numpy().mean() == 0.5
        assert list(message.content) == ["arrays", "config", "control"]
        return with_more(message, context)

    strategy = Compressed(Scaffold(**NODES, fraction_evaluate=0.0))
    result = run(tmp_path, [app(look), app(look)], strategy, initial(), 2)
    assert seen == [["before", "arrays", "metrics", "control", "timing"]] * 4
    assert last(result, "uploads-counted") == 2
    raw = 2 * 2 * sum(len(array.data) for array in initial().values())
    assert last(result, "payload-up-bytes") > raw
    assert last(result, "payload-down-bytes") > raw
    lines = [r.getMessage() for r in flower_log.records if "not compressed" in r.getMessage()]
    assert len(lines) == 1
    assert "the arrays 'control' in a request are not compressed" in lines[0]


def test_further_records_do_not_disturb_the_average(tmp_path):
    seen = []

    def combine(contents, key):
        seen.append([sorted(content) for content in contents])
        return MetricRecord({"n": sum(content["metrics"][key] for content in contents)})

    strategy = Compressed(FedAvg(**NODES, train_metrics_aggr_fn=combine))
    result = run(tmp_path, [app(with_more), app(with_more)], strategy, initial(), 1)
    assert last(result, "uploads-counted") == 2
    assert last(result, "n") == 30
    assert seen == [[["before", "control", "metrics", "timing"]] * 2]


def test_two_records_that_could_be_the_model_stop_the_run(tmp_path):
    def two(message, context):
        reply = train(message, context)
        found = reply.content["arrays"]
        content = {"a": found, "b": found, "metrics": reply.content["metrics"]}
        reply.content = RecordDict(content)
        return reply

    with pytest.raises(
        NoUploads, match=r"expected the model in the ArrayRecord 'arrays' .* 'a', 'b'"
    ):
        run(tmp_path, [app(two)], Compressed(FedAvg(**NODES)), initial(), 1)


def test_model_may_be_returned_under_another_key(tmp_path):
    def renamed(message, context):
        reply = train(message, context)
        content = {"mine": reply.content["arrays"], "metrics": reply.content["metrics"]}
        reply.content = RecordDict(content)
        return reply

    result = run(tmp_path, [app(renamed)], Compressed(FedAvg(**NODES)), initial(), 1)
    assert last(result, "uploads-counted") == 1


def broken(**metrics):
    def train_without(message, context):
        reply = train(message, context)
        reply.content["metrics"] = MetricRecord(metrics)
        return reply

    return train_without


def without_model(message, context):
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def without_metrics(message, context):
    reply = train(message, context)
    del reply.content["metrics"]
    return reply


STOPS = {
    "no weight": (broken(loss=1.0), "no metric 'num-examples', .* its metrics are: 'loss'"),
    "no metrics": (without_metrics, "no metric 'num-examples', .* its metrics are: none"),
    "zero": (broken(**{"num-examples": 0}), "'num-examples' must be one positive finite .* got 0"),
    "list": (broken(**{"num-examples": [1, 2]}), "positive finite number, got \\[1, 2\\]"),
    "no model": (without_model, "got 0 ArrayRecords: none"),
    "NaN": (
        returning(lambda _n, a, _i: a * np.nan),
        "value nan at weight\\[0, 0\\] cannot be sent",
    ),
    "shape": (returning(lambda _n, a, _i: a[1:]), "'weight' has shape \\(29, 10\\), expected"),
    "dtype": (
        returning(lambda _n, a, _i: a.astype(np.float64)),
        "'weight' has dtype float64, expected float32",
    ),
}


@pytest.mark.parametrize("fault", STOPS)
def test_run_in_which_every_node_fails_stops_with_one_sentence(tmp_path, fault):
    spoil, reason = STOPS[fault]
    with pytest.raises(NoUploads, match=f"^Round 1 has counted no upload: node 10.*{reason}") as e:
        run(tmp_path, [app(spoil), app(spoil)], Compressed(FedAvg(**NODES)), initial(), 2)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("examples", [2.5, 1e-3, 7.0])
def test_fractional_number_of_examples_is_fine(tmp_path, examples):
    step = broken(**{"num-examples": examples})
    result = run(tmp_path, [app(step)], Compressed(FedAvg(**NODES)), initial(), 1)
    assert last(result, "uploads-counted") == 1


def test_node_that_fails_in_one_round_does_not_stop_a_run_that_has_worked(tmp_path):
    def sometimes(message, context):
        if message.content["config"]["server-round"] in (2, 3):
            raise RuntimeError("out of memory")
        return train(message, context)

    strategy = Compressed(FedAvg(**NODES, fraction_evaluate=0.0))
    result = run(tmp_path, [app(sometimes)], strategy, initial(), 5)
    counted = [m["uploads-counted"] for m in result.train_metrics_clientapp.values()]
    assert counted == [1, 0, 0, 1, 1]

    def never_again(message, context):
        if message.content["config"]["server-round"] > 1:
            raise RuntimeError("out of memory")
        return train(message, context)

    with pytest.raises(NoUploads, match=r"^Round 4 has counted no upload: .*out of memory"):
        run(tmp_path, [app(never_again)], strategy, initial(), 9)


def test_round_without_training_is_no_failure(tmp_path):
    strategy = Compressed(FedAvg(fraction_train=0.0, **NODES))
    result = run(tmp_path, [app()], strategy, initial(), 2)
    assert len(result.evaluate_metrics_clientapp) == 2


# Evaluation ------------------------------------------------------------------------------------


def returning_arrays(change):
    def evaluate_with_arrays(message, context):
        reply = evaluate(message, context)
        arrays = message.content["arrays"]
        changed = {name: Array(change(array.numpy())) for name, array in arrays.items()}
        reply.content = RecordDict({"arrays": ArrayRecord(changed), **reply.content})
        return reply

    return evaluate_with_arrays


class Reading(FedAvg):
    """Reads the arrays in the replies of evaluate functions."""

    means = ()

    def aggregate_evaluate(self, server_round, replies):
        self.means = [
            next(iter(r.content)) + f" {flat(r.content['arrays']).mean():.3f}" for r in replies
        ]
        return super().aggregate_evaluate(server_round, replies)


def flat(arrays):
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


def test_unchanged_model_in_an_evaluation_is_not_sent(tmp_path, flower_log):
    node = app(evaluate=returning_arrays(lambda array: array))
    strategy = Compressed(Reading(**NODES), LOSSLESS)
    grid = DirectGrid(tmp_path, [node])
    sent = []

    def tamper(_node, reply):
        sent.append(
            sum(len(a.data) for r in reply.content.array_records.values() for a in r.values())
        )
        return reply

    grid.tamper = tamper
    result = strategy.start(grid, initial(), 1, 1)
    assert sum(sent) == 0
    assert strategy.means == [f"arrays {flat(result.arrays).mean():.3f}"]  # as if it had been sent
    assert "not compressed" not in flower_log.text


def test_changed_arrays_in_an_evaluation_are_counted_and_logged(tmp_path, flower_log):
    node = app(evaluate=returning_arrays(lambda array: array + 1))
    strategy = Compressed(Reading(**NODES), LOSSLESS)
    result = run(tmp_path, [node], strategy, initial(), 2)
    raw = sum(len(array.data) for array in initial().values())
    up = result.evaluate_metrics_clientapp[1]["payload-up-bytes"] - last_of_round(result, 1)
    assert up == raw
    assert strategy.means == [f"arrays {flat(result.arrays).mean() + 1:.3f}"]
    assert (
        flower_log.text.count("'arrays' in replies of evaluate functions are not compressed") == 1
    )


def last_of_round(result, number):
    return result.train_metrics_clientapp[number]["payload-up-bytes"]


# The initial model -----------------------------------------------------------------------------


def random_model(seed=0):
    rng = np.random.default_rng(seed)
    return record(w=rng.standard_normal((200, 40)).astype(np.float32), **BATCH_NORM)


@pytest.mark.parametrize(("precision", "share"), [("float16", 0.52), ("int8", 0.3)])
def test_rounded_initial_model_is_downloaded_and_used_by_both_sides(tmp_path, precision, share):
    step = returning(batch_norm_step)
    unrounded = Compressed(FedAvg(**NODES), initial="exact")
    exact = run(tmp_path / "a", [app(step)], unrounded, random_model(), 1)
    grid = DirectGrid(tmp_path / "b", [app(step)])
    short = Compressed(FedAvg(**NODES), initial=precision).start(grid, random_model(), 1, 1)
    assert last(short, "payload-down-bytes") < share * last(exact, "payload-down-bytes")
    trained = np.concatenate([values(short)[n].ravel() for n in ("w", "bn.weight")])
    assert np.array_equal(grid.weights(100), trained)


@pytest.mark.parametrize("precision", ["exact", "int8"])
@pytest.mark.parametrize("simulated", [False, True])
def test_node_with_the_same_initial_model_downloads_nothing(
    tmp_path, monkeypatch, flower_log, precision, simulated
):
    monkeypatch.setattr("fedtern.transports.flower.strategy.is_simulated", lambda _grid: simulated)
    calls = []
    step = returning(batch_norm_step)

    def node(make):
        def load():
            calls.append(1)
            return make()

        made = ClientApp(mods=[compression(initial=load)])
        made.train()(step)
        return made

    make_grid = DirectSimulation if simulated else DirectGrid
    grid = make_grid(tmp_path, [node(random_model), node(lambda: random_model(1)), app(step)])
    strategy = Compressed(FedAvg(**NODES, fraction_evaluate=0.0), initial=precision)
    result = strategy.start(grid, random_model(), 3, 1)
    assert last(result, "uploads-counted") == 3
    one_model = (8004 if precision == "int8" else 32016) + 200
    assert 2 * one_model * 0.9 < result.train_metrics_clientapp[1]["payload-down-bytes"]
    assert result.train_metrics_clientapp[1]["payload-down-bytes"] < 2 * one_model * 1.2
    assert "has the initial model already" in flower_log.text
    assert "has other values than the server's" in flower_log.text
    assert len(calls) <= 2 * 2  # not in every round


def test_node_whose_own_model_does_not_fit_downloads_the_model(tmp_path, flower_log):
    made = ClientApp(mods=[compression(initial=initial)])
    made.train()(returning(batch_norm_step))
    strategy = Compressed(FedAvg(**NODES, fraction_evaluate=0.0))
    result = run(tmp_path, [made], strategy, random_model(), 1)
    assert last(result, "whole-models-sent") == 1
    assert "initial model does not fit the server's: tensor 'w' (float32" in flower_log.text


# Large models ----------------------------------------------------------------------------------


def test_whole_model_is_an_array_that_all_nodes_share(tmp_path):
    size = 300_000
    arrays = record(w=np.zeros(size, np.float32))
    grid = DirectGrid(tmp_path, [app(returning(pull)), app(returning(pull))])
    strategy = Compressed(FedAvg(**NODES, fraction_evaluate=0.0), stc(), initial="exact")
    sent = []
    send = grid.send_and_receive

    def look(messages, *, timeout=None):
        if messages:
            sent.append(messages)
        return send(messages, timeout=timeout)

    grid.send_and_receive = look
    result = strategy.start(grid, arrays, 2, 1)
    _, first, second = sent  # the handshake, and two rounds
    shared = [message.content[ATTACHMENT]["data"] for message in first]
    assert shared[0] is shared[1]
    assert 4 * size < len(shared[0].data) < 4 * size + 100
    for message in (*first, *second):
        assert len(message.content["config"][KEY]) < 50_000
    assert not any(message.content.array_records for message in second)
    assert last(result, "payload-down-bytes") > 2 * 4 * size


def test_long_upload_is_an_array(tmp_path):
    arrays = record(w=np.zeros(300_000, np.float32))
    grid = DirectGrid(tmp_path, [app(returning(pull))])
    kinds = []

    def tamper(_node, reply):
        kinds.append(sorted(reply.content))
        return reply

    grid.tamper = tamper
    grid.apps[100] = app(returning(pull), lambda m, c: Message(RecordDict(), reply_to=m))
    result = Compressed(FedAvg(**NODES), LOSSLESS).start(grid, arrays, 2, 1)
    assert kinds[1::2] == [[KEY, ATTACHMENT, "metrics"]] * 2
    assert last(result, "payload-up-bytes") > 2 * 4 * 300_000
    assert np.array_equal(grid.weights(100), values(result)["w"])


def test_federations_of_two_methods_do_not_mix(tmp_path: Path):
    grid = DirectGrid(tmp_path, [app()])
    for method in (stc(), signsgd(), LOSSLESS):
        result = Compressed(FedAvg(**NODES), method).start(grid, initial(), 1, 1)
        assert last(result, "uploads-counted") == 1


# Apps of Flower's earlier API ------------------------------------------------------------------


class Client(NumPyClient):
    def __init__(self, number):
        self.number = number

    def get_parameters(self, config):
        return [np.zeros((30, 10), np.float32), np.zeros(10, np.float32)]

    def fit(self, parameters, config):
        changed = [pull("", array, self.number) for array in parameters]
        return changed, 10 * self.number, {"loss": 1.0 / self.number, "rate": config["rate"]}

    def evaluate(self, parameters, config):
        return float(np.abs(parameters[0]).mean()), 5, {"accuracy": 0.5}


def legacy_node(*mods):
    def client_fn(context):
        return Client(int(context.node_config["partition-id"]) + 1).to_client()

    return ClientApp(client_fn=client_fn, mods=list(mods))


def legacy_server_fn(kind, seen, *, rounds=3, nodes=3, **options):
    def server_fn(context):
        strategy = getattr(legacy_strategies, kind)(
            min_fit_clients=1,
            min_evaluate_clients=1,
            min_available_clients=nodes,
            on_fit_config_fn=lambda number: {"rate": 0.5 / number},
            fit_metrics_aggregation_fn=lambda found: {"clients": len(found)},
            evaluate_metrics_aggregation_fn=lambda found: {"mean": found[0][1]["accuracy"]},
            evaluate_fn=lambda number, parameters, config: seen.append(parameters),
            **options,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    return server_fn


@pytest.mark.parametrize("kind", ["FedAvg", "FedAdam", "FedMedian"])
@pytest.mark.filterwarnings("ignore")
def test_old_style_app_gives_the_same_model_as_without_compression(tmp_path, kind):
    first = [np.zeros((30, 10), np.float32), np.zeros(10, np.float32)]
    options = {"initial_parameters": ndarrays_to_parameters(first)} if kind == "FedAdam" else {}
    plain, compressed = [], []
    grid = DirectGrid(tmp_path / "a", [legacy_node() for _ in range(3)])
    context = Context(7, 0, {}, RecordDict(), {})
    ServerApp(server_fn=legacy_server_fn(kind, plain, **options))(grid, context)
    grid = DirectGrid(tmp_path / "b", [legacy_node(compression()) for _ in range(3)])
    made = compressed_server_app(legacy_server_fn(kind, compressed, **options), LOSSLESS)
    made(grid, context)
    assert len(plain) == len(compressed) == 4
    for ours, theirs in zip(compressed, plain, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one == pytest.approx(other, abs=2e-5)
    sizes = [
        sum(len(a.data) for r in m.content.array_records.values() for a in r.values())
        for _, m in grid.received
    ]
    assert sum(sizes) == 0


@pytest.mark.parametrize("kind", ["FedAdam", "FedYogi", "FedAdagrad", "FedAvgM"])
@pytest.mark.filterwarnings("ignore")
def test_old_style_strategy_with_its_own_model_ends_near_the_plain_model(tmp_path, kind):
    class Descending(Client):
        def fit(self, parameters, config):
            return [descend(parameters[0])], 10, {}

    def end(compressed):
        seen = []
        first = ndarrays_to_parameters([np.full(400, 0.25, np.float32)])
        options = {"server_momentum": 0.5, "server_learning_rate": 0.1} if kind == "FedAvgM" else {}
        server_fn = legacy_server_fn(
            kind, seen, rounds=100, nodes=1, initial_parameters=first, **options
        )
        mods = [compression()] if compressed else []
        node = ClientApp(client_fn=lambda _context: Descending(1).to_client(), mods=mods)
        made = compressed_server_app(server_fn) if compressed else ServerApp(server_fn=server_fn)
        made(DirectSimulation(tmp_path, [node]), Context(7, 0, {}, RecordDict(), {}))
        return distance(seen[-1][0])

    assert end(compressed=True) == pytest.approx(end(compressed=False), abs=0.06)


def test_old_style_server_is_refused():
    made = compressed_server_app(lambda context: ServerAppComponents(server=object()))
    with pytest.raises(ValueError, match="server_fn returns a object, whose rounds"):
        made(DirectGrid(Path(), []), Context(7, 0, {}, RecordDict(), {}))


def test_arrays_of_its_own_for_each_node_are_refused(tmp_path):
    class Personal(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                content = RecordDict({**message.content, "arrays": initial(3.0)})
                yield Message(content, message.metadata.dst_node_id, "train")

    with pytest.raises(LocalProtocolError, match="node 100 arrays 'arrays' that differ from the"):
        run(tmp_path, [app()], Compressed(Personal(**NODES)), initial(), 1)
