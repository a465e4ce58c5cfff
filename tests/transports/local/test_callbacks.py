"""Callbacks of a simulation, and early stopping."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from torch.nn.functional import l1_loss, mse_loss  # noqa: E402

from fedtern import Environment, ModelCheckpoint, Snapshot, simulate  # noqa: E402
from fedtern.data.metric_spec import MetricSpec  # noqa: E402
from fedtern.runs import Evaluation, Experiment, open_run  # noqa: E402
from fedtern.training import Metric  # noqa: E402
from fedtern.transports.local import (  # noqa: E402
    Callback,
    EarlyStopping,
    train_run,
    training_loop,
)


class Recorder:
    def __init__(self):
        self.calls = []

    def on_round(self, simulation):
        self.calls.append(("round", simulation.round))

    def on_evaluation(self, simulation, evaluation):
        self.calls.append(("evaluation", evaluation.iteration))

    def on_checkpoint(self, simulation, path):
        self.calls.append(("checkpoint", path.name))


def test_callbacks_are_called_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(training_loop.time, "monotonic", iter(range(0, 10_000, 100)).__next__)
    recorder = Recorder()
    list(
        simulate(
            "logistic-digits",
            iterations=2,
            evaluate_every=2,
            out=tmp_path / "run",
            callbacks=[recorder, Callback()],
        )
    )
    saved = ("checkpoint", "checkpoint.safetensors")
    assert recorder.calls == [("round", 1), saved, ("evaluation", 2), ("round", 2)]


def test_a_callback_that_stops_between_evaluations_leads_to_a_last_evaluation():
    class StopAtSeven(Callback):
        def on_round(self, simulation):
            if simulation.iteration == 7:
                simulation.stop()

    simulation = simulate(
        "logistic-digits", iterations=100, evaluate_every=5, callbacks=[StopAtSeven()]
    )
    assert [evaluation.iteration for evaluation in simulation] == [5, 7]


@pytest.mark.parametrize("callbacks", [[print], [EarlyStopping], 3])
def test_an_object_that_is_no_callback_is_an_error(callbacks):
    with pytest.raises(ValueError, match="callback"):
        simulate("logistic-digits", callbacks=callbacks)


class Fake:
    """A simulation with given values of a metric."""

    metric = MetricSpec("perplexity", "lower")
    metrics = (metric, MetricSpec("recall"), MetricSpec("mae", "lower"))
    stopped = False
    weights = {"w": torch.zeros(1)}  # noqa: RUF012

    def stop(self):
        self.stopped = True


def evaluation(iteration: int, value: float) -> Evaluation:
    metrics = {"perplexity": value, "recall": -value, "mae": value}
    return Evaluation(iteration, iteration, value, math.nan, 0, 0, 0, 0, 0, 0, 0, {}, metrics)


def stopped_at(stopping: EarlyStopping, values: list[float]) -> int | None:
    simulation = Fake()
    for iteration, value in enumerate(values, start=1):
        simulation.iteration = iteration
        stopping.on_evaluation(simulation, evaluation(iteration, value))
        if simulation.stopped:
            return iteration
    return None


@pytest.mark.parametrize("options", [{}, {"metric": "loss"}, {"metric": "recall"}])
def test_training_stops_after_evaluations_without_an_improvement(options):
    stopping = EarlyStopping(2, **options)
    assert stopped_at(stopping, [9, 5, 6, 4, 4, 5, 3]) == 6
    assert stopping.best_iteration == 4
    assert abs(stopping.best_value) == 4
    assert stopping.best_weights


def test_a_small_improvement_does_not_count():
    assert stopped_at(EarlyStopping(2, min_delta=1), [9, 8.5, 8.2, 5]) == 3


def test_nan_is_no_improvement():
    assert stopped_at(EarlyStopping(1), [9, math.nan]) == 2


def test_a_value_after_nan_is_an_improvement():
    stopping = EarlyStopping(2)
    assert stopped_at(stopping, [math.nan, 3, 2, 1]) is None
    assert (stopping.best_value, stopping.best_iteration) == (1, 4)


def test_only_nan_stops_the_training():
    assert stopped_at(EarlyStopping(2), [math.nan] * 5) == 3


def test_the_direction_is_that_of_the_metric_also_if_it_is_not_the_primary_one():
    stopping = EarlyStopping(1, metric="mae")
    assert stopped_at(stopping, [3, 2, 1]) is None
    assert stopping.best_value == 1


def test_a_simulation_has_the_directions_of_all_its_metrics():
    metrics = [Metric("rmse", mse_loss, "lower"), Metric("mae", l1_loss, "lower")]
    data = (torch.randn(40, 2), torch.randn(40, 1))
    simulation = simulate(
        torch.nn.Linear(2, 1),
        data,
        loss=mse_loss,
        metrics=metrics,
        environment=Environment(clients=2, participation=1, split="iid"),
        iterations=2,
        learning_rate=0.1,
    )
    assert simulation.metrics == (MetricSpec("rmse", "lower"), MetricSpec("mae", "lower"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"min_delta": -1}, "min_delta must not be negative, got -1"),
    ],
)
def test_an_invalid_argument_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**options)


def test_an_unknown_metric_is_an_error_that_lists_the_known_ones():
    with pytest.raises(
        ValueError, match="'f1', but evaluations have loss, perplexity, recall, mae"
    ):
        stopped_at(EarlyStopping(metric="f1"), [1])


def rising(directory, stopping):
    """Return a simulation whose loss has its minimum at the first evaluations."""
    torch.manual_seed(0)
    return simulate(
        torch.nn.Linear(2, 1),
        (torch.ones(40, 2), torch.ones(40, 1)),
        loss=mse_loss,
        environment=Environment(clients=2, participation=1, split="iid"),
        iterations=20,
        learning_rate=0.7,  # diverges
        evaluate_every=1,
        callbacks=[stopping],
        out=directory,
        resume=True,
    )


def test_early_stopping_continues_after_a_resume(tmp_path):
    whole = EarlyStopping(4)
    stop = rising(tmp_path / "whole", whole).run().iteration
    assert stop < 20
    with rising(tmp_path / "parts", EarlyStopping(4)) as first:
        for _ in range(stop - 2):
            next(first)
    resumed = EarlyStopping(4)
    assert rising(tmp_path / "parts", resumed).run().iteration == stop
    assert (resumed.best_value, resumed.best_iteration) == (whole.best_value, whole.best_iteration)
    assert resumed.best_weights == {}  # older than the checkpoint


def test_early_stopping_has_the_best_value_of_a_finished_run(tmp_path):
    whole = EarlyStopping(4)
    rising(tmp_path / "run", whole).run()
    again = EarlyStopping(4)
    rising(tmp_path / "run", again).run()
    assert (again.best_value, again.best_iteration) == (whole.best_value, whole.best_iteration)


def test_every_method_of_a_callback_is_called_in_a_run_and_in_a_simulation(tmp_path):
    class Names:
        def __init__(self):
            self.calls = []

        def __getattr__(self, name):
            if not name.startswith("on_"):
                raise AttributeError(name)
            return lambda training, *_: self.calls.append((name, training.iteration))

    expected = [
        ("on_start", 0),
        *(("on_round", 1), ("on_evaluation", 2), ("on_round", 2)),
        ("on_end", 2),
    ]
    simulated = Names()
    list(simulate("logistic-digits", iterations=2, evaluate_every=2, callbacks=[simulated]))
    assert simulated.calls == expected
    experiment = Experiment.of("logistic-digits", "stc", iterations=2, evaluate_every=2)
    ran = Names()
    list(train_run(open_run(experiment, tmp_path), callbacks=[ran], workers=0))
    assert ran.calls == expected


def test_a_callback_stops_a_run_which_is_then_complete(tmp_path):
    class Stop(Callback):
        def on_round(self, training):
            if training.round == 3:
                training.stop()

    run = open_run(Experiment.of("logistic-digits", "stc", iterations=50), tmp_path)
    list(train_run(run, callbacks=[Stop()], workers=0))
    assert run.is_finished()
    assert run.final_evaluation().iteration == 3


def test_callbacks_end_when_the_training_fails(tmp_path):
    ended = []

    class Fail(Callback):
        def on_round(self, training):
            raise RuntimeError("full disk")

        def on_end(self, training):
            ended.append(training.round)

    run = open_run(Experiment.of("logistic-digits", "stc", iterations=50), tmp_path)
    with pytest.raises(RuntimeError, match="full disk"):
        list(train_run(run, callbacks=[Fail()], workers=0))
    assert ended == [1]


def test_checkpoints_hold_the_best_the_last_or_all_models(tmp_path):
    best = ModelCheckpoint(tmp_path / "best")
    last = ModelCheckpoint(tmp_path / "last", "last")
    every = ModelCheckpoint(tmp_path / "all", "all", metric="loss")
    weights = {}

    class Record(Callback):
        def on_evaluation(self, simulation, evaluation):
            weights[evaluation.iteration] = (evaluation.accuracy, simulation.weights)

    simulation = simulate(
        "logistic-digits",
        method="stc:p_up=1/10,p_down=1/10",
        iterations=40,
        evaluate_every=10,
        callbacks=[best, last, every, Record()],
    )
    simulation.run()

    def read(path):
        return Snapshot.from_bytes(path.read_bytes()).arrays["1.weight"]

    values = {i: accuracy for i, (accuracy, _) in weights.items()}
    assert best.best_value == max(values.values())
    at = max(values, key=values.__getitem__)
    assert (
        read(tmp_path / "best" / "best.safetensors") == weights[at][1]["1.weight"].numpy()
    ).all()
    assert (
        read(tmp_path / "last" / "last.safetensors") == weights[40][1]["1.weight"].numpy()
    ).all()
    names = {path.name for path in (tmp_path / "all").iterdir()}
    assert names == {f"{i}.safetensors" for i in (10, 20, 30, 40)}


def test_a_checkpoint_with_wrong_arguments_is_an_error(tmp_path):
    with pytest.raises(ValueError, match='save must be "best"'):
        ModelCheckpoint(tmp_path, "some")
    simulation = simulate(
        "logistic-digits", iterations=1, callbacks=[ModelCheckpoint(tmp_path, metric="f1")]
    )
    with pytest.raises(ValueError, match="a checkpoint needs the metric 'f1'"):
        simulation.run()
