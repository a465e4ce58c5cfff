from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedtern import Snapshot, StoreError, stc
from fedtern.data.environment import Environment
from fedtern.runs import Experiment, open_run, parse_method, reopen_run
from fedtern.store.files import Lock
from fedtern.transports.local.launch import train_run

QUICK = Experiment.of(
    "logistic-digits",
    {"name": "stc", "p_up": 0.02, "p_down": 0.02},
    Environment(clients=10, participation=0.3, classes_per_client=2),
    iterations=30,
    momentum=0.5,
    evaluate_every=10,
)


def test_an_experiment_survives_json_and_its_digest_tells_it_apart():
    assert Experiment.from_json(json.loads(json.dumps(QUICK.to_json()))) == QUICK
    others = [
        Experiment.of("logistic-digits", {"name": "stc"}),
        Experiment.of("logistic-digits", {"name": "stc"}, seed=1),
        Experiment.of("mlp-digits", {"name": "stc"}),
        Experiment.of("logistic-digits", {"name": "stc", "p_up": 0.1}),
        Experiment.of("logistic-digits", {"name": "stc"}, Environment(clients=50)),
        QUICK,
    ]
    assert len({e.digest for e in others}) == len(others)
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


def test_defaults_are_written_out_so_that_they_can_change_without_harm():
    experiment = Experiment.of("logistic-digits", {"name": "stc"})
    assert experiment.method == {
        "name": "stc", "p_up": 1 / 400, "p_down": 1 / 400, "local_steps": 1, "scope": "model",
        "weighted": False,
    }  # fmt: skip
    assert experiment.make_method() == stc()
    assert (experiment.iterations, experiment.evaluate_every) == (1000, 20)


def test_an_experiment_can_be_a_toml_file(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(
        'task = "logistic-digits"\niterations = 30\nmomentum = 0.5\nevaluate_every = 10\n'
        '[method]\nname = "stc"\np_up = 0.02\np_down = 0.02\n'
        "[environment]\nclients = 10\nparticipation = 0.3\nclasses_per_client = 2\n"
    )
    assert Experiment.from_toml(path) == QUICK
    path.write_text('task = "logistic-digits"\nmethod = {name = "stc"}\ncolour = "red"\n')
    with pytest.raises(ValueError, match=r"e.toml: Unknown setting 'colour'\. Available: task"):
        Experiment.from_toml(path)
    path.write_text('task = "logistic-digits"\nmethod = "stc:p_up=1/50"\n')
    assert Experiment.from_toml(path).method["p_up"] == 0.02
    for text, match in (
        ('method = "stc"', "needs a task and a method"),
        (
            'task = "mlp-digits"\nmethod = "stc"\niterations = 2.5',
            "iterations must be a whole number",
        ),
        (
            'task = "mlp-digits"\nmethod = "stc"\nenvironment = {clients = 2.5}',
            "clients must be of type",
        ),
        ('task = "mlp-digits"\nmethod = "stc"\nenvironment = {client = 2}', "Did you mean 'clients'"),
        (
            'task = "mlp-digits"\nmethod = "stc"\n'
            'environment = {split = "dirichlet", classes_per_client = 2}',
            "classes_per_client 2 does nothing",
        ),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=match):
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
def test_methods_are_read_as_people_type_them(text, method):
    assert parse_method(text) == method


def test_bad_experiments_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"Unknown method 'stcc'\. Did you mean 'stc'"):
        Experiment.of("logistic-digits", {"name": "stcc"})
    with pytest.raises(ValueError, match=r"Unknown task 'logistic-digit'\. Did you mean"):
        Experiment.of("logistic-digit", {"name": "stc"})
    with pytest.raises(ValueError, match="method 'fedavg' has no parameter 'p_up'; it has local"):
        Experiment.of("logistic-digits", {"name": "fedavg", "p_up": 0.1})
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\], got 2"):
        Experiment.of("logistic-digits", {"name": "stc", "p_up": 2})
    with pytest.raises(ValueError, match="iterations must be a whole number of at least 1, got 0"):
        Experiment.of("logistic-digits", {"name": "stc"}, iterations=0)
    with pytest.raises(ValueError, match="expected parameter=value after the colon"):
        parse_method("stc:0.1")


