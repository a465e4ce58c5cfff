"""``fedtern run``, ``compare``, ``tasks``, ``methods`` and ``split``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from statistics import fmean, stdev

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

from fedtern.cli import app
from fedtern.report import format_bytes
from fedtern.runs.method_registry import known_methods
from fedtern.training.flat import FlatModel
from fedtern.training.tasks import get_task

QUICK = ["--iterations", "20", "--evaluate-every", "10", "--clients", "10"]
QUICK += ["--participation", "1/2"]


@pytest.fixture
def fedtern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_run_trains_and_prints_the_run_directory(fedtern, tmp_path):
    result = fedtern("run", "--method", "stc", "--p-up", "1/50", *QUICK)
    assert result.exit_code == 0
    assert "stc p_up=1/50: accuracy" in result.stdout
    (path,) = (tmp_path / "runs").iterdir()
    assert f"saved to runs/{path.name}" in result.stdout
    config = json.loads((path / "config.json").read_text())
    assert (config["method"]["p_up"], config["environment"]["participation"]) == (0.02, 0.5)


@pytest.mark.parametrize(("chosen", "notices"), [(None, 1), ("numpy", 0)])
def test_training_without_compiled_kernels_prints_that_numpy_serves(chosen, notices):
    code = (
        "import sys; sys.modules['fedtern.core.kernels.compiled'] = None\n"
        "from fedtern.__main__ import main; main()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "FEDTERN_KERNELS"}
    environment |= {"FEDTERN_KERNELS": chosen} if chosen else {}
    command = [sys.executable, "-c", code, "compare", "no-such-method"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    *printed, error = done.stderr.splitlines()
    assert error.startswith("fedtern: Unknown method 'no-such-method'")
    assert len(printed) == notices
    assert all(line.startswith("kernels: numpy (slower; no compiled") for line in printed)


def test_run_json_is_the_same_for_a_finished_run(fedtern):
    first, second = (fedtern("run", *QUICK, "--json") for _ in range(2))
    found = json.loads(first.stdout.splitlines()[-1])
    assert found["iteration"] == 20
    assert first.stdout == second.stdout


def test_a_finished_run_is_reported_as_finished(fedtern):
    first, second = (fedtern("run", *QUICK) for _ in range(2))
    assert "already finished" not in first.stderr
    (line,) = [line for line in second.stderr.splitlines() if "already finished" in line]
    assert line.startswith("stc p_up=1/400: already finished, in runs/")
    assert "already finished" in fedtern("compare", "stc", *QUICK).stderr


def test_nan_loss_is_null_in_json(fedtern, tmp_path):
    found = json.loads(fedtern("run", *QUICK, "--json").stdout.splitlines()[-1])
    metrics = tmp_path / found["run"] / "metrics.jsonl"
    diverged = [{**json.loads(line), "loss": None} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in diverged))

    def strict(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    for command in (["run"], ["compare", "stc"]):
        last = fedtern(*command, *QUICK, "--json").stdout.splitlines()[-1]
        row = json.loads(last, parse_constant=strict)
        assert (row["runs"][0] if "runs" in row else row)["loss"] is None


def test_compare_parameter_of_one_method_overrides_the_option(fedtern):
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


def test_compare_trains_each_value_of_a_sweep_with_each_seed(fedtern, tmp_path):
    result = fedtern(
        *("compare", "stc", "sgd", "--p-up", "1/5,1/10", "--seeds", "2", "--seed", "4", "--json"),
        *QUICK,
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["runs"]
    assert [(row["method"], row["seed"]) for row in rows] == [
        (method, seed) for method in ("stc p_up=1/5", "stc p_up=1/10", "sgd") for seed in (4, 5)
    ]
    again = fedtern("compare", "stc", "sgd", "--p-up", "1/5", "--seeds", "2", "--seed", "4", *QUICK)
    table = again.stdout.splitlines()
    accuracies = [100 * row["accuracy"] for row in rows[:2]]
    assert f"{fmean(accuracies):.2f}% ± {stdev(accuracies):.2f}" in table[1]
    server = fmean(row["up_bytes"] + row["down_bytes"] for row in rows[:2])
    assert format_bytes(server) in table[1]
    assert "means of 2 seeds" in again.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 6


def test_compare_applies_an_option_to_each_method_that_has_it(fedtern):
    options = ("--codec", "adaptive", "--p-down", "auto", "--json")
    result = fedtern("compare", "stc", "stc_plus", "sgd", *options, *QUICK)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["runs"]
    first = "stc p_up=1/400 p_down=auto codec=adaptive"
    assert [row["method"] for row in rows] == [first, "stc_plus", "sgd"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--p-up", "1/5,x"], "expected a number or a fraction"),
        (["--local-steps", "2,three"], "expected a whole number, got 'three'"),
        (["--seeds", "0"], "0 is not in the range"),
    ],
)
def test_compare_names_a_wrong_value_of_a_sweep(fedtern, options, message):
    result = fedtern("compare", "stc", *options)
    assert result.exit_code == 2
    assert message in result.output


def test_run_tracks_evaluations(fedtern, tmp_path):
    tracked = ["--track", "csv:tables", "--track", "json"]
    assert fedtern("run", *QUICK, *tracked).exit_code == 0
    (path,) = (tmp_path / "runs").iterdir()
    assert len((tmp_path / "tables" / f"{path.name}.csv").read_text().splitlines()) == 3
    assert len(json.loads((path / "evaluations.json").read_text())["evaluations"]) == 2
    assert fedtern("run", *QUICK, "--track", "csv").exit_code == 0  # of the finished run
    assert len((path / "evaluations.csv").read_text().splitlines()) == 3
    refused = fedtern("run", *QUICK, "--seed", "1", "--track", "tensorbord")
    assert "Unknown tracker 'tensorbord'" in refused.stderr


def test_runs_record_the_machine(fedtern, tmp_path):
    fedtern("run", *QUICK)
    (path,) = (tmp_path / "runs").iterdir()
    config = json.loads((path / "config.json").read_text())
    assert config["machine"]["torch"] == version("torch")
    assert {"fedtern", "python", "numpy", "cpu", "blas", "instructions"} <= config["machine"].keys()


def test_compare_refuses_a_directory_as_report_before_training(fedtern, tmp_path):
    (tmp_path / "pages").mkdir()
    refused = fedtern("compare", "stc", *QUICK, "--html", "pages")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "pages is a directory; name a file, for example pages/report.html" in refused.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("as_json", [True, False])
def test_compare_prints_results_if_the_report_cannot_be_written(fedtern, monkeypatch, as_json):
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


def test_run_reads_an_experiment_from_a_toml_file(fedtern, tmp_path):
    (tmp_path / "e.toml").write_text(
        'task = "logistic-digits"\niterations = 10\nmethod = {name = "sgd"}\n'
        "environment = {clients = 5, participation = 1.0}\n"
    )
    result = fedtern("run", "--config", "e.toml", "--json")
    assert json.loads(result.stdout.splitlines()[-1])["iteration"] == 10


def test_saved_model_loads_into_torch_with_the_reported_accuracy(fedtern, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    run = json.loads(fedtern("run", *QUICK, "--json").stdout.splitlines()[-1])
    task = get_task("logistic-digits")
    model = task.build(seed=1)
    _, test = task.examples(task.load(None), "cpu")
    model.load_state_dict(safetensors.load_file(tmp_path / run["run"] / "model.safetensors"))
    loss, metrics = FlatModel(model).evaluate(test)
    assert (loss, metrics["accuracy"]) == pytest.approx((run["loss"], run["accuracy"]))


OWN_TASK = """
import math
from torch import nn
from torch.nn.functional import mse_loss
from fedtern.data import Dataset
from fedtern.training import Metric, Task

