"""``simulate`` with a module or with a task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import fedtern  # noqa: E402
from fedtern import sgd, stc  # noqa: E402
from fedtern.data import Dataset  # noqa: E402
from fedtern.data.environment import Environment  # noqa: E402
from fedtern.training import get_task  # noqa: E402
from fedtern.training.augment import CropFlip, pad  # noqa: E402
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
