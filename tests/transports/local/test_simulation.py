"""``simulate`` with a module or with a task."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import fedtern  # noqa: E402
from fedtern import FedternError, StoreError, sgd, stc, stc_plus  # noqa: E402
from fedtern.data import Dataset  # noqa: E402
from fedtern.data.environment import Environment  # noqa: E402
from fedtern.report.groups import group_runs  # noqa: E402
from fedtern.report.page import render  # noqa: E402
from fedtern.runs import load_run, reopen_run  # noqa: E402
from fedtern.training import Metric, get_task, torch_schedule  # noqa: E402
from fedtern.training.augment import CropFlip, pad  # noqa: E402
from fedtern.training.objective import ACCURACY  # noqa: E402
from fedtern.transports.local.simulation import simulate  # noqa: E402

TASK = get_task("mlp-digits")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    pytest.importorskip("sklearn")
    return TASK.load()


def test_a_module_with_arrays_can_be_simulated_and_stays_unchanged():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((600, 8)).astype(np.float32)
    labels = (inputs.sum(axis=1) > 0).astype(np.int64)
    data = Dataset("own", inputs[:500], labels[:500], inputs[500:], labels[500:], num_classes=2)
    model = nn.Sequential(nn.Linear(8, 2))
    before = model[0].weight.detach().clone()
    simulation = fedtern.simulate(
        model,
        data,
        stc(0.2, 0.2),
        environment=Environment(clients=5, participation=0.4, classes_per_client=1),
        iterations=60,
        learning_rate=0.2,
        evaluate_every=25,
    )
    np.testing.assert_array_equal(simulation.weights["0.weight"], before)
    evaluations = list(simulation)
    assert [evaluation.iteration for evaluation in evaluations] == [25, 50, 60]
    assert evaluations[-1].accuracy > 0.85
    assert torch.equal(model[0].weight, before)
    model.load_state_dict(simulation.weights)
    correct = model(torch.from_numpy(inputs[500:])).argmax(1).numpy() == labels[500:]
    assert correct.mean() == pytest.approx(evaluations[-1].accuracy)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((nn.Linear(2, 2),), {}, "a module needs data: a fedtern.data.Dataset"),
        (
            ("mlp-digits", sgd()),
            {},
            "data of task 'mlp-digits' must be a data directory, got .*sgd",
        ),
        ((), {"model": None}, "model must be a module or the name of a task, got None"),
        (("mlp-digits",), {"transform": pad(32)}, "transform must not be set for task 'mlp"),
        (("mlp-digits",), {"augment": CropFlip()}, "augment must not be set for task 'mlp"),
        (
            ("mlp-digits",),
            {"method": "topkk"},
            r"Unknown method 'topkk'. Did you mean 'topk'",
        ),
        (("mlp-digits",), {"method": 3}, r"or a method such as fedtern.stc\(\), got 3"),
        (("mlp-digits",), {"environment": {}}, "must be a fedtern.Environment, got {}"),
        (("mlp-digits",), {"iterations": 0}, "must be at least 1, got 0 and None"),
    ],
)
def test_an_invalid_argument_is_an_error_that_names_it(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        simulate(*arguments, **options)


def test_a_module_needs_iterations_and_a_learning_rate(digits):
    with pytest.raises(ValueError, match="a module needs iterations and learning_rate"):
        simulate(nn.Linear(2, 2), digits)


def test_a_task_does_not_take_a_dataset(digits):
    with pytest.raises(ValueError, match="task 'mlp-digits' has its own dataset; pass the data"):
        simulate("mlp-digits", digits)


def test_a_dataset_without_test_examples_is_an_error(digits):
    untested = replace(
        digits, test_inputs=digits.test_inputs[:0], test_labels=digits.test_labels[:0]
    )
    with pytest.raises(ValueError, match="dataset 'digits' has no test examples; reserve some"):
        simulate(TASK.build(0), untested, iterations=1, learning_rate=0.1)


RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 6)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)
FIVE = Environment(clients=5, participation=0.4, classes_per_client=2)


def own(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    arguments = {"environment": FIVE, "iterations": 12, "learning_rate": 0.1, "evaluate_every": 4}
    data = options.pop("data", (X, Y))
    return simulate(model, data, "stc:p_up=1/5,p_down=1/5", **{**arguments, **options})


def same_weights(a, b) -> bool:
    return all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def test_a_method_can_be_given_by_name():
    by_name = simulate("mlp-digits", method="stc:p_up=1/20", environment=FIVE, iterations=3)
    by_object = simulate("mlp-digits", method=stc(1 / 20), environment=FIVE, iterations=3)
    assert by_name.run().up_bytes == by_object.run().up_bytes


def test_automatic_broadcasts_get_the_participation_of_a_simulation():
    few = Environment(clients=10, participation=0.2)
    explicit, by_name, by_object, of_all_clients = (
        simulate("mlp-digits", method=method, environment=few, iterations=3).run().down_bytes
        for method in (
            stc_plus(1 / 20, participation=0.2),
            "stc_plus:p_up=1/20",
            stc_plus(1 / 20),
            stc_plus(1 / 20, participation=1),
        )
    )
    assert explicit == by_name == by_object < of_all_clients


def test_the_model_has_the_trained_weights_and_its_own_class():
    simulation = own()
    evaluation = simulation.run()
    model = simulation.model
    assert not model.training
    assert int(model[1].num_batches_tracked) == 12
    held_out = slice(9, None, 10)
    correct = model(torch.from_numpy(X[held_out])).argmax(1).numpy() == Y[held_out]
    assert correct.mean() == pytest.approx(evaluation.accuracy)
    assert same_weights(model.state_dict(), simulation.weights)
    assert simulation.evaluations[-1] == evaluation
    assert (simulation.iteration, simulation.round) == (12, 12)


@pytest.mark.parametrize("options", [{}, {"optimizer": torch.optim.Adam, "learning_rate": None}])
def test_a_run_that_was_closed_is_resumed_to_the_same_weights(tmp_path, options):
    whole = own(**options)
    whole.run()
    with own(out=tmp_path / "run", **options) as first:
        next(first)
    second = own(out=tmp_path / "run", resume=True, **options)
    assert [evaluation.iteration for evaluation in second] == [8, 12]
    assert [evaluation.iteration for evaluation in second.evaluations] == [4, 8, 12]
    assert same_weights(second.weights, whole.weights)
    third = own(out=tmp_path / "run", resume=True, **options)
    assert list(third) == []
    assert third.evaluations == second.evaluations
    assert same_weights(third.weights, whole.weights)


def test_the_run_directory_can_be_reported(tmp_path):
    pytest.importorskip("plotly")
    pytest.importorskip("jinja2")
    metrics = [fedtern_metric("perplexity", "lower")]
    simulation = own(out=tmp_path / "run", metrics=metrics, name="mine")
    last = simulation.run()
    run = load_run(tmp_path / "run")
    assert run.is_complete
    assert run.config["task"] == "mine"
    assert run.config["metric"] == {"name": "perplexity", "best": "lower"}
    page = render([run])
    assert "Perplexity against iterations" in page
    assert f"reached perplexity {last.metrics['perplexity']:.3g}" in page
    assert "Accuracy against" not in page


def fedtern_metric(name: str, best: str) -> Metric:
    return Metric(name, nn.functional.cross_entropy, best=best, transform=math.exp)


def test_a_run_that_stopped_early_is_complete(tmp_path):
    class Stop:
        def on_evaluation(self, simulation, _evaluation):
            simulation.stop()

    own(out=tmp_path / "run", callbacks=[Stop()]).run()
    run = load_run(tmp_path / "run")
    assert run.is_complete
    assert run.last["iteration"] == run.config["stopped"] == 4
    assert reopen_run(tmp_path / "run").final_evaluation().iteration == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "holds a run; pass resume=True to continue it, or choose another directory"),
        ({"resume": True, "iterations": 13}, "holds experiment .*, not .*; choose another"),
        (
            {"resume": True, "data": (X + 1, Y)},
            "holds a run of task 'Sequential' that differs in training data, test data; choose",
        ),
        ({"resume": True, "loss": nn.functional.cross_entropy}, "differs in loss, metrics; choose"),
    ],
)
def test_another_run_is_never_overwritten(tmp_path, options, message):
    with own(out=tmp_path / "run") as first:
        next(first)
    with pytest.raises(StoreError, match=message):
        own(out=tmp_path / "run", **options)


def adam(rate):
    return {"optimizer": lambda p: torch.optim.Adam(p, rate), "learning_rate": None}


def smoothed(smoothing):
    return {"loss": nn.CrossEntropyLoss(label_smoothing=smoothing)}


def two_clients(first):
    parts = [(X[:first], Y[:first]), (X[first:], Y[first:])]
    return {"client_data": parts, "data": (X[:50], Y[:50]), "environment": None}


def scaled(factor):
    return {"transform": lambda inputs: inputs * factor}


def stepwise(gamma):
    make = partial(torch.optim.lr_scheduler.StepLR, step_size=5, gamma=gamma)
    return {"schedule": torch_schedule(make)}


DIFFERENT = {
    "optimizer": (adam, 1e-3, 1.0),
    "loss": (smoothed, 0.0, 0.9),
    "split": (two_clients, 20, 150),
    "transform": (scaled, 1.0, 2.0),
    "schedule": (stepwise, 0.5, 0.1),
    "carry": (lambda rule: {"carry": rule}, "latest", "average"),
    "overflow": (lambda rule: {"overflow": rule}, "refuse", "saturate"),
}


@pytest.mark.parametrize("part", DIFFERENT)
def test_a_run_with_another_part_is_not_resumed_and_the_error_names_the_part(tmp_path, part):
    make, before, after = DIFFERENT[part]
    with own(out=tmp_path / "run", **make(before)) as first:
        next(first)
    with pytest.raises(StoreError, match=f"differs in ([a-z ]+, )*{part}[,;]"):
        own(out=tmp_path / "run", resume=True, **make(after))
    assert own(out=tmp_path / "run", resume=True, **make(before)).run().iteration == 12


def with_base(value):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    nn.init.constant_(model[0].weight, value)
    return model


def test_a_run_with_another_frozen_parameter_is_not_resumed(tmp_path):
    settings = {"environment": FIVE, "iterations": 12, "learning_rate": 0.1, "evaluate_every": 4}
    settings |= {"out": tmp_path / "run", "trainable": ["1.*"]}
    with simulate(with_base(1.0), (X, Y), stc(0.5, 0.5), **settings) as first:
        next(first)
    with pytest.raises(StoreError, match="frozen parameters or buffers; if they are random, call"):
        simulate(with_base(-3.0), (X, Y), stc(0.5, 0.5), **settings, resume=True)


SCRIPT = """
import sys
import numpy as np
from torch import nn
from fedtern import Environment, simulate

x = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.int64)
model = nn.Linear(6, 2)  # no seed
simulation = simulate(
    model, (x, y), "stc:p_up=1/2,p_down=1/2", iterations=12, learning_rate=0.1, evaluate_every=4,
    environment=Environment(clients=5, participation=1, split="iid"), out=sys.argv[1], resume=True,
    loss=nn.CrossEntropyLoss(), schedule=lambda i: 0.5 if i in {3, 4, "x", "y"} else 1.0,
)
with simulation:
    print(next(simulation).iteration)
"""


def test_a_model_without_a_seed_is_resumed_in_another_process(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    printed = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)
    ]
    assert printed == ["4\n", "8\n"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_simulation_does_not_overwrite_a_run_that_began_after_it_was_made(tmp_path, resume):
    first = own(out=tmp_path / "run")
    second = own(out=tmp_path / "run", resume=resume, **smoothed(0.9))
    first.run()
    files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(StoreError, match="differs in loss" if resume else "holds a run; pass res"):
        next(second)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == files


def test_a_method_of_ones_own_can_be_recorded(tmp_path):
    method = replace(stc(0.1, 0.1), name="", parameters={})
    model = nn.Linear(6, 2)
    simulation = simulate(
        model, (X, Y), method, environment=FIVE, iterations=2, learning_rate=0.1, out=tmp_path / "r"
    )
    simulation.run()
    assert load_run(tmp_path / "r").method["name"] == "own"


def test_client_data_determines_clients_and_batch_size():
    loaders = [
        DataLoader(TensorDataset(torch.from_numpy(X[i::4]), torch.from_numpy(Y[i::4])), 16)
        for i in range(4)
    ]
    simulation = own(client_data=loaders, data=(X[:50], Y[:50]), environment=None)
    environment = simulation._federation.environment
    assert (environment.clients, environment.cohort_size, environment.batch_size) == (4, 4, 16)
    assert simulation._federation.split.sizes == (75, 75, 75, 75)
    assert simulation.run().iteration == 12


def test_few_classes_are_mixed_by_default():
    environment = own(environment=None)._federation.environment
    assert (environment.split, environment.clients) == ("iid", 100)


def test_torch_threads_are_restored():
    torch.set_num_threads(2)
    seen = []

    class Threads:
        def on_round(self, _simulation):
            seen.append(torch.get_num_threads())

    own(callbacks=[Threads()], iterations=2).run()
    assert torch.get_num_threads() == 2
    own(callbacks=[Threads()], iterations=2, threads=3).run()
    assert seen == [1, 1, 3, 3]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"resume": True}, "resume=True needs the run directory to continue: pass out"),
        ({"device": "gpu"}, "Unknown device 'gpu'"),
        ({"optimizer": torch.optim.Adam}, "pass either learning_rate or optimizer"),
        ({"optimizer": 3, "learning_rate": None}, "optimizer must be a function, got 3"),
        ({"schedule": 0.5}, "schedule must be a function, got 0.5"),
        ({"data": (X, Y.astype(float))}, "cross-entropy, needs class numbers, but .* float64"),
        ({"client_data": [(X, Y)]}, "environment has 5 clients, but client_data has the data of 1"),
        ({"learning_rate": None}, "a module needs iterations and learning_rate"),
    ],
)
def test_an_invalid_argument_of_a_module_is_an_error_with_the_reason(options, message):
    with pytest.raises(ValueError, match=message):
        own(**{**({"data": (X, Y)} if "client_data" in options else {}), **options})


def test_a_task_can_be_given_another_optimiser():
    simulation = simulate(
        "logistic-digits", optimizer=torch.optim.Adam, environment=FIVE, iterations=5
    )
    assert simulation.run().iteration == 5


def test_hyperparameters_of_sgd_are_refused_for_an_optimiser():
    with pytest.raises(ValueError, match="'logistic-digits' has its own optimiser, so that learn"):
        simulate("logistic-digits", optimizer=torch.optim.Adam, momentum=0.9)


def reported(path, **options):
    own(out=path, **options).run()
    return load_run(path)


def test_runs_with_different_optimisers_losses_or_models_are_different_configurations(tmp_path):
    runs = [
        reported(tmp_path / "a", **adam(1e-4)),
        reported(tmp_path / "b", **adam(1.0)),
        reported(tmp_path / "c", **adam(1.0), seed=1),
        reported(tmp_path / "d", **adam(1.0), **smoothed(0.1), metrics=[ACCURACY]),
        reported(tmp_path / "e", **adam(1.0), **smoothed(0.2), metrics=[ACCURACY]),
    ]
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [1, 2, 1, 1]
    assert len({group.label for group in groups}) == 4
    assert "optimizer Adam(lr=0.0001, " in groups[0].label
    assert runs[3].config["training"]["loss"] == "CrossEntropyLoss"


def test_a_dropped_simulation_writes_a_checkpoint_and_releases_its_directory(tmp_path):
    gc.disable()  # a reference cycle would keep the simulation until a collection
    try:
        for evaluation in own(out=tmp_path / "run", workers=0):
            assert evaluation.iteration == 4
            break
        assert (tmp_path / "run" / "checkpoint.safetensors").exists()
        resumed = own(out=tmp_path / "run", resume=True)
        assert [evaluation.iteration for evaluation in resumed] == [8, 12]
    finally:
        gc.enable()


def test_run_after_an_error_or_close_is_an_error_with_the_iteration():
    class Interrupt:
        def on_round(self, simulation):
            if simulation.iteration == 7:
                raise KeyboardInterrupt

    failed = own(callbacks=[Interrupt()])
    with pytest.raises(KeyboardInterrupt):
        failed.run()
    with pytest.raises(FedternError, match="this simulation ended at iteration 7, before its last"):
        failed.run()
    closed = own()
    closed.close()
    with pytest.raises(FedternError, match="ended at iteration 0"):
        closed.run()
    with own() as complete:
        last = complete.run()
    assert complete.run() == last


def test_a_finished_run_has_its_last_iteration_and_round(tmp_path):
    own(out=tmp_path / "run").run()
    finished = own(out=tmp_path / "run", resume=True)
    assert (finished.iteration, finished.round) == (12, 12)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, inputs):
        return self.linear(inputs), inputs


class PerStep(nn.Module):
    """Scores (batch, time, classes)."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 3)

    def forward(self, inputs):
        return self.linear(inputs[..., None])


