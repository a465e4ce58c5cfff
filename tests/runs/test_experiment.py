from __future__ import annotations

import json

import pytest

from fedtern import stc
from fedtern.data.environment import Environment
from fedtern.privacy import PrivacySettings
from fedtern.runs import Experiment, parse_method
from runs.quick import QUICK


def test_an_experiment_survives_json():
    assert Experiment.from_json(json.loads(json.dumps(QUICK.to_json()))) == QUICK


def test_privacy_settings_survive_json_and_toml(tmp_path):
    settings = PrivacySettings(clip=0.5, noise_multiplier=8, budget=3, model="local")
    private = Experiment.of("logistic-digits", "stc", privacy=settings)
    assert Experiment.from_json(json.loads(json.dumps(private.to_json()))) == private
    path = tmp_path / "e.toml"
    path.write_text(
        'task = "logistic-digits"\nmethod = "stc"\n'
        '[privacy]\nclip = 0.5\nnoise_multiplier = 8\nbudget = 3\nmodel = "local"\n'
    )
    assert Experiment.from_toml(path) == private
    path.write_text('task = "logistic-digits"\nmethod = "stc"\n[privacy]\nclips = 0.5\n')
    with pytest.raises(ValueError, match="Did you mean 'clip'"):
        Experiment.from_toml(path)


def test_an_experiment_without_privacy_has_the_digest_of_earlier_versions():
    plain = Experiment.of("logistic-digits", "stc")
    assert "privacy" not in plain.to_json()
    private = Experiment.of("logistic-digits", "stc", privacy={"clip": 1, "noise_multiplier": 1})
    assert plain.digest != private.digest


def test_different_experiments_have_different_digests():
    others = [
        Experiment.of("logistic-digits", {"name": "stc"}),
        Experiment.of("logistic-digits", {"name": "stc"}, seed=1),
        Experiment.of("mlp-digits", {"name": "stc"}),
        Experiment.of("logistic-digits", {"name": "stc", "p_up": 0.1}),
        Experiment.of("logistic-digits", {"name": "stc"}, Environment(clients=50)),
        QUICK,
    ]
    assert len({e.digest for e in others}) == len(others)


def test_equal_numbers_of_different_types_give_the_same_digest():
    whole, real = (
        Experiment.of("mlp-digits", "sgd", Environment(participation=p)) for p in (1, 1.0)
    )
    assert whole.digest == real.digest


def test_labels_tell_methods_apart():
    texts = ("fedavg:weighted=true", "fedavg", "stc:p_up=1", "stc", "stc:local_steps=5", "topk")
    labels = [Experiment.of("mlp-digits", text).label for text in texts]
    assert len(set(labels)) == len(labels)
    assert Experiment.of("mlp-digits", "fedavg:local_steps=1").label == "fedavg local_steps=1"
    assert Experiment.of("mlp-digits", "stc:local_steps=1").label == "stc p_up=1/400"


def test_an_experiment_stores_the_defaults_that_it_uses():
    experiment = Experiment.of("logistic-digits", {"name": "stc"})
    assert experiment.method == {
        "name": "stc", "p_up": 1 / 400, "p_down": 1 / 400, "local_steps": 1, "scope": "model",
        "weighted": False,
    }  # fmt: skip
    assert experiment.make_method() == stc()
    assert (experiment.iterations, experiment.evaluate_every) == (1000, 20)


def test_automatic_broadcasts_get_the_participation_of_the_environment():
    few = Environment(participation=0.05)
    for method in ("stc_plus", {"name": "stc", "p_down": "auto"}):
        assert Experiment.of("logistic-digits", method, few).method["participation"] == 0.05
        given = {"name": method} if isinstance(method, str) else method
        own = Experiment.of("logistic-digits", {**given, "participation": 0.5}, few)
        assert own.method["participation"] == 0.5
    assert "participation" not in Experiment.of("logistic-digits", "stc", few).method
    assert Experiment.of("logistic-digits", "stc_plus", few).label == "stc_plus"


def test_an_experiment_can_be_read_from_a_toml_file(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(
        'task = "logistic-digits"\niterations = 30\nmomentum = 0.5\nevaluate_every = 10\n'
        '[method]\nname = "stc"\np_up = 0.02\np_down = 0.02\n'
        "[environment]\nclients = 10\nparticipation = 0.3\nclasses_per_client = 2\n"
    )
    assert Experiment.from_toml(path) == QUICK


def test_the_method_of_a_toml_file_can_be_text(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text('task = "logistic-digits"\nmethod = "stc:p_up=1/50"\n')
    assert Experiment.from_toml(path).method["p_up"] == 0.02


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'task = "logistic-digits"\nmethod = {name = "stc"}\ncolour = "red"\n',
            r"Unknown setting 'colour'\. Available: task",
        ),
        ('method = "stc"', "needs a task and a method"),
        (
            'task = "mlp-digits"\nmethod = "stc"\niterations = 2.5',
            "iterations must be a whole number",
        ),
        (
            'task = "mlp-digits"\nmethod = "stc"\nenvironment = {clients = 2.5}',
            "clients must be of type",
        ),
        (
            'task = "mlp-digits"\nmethod = "stc"\nenvironment = {client = 2}',
            "Did you mean 'clients'",
        ),
        (
            'task = "mlp-digits"\nmethod = "stc"\n'
            'environment = {split = "dirichlet", classes_per_client = 2}',
            "classes_per_client 2 does not apply",
        ),
    ],
)
def test_an_invalid_toml_file_is_an_error_that_names_the_file(tmp_path, text, message):
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"e\.toml: .*{message}"):
        Experiment.from_toml(path)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("stc", {"name": "stc"}),
        ("fedavg:local-steps=25", {"name": "fedavg", "local_steps": 25}),
        ("topk:p_down=none,weighted=true", {"name": "topk", "p_down": None, "weighted": True}),
        ("signsgd:delta=2e-4", {"name": "signsgd", "delta": 0.0002}),
    ],
)
def test_a_method_is_parsed_from_its_text(text, method):
    assert parse_method(text) == method


@pytest.mark.parametrize(
    ("task", "method", "options", "message"),
    [
        ("logistic-digits", {"name": "stcc"}, {}, r"Unknown method 'stcc'\. Did you mean 'stc'"),
        ("logistic-digit", {"name": "stc"}, {}, r"Unknown task 'logistic-digit'\. Did you mean"),
        (
            "logistic-digits",
            {"name": "fedavg", "p_up": 0.1},
            {},
            "method 'fedavg' has no parameter 'p_up'; it has local",
        ),
        ("logistic-digits", {"name": "stc", "p_up": 2}, {}, r"p must be in \(0, 1\], got 2"),
        (
            "logistic-digits",
            {"name": "stc"},
            {"iterations": 0},
            "iterations must be a whole number of at least 1, got 0",
        ),
        ("logistic-digits", "stc:0.1", {}, "expected parameter=value after the colon"),
    ],
)
def test_an_invalid_experiment_is_an_error_that_names_the_value(task, method, options, message):
    with pytest.raises(ValueError, match=message):
        Experiment.of(task, method, **options)