def test_a_run_leaves_its_configuration_split_metrics_and_checkpoint(tmp_path):
    run = open_run(QUICK, tmp_path, command="fedtern run")
    assert not run.is_finished()
    rounds = list(train_run(run))
    assert [r.iteration for r in rounds] == [10, 20, 30]
    assert run.is_finished()
    assert run.path == tmp_path / QUICK.digest
    config = json.loads((run.path / "config.json").read_text())
    assert (config["digest"], config["parameters"]) == (QUICK.digest, 650)
    assert Experiment.from_json(config) == QUICK
    split = json.loads((run.path / "split.json").read_text())
    assert np.array(split["counts"]).shape == (10, 10)
    assert open_run(QUICK, tmp_path).evaluations() == rounds
    assert list(train_run(open_run(QUICK, tmp_path))) == []


def test_a_directory_of_something_else_is_never_overwritten(tmp_path):
    open_run(QUICK, tmp_path, path=tmp_path / "here").create()
    other = Experiment.of("logistic-digits", {"name": "sgd"})
    with pytest.raises(StoreError, match=f"holds experiment {QUICK.digest}, not {other.digest}"):
        open_run(other, tmp_path, path=tmp_path / "here")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="holds files that are not a run"):
        open_run(other, tmp_path, path=tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot create"):
        open_run(other, tmp_path / "file").create()


def test_an_experiment_that_cannot_be_leaves_nothing_behind(tmp_path):
    crowded = Experiment.of("logistic-digits", "stc", Environment(clients=5000))
    with pytest.raises(ValueError, match="use fewer clients"):
        list(train_run(open_run(crowded, tmp_path / "runs")))
    assert not (tmp_path / "runs").exists()


def test_a_run_is_finished_only_once_its_weights_are_saved(tmp_path, monkeypatch):
    whole = open_run(QUICK, tmp_path / "a")
    list(train_run(whole))
    run = open_run(QUICK, tmp_path / "b")
    for found in train_run(run):
        if found.iteration >= QUICK.iterations:
            break  # as if killed between the last line and the last save
    assert len(run.evaluations()) == 3
    assert not run.is_finished()
    list(train_run(run))
    assert run.is_finished()
    assert _end(run.path) == _end(whole.path)
    assert _untimed(run.metrics.path) == _untimed(whole.metrics.path)


def test_one_process_has_a_run_at_a_time(tmp_path):
    run = open_run(QUICK, tmp_path)
    going = train_run(run)
    next(going)
    with pytest.raises(StoreError, match="is locked by another process"):
        next(train_run(open_run(QUICK, tmp_path)))
    going.close()
    list(train_run(run))
    assert run.is_finished()


def test_a_run_that_another_process_has_just_finished_stays_as_it_is(tmp_path, monkeypatch):
    late, deal = open_run(QUICK, tmp_path), Environment.deal

    def while_the_other_trains(*arguments):
        monkeypatch.undo()
        list(train_run(open_run(QUICK, tmp_path)))
        return deal(*arguments)

    monkeypatch.setattr(Environment, "deal", while_the_other_trains)
    assert list(train_run(late)) == []
    assert late.is_finished()
    assert [r.iteration for r in late.evaluations()] == [10, 20, 30]


def test_only_who_has_a_directory_says_what_is_run_there(tmp_path):
    run = open_run(QUICK, tmp_path)
    run.path.mkdir()
    lock = Lock(run.path)
    with pytest.raises(StoreError, match="is locked by another process"):
        run.create()
    assert [path.name for path in run.path.iterdir()] == ["lock"]
    lock.close()
    list(train_run(open_run(QUICK, tmp_path)))
    assert run.is_finished()


def test_a_checkpoint_that_a_kill_left_in_a_finished_run_is_removed(tmp_path):
    run = open_run(QUICK, tmp_path)
    list(train_run(run))
    run.checkpoint_path.write_bytes(b"residuals")
    open_run(QUICK, tmp_path)
    assert not run.checkpoint_path.exists()
    run.model_path.unlink()
    run.checkpoint_path.write_bytes(b"all that is left")
    open_run(QUICK, tmp_path)
    assert run.checkpoint_path.exists()


@pytest.mark.parametrize("length", [0, -9])
def test_a_damaged_checkpoint_is_named_with_a_remedy(tmp_path, length):
    run = open_run(QUICK, tmp_path)
    list(train_run(run, stopped=iter([False, True]).__next__))
    run.checkpoint_path.write_bytes(run.checkpoint_path.read_bytes()[:length])
    with pytest.raises(StoreError, match=r"checkpoint.safetensors is damaged .*remove it to start"):
        list(train_run(run))


@pytest.mark.parametrize("text", ["", "[]", '{"digest": ', "\x00"])
def test_a_damaged_configuration_is_named_with_a_remedy(tmp_path, text):
    run = open_run(QUICK, tmp_path)
    run.create()
    (run.path / "config.json").write_text(text)
    for look in (lambda: open_run(QUICK, tmp_path), lambda: reopen_run(run.path)):
        with pytest.raises(StoreError, match=r"config.json is damaged \(.*\); move .* away"):
            look()


def test_a_finished_run_without_its_metrics_is_named_with_a_remedy(tmp_path):
    run = open_run(QUICK, tmp_path)
    list(train_run(run))
    assert run.final_evaluation() == run.evaluations()[-1]
    for damage in (lambda: run.metrics.path.write_text(""), run.metrics.path.unlink):
        damage()
        with pytest.raises(StoreError, match=r"metrics.jsonl is missing or empty, but .*move"):
            run.final_evaluation()


def test_a_finished_run_keeps_the_model_and_what_tells_its_state_from_others(tmp_path):
    run = open_run(QUICK, tmp_path)
    list(train_run(run, stopped=iter([False, True]).__next__))
    assert run.checkpoint_path.exists()
    assert not run.model_path.exists()
    list(train_run(run))
    assert not run.checkpoint_path.exists()
    kept = Snapshot.from_bytes(run.model_path.read_bytes()).arrays
    assert {n: w.shape for n, w in kept.items()} == {"1.weight": (10, 64), "1.bias": (10,)}
    other = replace(QUICK, seed=QUICK.seed + 1)
    list(train_run(open_run(other, tmp_path)))
    assert _end(run.path) != _end(tmp_path / other.digest)


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(tmp_path):
    whole = open_run(QUICK, tmp_path / "a")
    list(train_run(whole))
    parts = open_run(QUICK, tmp_path / "b")
    rounds = []

    def stopped() -> bool:
        rounds.append(0)
        return len(rounds) % 7 == 0

    for _ in range(6):
        list(train_run(parts, stopped=stopped))
    assert parts.is_finished()
    assert _untimed(parts.metrics.path) == _untimed(whole.metrics.path)
    assert _end(parts.path) == _end(whole.path)


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path):
    """SIGKILL at three random points of a run from the command line, then --resume."""
    options = [
        "run", "--method", "stc:p_up=0.02,p_down=0.02", "--classes-per-client", "2",
        "--iterations", "300", "--evaluate-every", "7", "--momentum", "0.5", "--json",
    ]  # fmt: skip
    environment = {**os.environ, "FEDTERN_CHECKPOINT_SECONDS": "0.1"}

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedtern", *options, "--resume", "--out", str(out)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait() == 0
    (whole,) = (tmp_path / "whole").iterdir()
    rng = np.random.default_rng(os.getpid())

    def kill_three_times(out: Path) -> bool:
        """Return False if the run ends before that, as it may where the test has to wait."""
        for _ in range(3):
            target = _lines(out) + int(rng.integers(1, 12))
            process = start(out)
            while process.poll() is None and _lines(out) < target:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            if (code := process.wait()) == 0:
                return False
            assert code == -signal.SIGKILL
        return True

    attempts = (tmp_path / f"killed-{attempt}" for attempt in range(5))
    out = next(filter(kill_three_times, attempts), None)
    assert out is not None, "five runs ended before they could be killed"
    assert start(out).wait() == 0
    (killed,) = out.iterdir()
    assert _untimed(killed / "metrics.jsonl") == _untimed(whole / "metrics.jsonl")
    assert _end(killed) == _end(whole)


def _lines(out: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in out.glob("*/metrics.jsonl"))


def _untimed(metrics: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def _end(run: Path) -> tuple[str, bytes]:
    """Where a run ended: a digest of all states, and the model."""
    state = json.loads((run / "config.json").read_text())["state"]
    return state, (run / "model.safetensors").read_bytes()