mse = nn.functional.mse_loss


@pytest.mark.parametrize(
    ("model", "targets", "options", "message"),
    [
        (nn.Linear(6, 2), Y + 1, {}, "targets go up to 2, but the model has 2 outputs; class numb"),
        (nn.Linear(6, 2), Y - 1, {}, "targets go down to -1, but class numbers start at 0"),
        (nn.Linear(7, 2), Y, {}, r"the model failed on a batch of shape \(30, 6\) .*: mat1"),
        (nn.Linear(6, 1), X[:, :1], {"loss": nn.MSELoss}, r"got the class MSELoss; make .*MSELoss"),
        (
            Pair(),
            Y,
            {},
            "cross-entropy, needs a tensor of class scores, .* type tuple; pass a loss",
        ),
        (
            nn.Linear(6, 2),
            Y,
            {"metrics": {"vector": lambda outputs, _: outputs}},
            "metric 'vector' failed on outputs of shape .* it must return one number",
        ),
        (PerStep(), np.zeros((300, 6), np.int64), {}, r"return outputs.transpose\(1, 2\)"),
        (
            nn.Linear(6, 1),
            X[:, 0],
            {"loss": lambda o, t: mse(o, t)},  # noqa: PLW0108
            r"outputs of shape \(30, 1\) .* targets of shape \(30,\) .* targets.reshape\(-1, 1\)",
        ),
        (nn.Linear(6, 1), X[:, :1], {}, "needs class numbers, but the targets are float32; pass a"),
        (nn.Linear(6, 2), Y[:, None], {}, r"needs class numbers of shape .* targets.squeeze\(1\)"),
        (nn.Linear(6, 2), Y, {"seed": -1}, "seed must not be negative, got -1"),
        (nn.Linear(6, 2), Y, {"iterations": 4.5}, "iterations must be an integer, got 4.5"),
        (nn.Linear(6, 2), Y, {"memory_bytes": -1}, "memory_bytes must not be negative, got -1"),
        (
            nn.Linear(6, 2),
            Y,
            {"metrics": {"foo": Metric("bar", mse)}},
            "has the metric 'bar' under the name 'foo'",
        ),
        (
            nn.Linear(6, 2),
            Y,
            {"optimizer": torch.optim.Adam(nn.Linear(1, 1).parameters()), "learning_rate": None},
            "optimizer must be a function, got Adam; write lambda params",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_model_that_does_not_fit_the_data_is_an_error_of_simulate(
    model, targets, options, message
):
    place = Environment(clients=5, participation=1, split="iid")
    settings = {"environment": place, "iterations": 2, "learning_rate": 0.1, **options}
    with pytest.raises(ValueError, match=message):
        simulate(model, (X, targets), "stc:p_up=1/2,p_down=1/2", **settings)


def test_a_metric_that_needs_many_examples_is_accepted():
    def needs_both_classes(_outputs, targets):
        assert len(targets) > 2
        return 1.0

    assert own(metrics={"many": needs_both_classes}).run().metrics["many"] == 1.0


def test_an_error_in_a_worker_has_the_traceback_of_the_worker():
    def failing_loss(outputs, targets):
        if outputs.requires_grad:
            raise RuntimeError("my bug")
        return nn.functional.cross_entropy(outputs, targets)

    with (
        pytest.raises(RuntimeError, match="my bug") as raised,
        own(loss=failing_loss, workers=2) as simulation,
    ):
        simulation.run()
    assert "in failing_loss" in "".join(raised.value.__notes__)


def test_a_client_with_too_few_examples_to_hold_out_is_named():
    with pytest.raises(ValueError, match=r"client_data\[1\] has 3 examples, too few to hold out"):
        own(client_data=[(X, Y), (X[:3], Y[:3])], data=None, environment=None)


@pytest.mark.parametrize("method", ["on_round", "on_evaluation"])
def test_an_error_in_a_callback_writes_a_checkpoint(tmp_path, method):
    def fail(simulation, *_arguments):
        if simulation.iteration == 8:
            raise RuntimeError("my bug")

    with pytest.raises(RuntimeError, match="my bug"):
        own(out=tmp_path / "run", callbacks=[SimpleNamespace(**{method: fail})]).run()
    resumed = own(out=tmp_path / "run", resume=True)
    assert [evaluation.iteration for evaluation in resumed] == [12]
    assert [evaluation.iteration for evaluation in resumed.evaluations] == [4, 8, 12]