x = [[i / 100] for i in range(100)]
line = Task(
    "line", Dataset("line", x, x, x[::10], x[::10], num_classes=None), lambda: nn.Linear(1, 1), 0.1,
    20, loss=mse_loss, metrics=[Metric("rmse", mse_loss, "lower", math.sqrt)],
)
"""


@pytest.mark.parametrize("name", ["my_line", "my_line.py"])
def test_import_adds_tasks_of_ones_own_to_every_command(fedtern, tmp_path, monkeypatch, name):
    monkeypatch.setenv("FEDTERN_TASKS", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_line", raising=False)
    (tmp_path / "my_line.py").write_text(OWN_TASK)
    few = ["--clients", "4", "--participation", "1"]
    result = fedtern("run", "line", "--import", name, *few)
    assert result.exit_code == 0, result.output
    assert "stc p_up=1/400: rmse 0." in result.stdout
    table = fedtern("compare", "stc", "sgd", "--task", "line", *few).stdout
    assert table.split()[:2] == ["method", "rmse"]
    assert "line" in fedtern("tasks", "--import", name).stdout
    assert "clients:             4" in fedtern("split", "line", "--clients", "4").stdout
    monkeypatch.delitem(sys.modules, "my_line", raising=False)


def test_a_module_that_cannot_be_imported_is_an_error(fedtern, monkeypatch):
    monkeypatch.setenv("FEDTERN_TASKS", "")
    result = fedtern("run", "line", "--import", "no_such_module")
    assert result.exit_code != 0
    assert "Cannot import 'no_such_module': there is no such module" in result.stderr


def test_tasks_lists_every_task_with_its_parameters(fedtern):
    found = {
        row["task"]: row["parameters"]
        for row in json.loads(fedtern("tasks", "--json").stdout)["tasks"]
    }
    assert found["vgg11s-cifar10"] == 865_482
    assert "cnn-kws" in fedtern("tasks").stdout


def test_run_with_adaptive_positions_and_powers_downloads_less(fedtern, tmp_path):
    common = ("run", "mlp-digits", "--iterations", "30", "--p-up", "1/20", "--p-down", "1/20")
    plain = fedtern(*common, "--out", str(tmp_path), "--json")
    options = ("--codec", "adaptive", "--magnitudes", "powers")
    shorter = fedtern(*common, *options, "--out", str(tmp_path), "--json")
    assert plain.exit_code == shorter.exit_code == 0
    found = [json.loads(result.stdout.splitlines()[-1]) for result in (plain, shorter)]
    assert found[1]["down_bytes"] < 0.8 * found[0]["down_bytes"]
    again = fedtern(*common, *options, "--out", str(tmp_path))
    assert "codec=adaptive magnitudes=powers" in again.stdout


def test_methods_lists_one_line_per_method(fedtern):
    listed = fedtern("methods").stdout.splitlines()
    assert len(listed) == 1 + len(known_methods())
    assert any(line.startswith("secure_topk ") for line in listed)
    stc = next(line for line in listed if line.startswith("stc "))
    assert all(word in stc for word in ("p_up=1/400", "Sattler et al., 2019", "error feedback"))


def test_methods_describes_one_method_and_its_publication(fedtern):
    described = fedtern("methods", "dgc").stdout
    assert "@inproceedings{lin2018deep" in described
    assert "fedtern.core.feedback.MomentumCorrection.rate" in described
    assert json.loads(fedtern("methods", "qsgd", "--json").stdout)["what is lost"] == "unbiased"


def test_split_shows_examples_per_client_and_draws_a_plot(fedtern, tmp_path):
    pytest.importorskip("matplotlib")
    result = fedtern("split", "--clients", "20", "--classes-per-client", "2", "--plot", "s.png")
    assert "examples per client: 75 to 75" in result.stdout
    assert (tmp_path / "s.png").stat().st_size > 5000


def test_split_json_has_the_counts_of_each_client(fedtern):
    result = fedtern("split", "--clients", "4", "--split", "iid", "--json")
    assert len(json.loads(result.stdout)["counts"]) == 4


def test_a_natural_split_of_text_lists_documents_and_no_classes(fedtern):
    printed = fedtern("split", "transformer-text", "--split", "natural", "--clients", "20").stdout
    assert "clients:             20" in printed
    assert "classes" not in printed


@pytest.mark.parametrize(
    ("task", "metric"), [("mlp-regression", "rmse"), ("transformer-text", "perplexity")]
)
def test_a_comparison_shows_the_primary_metric_of_the_task(fedtern, task, metric):
    result = fedtern(
        "compare", "stc:p_up=1/10,p_down=1/10", "sgd", "--task", task, "--clients", "10",
        "--iterations", "2", "--batch-size", "2",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.split()[:2] == ["method", metric]


@pytest.mark.parametrize(
    ("arguments", "message"),
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
        (["run", "--method", "stc:p_up=none"], "stc's p_up must be of type float, got None"),
        (
            ["run", "--method", "topk:p_down=abc"],
            "must be of type float or none, got 'abc'",
        ),
        (
            ["run", "--method", "topk:p_down=true"],
            "must be of type float or none, got True",
        ),
        (["run", "--method", "fedavg:local_steps=1e3"], "local_steps must be of type int"),
        (["run", "--method", "stc:p_up=0.1,p-up=0.2"], "p_up occurs twice in 'stc:p_up=0.1,"),
        (
            ["run", "--method", "stc:p_up=0.1", "--p-up", "0.2"],
            "--p-up 0.2 contradicts --method stc:p_up=0.1: omit one of them",
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
            "--config cannot be combined with task, --gamma, --p-up: set them in e.toml, or",
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
def test_bad_input_is_reported_in_one_line_with_exit_code_1(fedtern, arguments, message):
    result = fedtern(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_damaged_runs_and_bad_settings_are_reported_in_one_line(fedtern, tmp_path, monkeypatch):
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


def test_ctrl_c_stops_after_the_round_and_prints_how_to_continue(tmp_path):
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
    assert "stopping after this round; press Ctrl-C again to stop at once" in errors
    assert "stopped; continue with the same command and --resume" in errors
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "holds an unfinished run: add --resume to continue it" in again.stderr
