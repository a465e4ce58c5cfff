"""The commands that train, as a person types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

from fedtern.cli import app
from fedtern.core.methods import METHODS
from fedtern.training.flat import FlatModel
from fedtern.training.tasks import get_task

QUICK = [
    "--iterations",
    "20",
    "--evaluate-every",
    "10",
    "--clients",
    "10",
    "--participation",
    "1/2",
]


@pytest.fixture
def fedtern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_run_trains_keeps_the_run_and_says_where(fedtern, tmp_path):
    result = fedtern("run", "--method", "stc", "--p-up", "1/50", *QUICK)
    assert result.exit_code == 0
    assert "stc p_up=1/50: accuracy" in result.stdout
    (path,) = (tmp_path / "runs").iterdir()
    assert f"kept in runs/{path.name}" in result.stdout
    config = json.loads((path / "config.json").read_text())
    assert (config["method"]["p_up"], config["environment"]["participation"]) == (0.02, 0.5)


def test_run_as_json_ends_in_one_object_and_a_finished_run_is_not_repeated(fedtern):
    first, second = (fedtern("run", *QUICK, "--json") for _ in range(2))
    found = json.loads(first.stdout.splitlines()[-1])
    assert found["iteration"] == 20
    assert first.stdout == second.stdout


def test_a_loss_that_is_no_number_is_null_in_json(fedtern, tmp_path):
    found = json.loads(fedtern("run", *QUICK, "--json").stdout.splitlines()[-1])
    metrics = tmp_path / found["run"] / "metrics.jsonl"
    diverged = [{**json.loads(line), "loss": None} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in diverged))

    def strict(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    for command in (["run"], ["compare", "stc"]):
        last = fedtern(*command, *QUICK, "--json").stdout.splitlines()[-1]
        row = json.loads(last, parse_constant=strict)
        assert (row["runs"][0] if "runs" in row else row)["loss"] is None


def test_a_method_may_have_its_own_parameter_beside_that_of_all(fedtern):
    result = fedtern("compare", "stc", "stc:p_up=0.1", "--p-up", "0.2", *QUICK, "--json")
    labels = [row["method"] for row in json.loads(result.stdout.splitlines()[-1])["runs"]]
    assert labels == ["stc p_up=1/5", "stc p_up=1/10"]


def test_compare_prints_a_table_and_writes_a_report(fedtern, tmp_path):
    pytest.importorskip("plotly")
    result = fedtern(
        "compare", "stc", "fedavg:local_steps=5", "signsgd", "sgd", "--p-up", "0.1", *QUICK
    )
    assert result.exit_code == 0, result.output
    for text in ("stc p_up=1/10", "fedavg", "local_steps=5", "signsgd", "sgd", "report.html"):
        assert text in result.stdout
    assert "STC" in (tmp_path / "report.html").read_text()
    runs = [str(path) for path in (tmp_path / "runs").iterdir()]
    assert fedtern("report", *runs, "--out", "again.html").exit_code == 0
    assert (tmp_path / "again.html").exists()
    found = fedtern("compare", "stc", "sgd", "--p-up", "0.1", *QUICK, "--json")
    assert len(json.loads(found.stdout.splitlines()[-1])["runs"]) == 2


def test_compare_asks_where_the_report_goes_before_it_trains(fedtern, tmp_path):
    (tmp_path / "pages").mkdir()
    refused = fedtern("compare", "stc", *QUICK, "--html", "pages")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "pages is a directory; name a file, for example pages/report.html" in refused.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("as_json", [True, False])
def test_compare_says_what_it_found_whatever_becomes_of_the_report(fedtern, monkeypatch, as_json):
    def full(*_arguments):
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("fedtern.cli.train.write_report", full)
    result = fedtern("compare", "stc", *QUICK, *["--json"] * as_json)
    assert result.exit_code == 1
    assert "report.html: No space left on device" in result.stderr
    if as_json:
        found = json.loads(result.stdout.splitlines()[-1])
        assert (len(found["runs"]), found["report"]) == (1, None)
    else:
        assert "stc p_up=1/400" in result.stdout


def test_an_experiment_can_be_a_file(fedtern, tmp_path):
    (tmp_path / "e.toml").write_text(
        'task = "logistic-digits"\niterations = 10\nmethod = {name = "sgd"}\n'
        "environment = {clients = 5, participation = 1.0}\n"
    )
    result = fedtern("run", "--config", "e.toml", "--json")
    assert json.loads(result.stdout.splitlines()[-1])["iteration"] == 10


def test_a_trained_model_can_be_taken_away(fedtern, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    run = json.loads(fedtern("run", *QUICK, "--json").stdout.splitlines()[-1])
    task = get_task("logistic-digits")
    model, (_, test) = task.build(seed=1), task.examples(task.load(None), "cpu")
    model.load_state_dict(safetensors.load_file(tmp_path / run["run"] / "model.safetensors"))
    loss, accuracy = FlatModel(model).evaluate(test)
    assert (loss, accuracy) == pytest.approx((run["loss"], run["accuracy"]))


def test_tasks_methods_and_splits_are_listed(fedtern, tmp_path):
    found = {
        row["task"]: row["parameters"]
        for row in json.loads(fedtern("tasks", "--json").stdout)["tasks"]
    }
    assert found["vgg11s-cifar10"] == 865_482
    assert "cnn-kws" in fedtern("tasks").stdout
    listed = fedtern("methods").stdout.splitlines()
    assert len(listed) == 1 + len(METHODS)  # one line each
    stc = next(line for line in listed if line.startswith("stc "))
    assert all(word in stc for word in ("p_up=1/400", "Sattler et al., 2019", "error feedback"))
    explained = fedtern("methods", "dgc").stdout
    assert "@inproceedings{lin2018deep" in explained
    assert "fedtern.core.feedback.MomentumCorrection.rate" in explained
    assert json.loads(fedtern("methods", "qsgd", "--json").stdout)["what is lost"] == "unbiased"
    pytest.importorskip("matplotlib")
    result = fedtern("split", "--clients", "20", "--classes-per-client", "2", "--plot", "s.png")
    assert "20 clients hold 75 to 75 examples each" in result.stdout
    assert (tmp_path / "s.png").stat().st_size > 5000
    counts = json.loads(fedtern("split", "--clients", "4", "--split", "iid", "--json").stdout)[
        "counts"
    ]
    assert len(counts) == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "logistic-digit"], "Unknown task 'logistic-digit'. Did you mean"),
        (["run", "--method", "std"], "Unknown method 'std'. Did you mean 'stc'"),
        (["run", "--method", "sgd", "--p-up", "0.1"], "method 'sgd' has no parameter 'p_up'"),
        (["run", "--participation", "0.001"], "selects no client"),
        (["run", "--classes-per-client", "11"], "between 1 and the number of classes, 10, got 11"),
        (["run", "--clients", "5000"], "use fewer clients"),
        (["run", "logistic-mnist", "--data-dir", "nowhere"], "put it there"),
        (["report", "nowhere"], "nowhere"),
        (["run", "--method", "stc:p_up=abc"], "stc's p_up must be of type float, got 'abc'"),
        (["run", "--method", "stc:local_steps=2.5"], "local_steps must be of type int, got 2.5"),
        (["run", "--method", "stc:p_up=1e400"], "stc's p_up must be of type float, got '1e400'"),
        (["run", "--method", "stc:p_up=none"], "cannot be created with p_up=None"),
        (["run", "--method", "topk:p_down=abc"], "cannot be created with p_down=abc"),
        (["run", "--method", "topk:p_down=true"], "topk's p_down must be a number or none, got"),
        (["run", "--method", "fedavg:local_steps=1e3"], "local_steps must be of type int"),
        (["run", "--method", "stc:p_up=0.1,p-up=0.2"], "p_up occurs twice in 'stc:p_up=0.1,"),
        (
            ["run", "--method", "stc:p_up=0.1", "--p-up", "0.2"],
            "--p-up 0.2 contradicts --method stc:p_up=0.1: leave one of them out",
        ),
        (["run", "--p-up", "1e-999999999"], "p must be in (0, 1], got 0.0"),
        (["run", "--local-steps", "9" * 23], "stc's local_steps must be below 2**63, got 999"),
        (["run", "--seed", "9" * 23], "seed must be a whole number below 2**63, got 999"),
        (["run", "--memory", "inf"], "--memory must be a number of GiB of at least 0, got inf"),
        (["run", "--memory", "nan"], "--memory must be a number of GiB of at least 0, got nan"),
        (["run", "--memory", "-1"], "--memory must be a number of GiB of at least 0, got -1"),
        (["run", "--learning-rate", "1e308"], "learning_rate must be at most 3.40282e+38"),
        (["run", "--weight-decay", "1e300"], "weight_decay must be at most 3.40282e+38"),
        (["split", "--clients", "1000000000000"], "use fewer clients"),
        (["run", "--method", "stc:name=sgd"], "the name of a method comes before the colon"),
        (["run", "--learning-rate", "-1"], "learning_rate must be positive, got -1.0"),
        (["run", "--momentum", "2"], "momentum must be in [0, 1), got 2.0"),
        (["run", "--device", "cuda:77"], "device 'cuda:77' cannot be used"),
        (["run", "--config", "nope.toml"], "nope.toml: No such file"),
        (
            ["run", "mlp-digits", "--config", "e.toml", "--p-up", "1/4", "--gamma", "0.9"],
            "e.toml says what to train: write task, --gamma, --p-up there, or leave it out",
        ),
        (["run", "--out", "/proc/nowhere"], "cannot create /proc/nowhere"),
        (["split", "--plot", "/nowhere/x.png"], "/nowhere/x.png: No such file"),
        (["split", "--split", "odd"], "split must be one of"),
        (
            ["run", "--split", "iid", "--classes-per-client", "2"],
            'classes_per_client 2 does not apply to split "iid"; leave it out, or use split "cl',
        ),
        (
            ["split", "--concentration", "2"],
            'concentration 2.0 does not apply to split "classes"; leave it out, or use split "d',
        ),
        (
            ["split", "--split", "natural", "--gamma", "0.9"],
            'gamma 0.9 does not apply to split "natural"; leave it out, or use split "classes" or',
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_1(fedtern, arguments, sentence):
    result = fedtern(*arguments)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_damaged_runs_and_settings_are_one_sentence(fedtern, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTERN_CHECKPOINT_SECONDS", "abc")
    refused = fedtern("run", *QUICK)
    assert "FEDTERN_CHECKPOINT_SECONDS must be a number of seconds" in refused.stderr
    monkeypatch.delenv("FEDTERN_CHECKPOINT_SECONDS")
    assert fedtern("run", *QUICK).exit_code == 0
    (path,) = (tmp_path / "runs").iterdir()
    (path / "metrics.jsonl").unlink()
    result = fedtern("run", *QUICK)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert f"{path.name}/metrics.jsonl is missing or empty" in result.stderr


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path):
    often = ["--iterations", "100000", "--evaluate-every", "10"]
    command = [sys.executable, "-m", "fedtern", "run", *often]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    # Until an evaluation has been written: it is training.
    while not any(path.stat().st_size for path in tmp_path.glob("runs/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ending this round; Ctrl-C again stops at once" in errors
    assert "stopped; go on with the same command and --resume" in errors
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "has been started before: add --resume to go on" in again.stderr
