"""The paper's claims, tested on finished runs."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

from fedtern import Environment
from fedtern.cli import app
from fedtern.core.errors import StoreError
from fedtern.runs import Experiment
from fedtern_paper import Results
from fedtern_paper.judgements import judge, summarise, verdicts
from paper.fakes import finish, read_csv

TASK = "logistic-mnist"
SKEWED = Environment(classes_per_client=2)


def cell(method, environment=None, momentum=0.0, seed=0, task=TASK, **others):
    return Experiment.of(task, method, environment, momentum=momentum, seed=seed, **others)


def summary(out):
    made, details = summarise(judge(Results(out).finished_runs()))
    return {row["statement"]: row for row in made.values}, details.values


def about(rows, start):
    (row,) = [row for statement, row in rows.items() if statement.startswith(start)]
    return row["verdict"], row["holds"], row["comparisons"]


def test_without_runs_no_claim_is_tested(tmp_path):
    rows, details = summary(tmp_path)
    assert {row["verdict"] for row in rows.values()} == {"nothing to compare yet"}
    assert details == []
    names = [row["claim"] for row in rows.values()]
    assert {f"Lesson {n}" for n in range(1, 7)} | {"R1", "R2", "R3"} <= set(names)


def test_a_claim_that_does_not_hold_is_reported_with_its_numbers(tmp_path):
    finish(tmp_path, cell("stc", SKEWED), 0.7, 0.6)
    finish(tmp_path, cell("fedavg", SKEWED), 0.8)
    finish(tmp_path, cell("signsgd", SKEWED), 0.5)
    rows, details = summary(tmp_path)
    assert about(rows, "non-iid data: STC above FedAvg") == ("did not hold here", 0, 1)
    assert about(rows, "non-iid data: STC above signSGD") == ("held", 1, 1)
    assert about(rows, "small batches: STC above FedAvg")[0] == "nothing to compare yet"
    lost = next(row for row in details if row["what"] == "STC above FedAvg")
    assert (lost["ours"], lost["other"]) == ("70.0 % (m=0, 1 seed)", "80.0 % (m=0, 1 seed)")
    assert lost["environment"] == "10/100 clients, 2 classes, batch 20"
    assert not lost["holds"]
    assert round(lost["margin"], 9) == -0.1


def test_each_method_counts_with_its_better_momentum(tmp_path):
    for seed, accuracy in enumerate((0.84, 0.86)):
        finish(tmp_path, cell("stc", SKEWED, seed=seed), accuracy)
        finish(tmp_path, cell("fedavg", SKEWED, 0.9, seed=seed), 0.8)
    finish(tmp_path, cell("stc", SKEWED, 0.9), 0.2)
    finish(tmp_path, cell("fedavg", SKEWED), 0.3)
    rows, details = summary(tmp_path)
    first = details[0]
    assert first["ours"] == "85.0 ± 1.4 % (m=0, 2 seeds)"
    assert first["other"] == "80.0 ± 0.0 % (m=0.9, 2 seeds)"
    # Here STC is better without momentum, and FedAvg with it.
    assert about(rows, "small batches, or non-iid data at low participation") == (
        "held in part", 1, 2,
    )  # fmt: skip


def test_only_seeds_that_both_methods_have_are_compared(tmp_path):
    for seed, accuracy in ((0, 0.6), (1, 0.9), (2, 0.9)):
        finish(tmp_path, cell("stc", SKEWED, seed=seed), accuracy)
    finish(tmp_path, cell("fedavg", SKEWED, seed=0), 0.7)
    finish(tmp_path, cell("signsgd", SKEWED, seed=7), 0.7)
    rows, details = summary(tmp_path)
    assert about(rows, "non-iid data: STC above FedAvg") == ("did not hold here", 0, 1)
    assert about(rows, "non-iid data: STC above signSGD")[0] == "nothing to compare yet"
    assert details[0]["ours"] == "60.0 % (m=0, 1 seed)"
    assert details[0]["spread"] is None


def test_a_seed_that_is_not_compared_does_not_choose_the_momentum(tmp_path):
    for momentum, seed, accuracy in ((0.0, 0, 0.9), (0.9, 1, 0.95)):
        finish(tmp_path, cell("stc", SKEWED, momentum, seed=seed), accuracy)
    finish(tmp_path, cell("fedavg", SKEWED), 0.85)
    rows, details = summary(tmp_path)
    assert about(rows, "non-iid data: STC above FedAvg") == ("held", 1, 1)
    assert details[0]["ours"] == "90.0 % (m=0, 1 seed)"


def test_a_margin_within_the_spread_over_seeds_is_close(tmp_path):
    for seed, (ours, clear, unclear) in enumerate(((0.80, 0.7, 0.85), (0.82, 0.7, 0.75))):
        finish(tmp_path, cell("stc", SKEWED, seed=seed), ours)
        finish(tmp_path, cell("fedavg", SKEWED, seed=seed), clear)
        finish(tmp_path, cell("signsgd", SKEWED, seed=seed), unclear)
    made, details = summarise(judge(Results(tmp_path).finished_runs()))
    assert {row["statement"]: row["close"] for row in made.values if row["comparisons"]} == {
        "non-iid data: STC above FedAvg": 0,
        "every environment: STC above FedAvg": 0,
        "non-iid data: STC above signSGD": 1,
        "STC compresses up and down": 0,
    }
    assert [row["verdict"] for row in details.shown][:3] == ["holds", "holds", "holds, close"]
    assert round(details.values[2]["margin"], 9) == 0.01
    assert round(details.values[2]["spread"], 6) == 0.084853


def test_a_target_counts_as_reached_if_every_seed_reaches_it(tmp_path):
    for seed in (0, 1):
        finish(tmp_path, cell("stc", seed=seed), 0.8, 0.92, up=1e3)
        finish(tmp_path, cell("fedavg", seed=seed), 0.8, 0.92 - seed / 10, up=1)
    rows, details = summary(tmp_path)
    assert about(rows, "iid data: STC sends the least") == ("held", 2, 2)
    assert {row["other"] for row in details if row["claim"] == "Lesson 4"} == {"n.a."}


def test_momentum_of_signsgd_is_compared_in_every_environment(tmp_path):
    finish(tmp_path, cell("signsgd"), 0.5)
    finish(tmp_path, cell("signsgd", momentum=0.9), 0.6)
    rows, _ = summary(tmp_path)
    assert about(rows, "momentum is always better for signSGD") == ("held", 1, 1)


def test_runs_at_another_learning_rate_are_ignored(tmp_path):
    finish(tmp_path, cell("stc", SKEWED), 0.9)
    finish(tmp_path, cell("fedavg", SKEWED), 0.5)
    for rate in (0.01, 0.1, 0.4):
        finish(tmp_path, cell("stc", SKEWED, learning_rate=rate), 0.1)
        finish(tmp_path, cell("fedavg", SKEWED, learning_rate=rate), 0.5)
    rows, _ = summary(tmp_path)
    assert about(rows, "non-iid data: STC above FedAvg") == ("held", 1, 1)


def test_a_margin_within_the_standard_error_of_the_test_examples_is_close(tmp_path):
    finish(tmp_path, cell("stc", SKEWED), 0.904)
    finish(tmp_path, cell("fedavg", SKEWED), 0.9)
    finish(tmp_path, cell("signsgd", SKEWED), 0.899)
    _, details = summarise(judge(Results(tmp_path).finished_runs()))
    seen = {row["what"]: row["verdict"] for row in details.shown}
    assert seen["STC above FedAvg"] == "holds, close"  # by 0.4 points; the standard error is 0.42
    assert seen["STC above signSGD"] == "holds"


def test_the_standard_error_of_a_degradation_includes_four_accuracies(tmp_path):
    for method, accuracies in (("stc", (0.9, 0.9)), ("fedavg", (0.9, 0.8945))):
        for place, accuracy in zip((Environment(), SKEWED), accuracies, strict=True):
            finish(tmp_path, cell(method, place), accuracy)
    _, details = summarise(judge(Results(tmp_path).finished_runs()))
    seen = {(row["claim"], row["environment"]): row["verdict"] for row in details.shown}
    skewed = "10/100 clients, 2 classes, batch 20"
    assert seen["Lesson 1", skewed] == "holds"  # by 0.55 points
    assert seen["R2", skewed] == "holds, close"  # by 0.55 points; the standard error is 0.6


def test_full_runs_replace_shorter_ones(tmp_path):
    for iterations, accuracy in ((500, 0.1), (5000, 0.9)):
        finish(tmp_path, cell("stc", SKEWED, iterations=iterations), accuracy)
        finish(tmp_path, cell("fedavg", SKEWED, iterations=iterations), 0.5)
    rows, details = summary(tmp_path)
    assert about(rows, "non-iid data: STC above FedAvg") == ("held", 1, 1)
    assert {row["iterations"] for row in details} == {5000}


def test_full_runs_replace_longer_ones(tmp_path):
    for iterations, accuracy in ((5000, 0.9), (8000, 0.1)):
        finish(tmp_path, cell("stc", SKEWED, iterations=iterations), accuracy)
        finish(tmp_path, cell("fedavg", SKEWED, iterations=iterations), 0.5)
    assert about(summary(tmp_path)[0], "non-iid data: STC above FedAvg") == ("held", 1, 1)


def test_short_runs_are_counted_separately(tmp_path):
    elsewhere = Environment(classes_per_client=1)
    finish(tmp_path, cell("stc", SKEWED), 0.4)
    finish(tmp_path, cell("fedavg", SKEWED), 0.5)
    finish(tmp_path, cell("stc", elsewhere, iterations=500), 0.6)
    finish(tmp_path, cell("fedavg", elsewhere, iterations=500), 0.5)
    finish(tmp_path, cell("signsgd", elsewhere, iterations=500), 0.5)
    made, _ = summarise(judge(Results(tmp_path).finished_runs()))
    rows = {row["statement"]: row for row in made.shown}
    lesson = rows["non-iid data: STC above FedAvg"]
    signs = rows["non-iid data: STC above signSGD"]
    assert (lesson["verdict"], lesson["holds in"]) == ("did not hold here", "0 of 1")
    assert lesson["in shorter runs"] == "1 of 1"
    assert (signs["verdict"], signs["holds in"]) == ("in shorter runs only", "")
    mine = [cell(method, elsewhere, iterations=500) for method in ("stc", "signsgd")]
    lines = verdicts(Results(tmp_path), mine)
    start = "Section VI (non-iid data: STC above signSGD)"
    assert f"{start}: in 1 of 1 comparisons of shorter runs." in lines


def test_a_run_that_exists_twice_counts_once_with_more_evaluations(tmp_path):
    finish(tmp_path, cell("stc", SKEWED, evaluate_every=100), 0.9, 0.8)
    finish(tmp_path, cell("stc", SKEWED, evaluate_every=500), 0.8)
    finish(tmp_path, cell("fedavg", SKEWED), 0.7)
    _, details = summary(tmp_path)
    assert details[0]["ours"] == "90.0 % (m=0, 1 seed)"
    assert details[-1]["ours"].endswith("(1 run)")


def test_degradation_by_unbalanced_data_and_partial_participation(tmp_path):
    few, many = Environment(clients=10, participation=1.0), Environment()
    uneven = Environment(gamma=0.9)
    for method, accuracies in (
        ("stc", (0.9, 0.85, 0.8)),
        ("fedavg", (0.9, 0.87, 0.86)),
        ("signsgd", (0.9, 0.89, 0.88)),
    ):
        for place, accuracy in zip((few, many, uneven), accuracies, strict=True):
            finish(tmp_path, cell(method, place), accuracy)
    rows, details = summary(tmp_path)
    assert about(rows, "iid data: signSGD loses less to partial") == ("held", 2, 2)
    assert about(rows, "unbalanced data has no significant effect") == ("held in part", 2, 3)
    lost = next(row for row in details if row["what"].endswith("hardly matters to STC"))
    assert (lost["ours"], lost["other"]) == ("loses 5.0 points (1 seed)", "2 points")


def test_degradation_is_averaged_over_seeds(tmp_path):
    for seed, change in enumerate((0.03, -0.03)):
        finish(tmp_path, cell("stc", seed=seed), 0.8)
        finish(tmp_path, cell("stc", Environment(gamma=0.9), seed=seed), 0.8 + change)
    _, details = summarise(judge(Results(tmp_path).finished_runs()))
    (found,) = [row for row in details.shown if row["what"].endswith("hardly matters to STC")]
    assert (found["first"], found["verdict"]) == (
        "loses 0.0 ± 4.2 points (2 seeds)",
        "holds, close",
    )


def test_the_lowest_costs_to_a_target_are_compared_in_bytes_and_rounds(tmp_path):
    finish(tmp_path, cell("stc"), 0.8, 0.92, up=1e3, down=1e6)
    finish(tmp_path, cell("fedavg:local_steps=100"), 0.8, 0.92, up=1e6, down=1e6)
    finish(tmp_path, cell("fedavg"), 0.8, 0.81, up=1, down=1)  # never reaches the target
    rows, details = summary(tmp_path)
    assert about(rows, "iid data: STC sends the least") == ("held in part", 1, 2)
    assert about(rows, "iid data: FedAvg takes the fewest rounds") == ("held", 1, 1)
    up, down = (row for row in details if row["claim"] == "Lesson 4")
    assert (up["what"], up["holds"]) == ("MB downloaded until 91 %", False)
    assert (down["what"], down["holds"]) == ("MB uploaded until 91 %", True)
    assert down["ours"] == "5.00 (STC p=1/400, m=0, 1 seed)"
    assert down["other"] == "50.0 (FedAvg n=100, m=0, 1 seed)"


def test_a_target_that_one_side_misses_decides_and_one_that_both_miss_does_not(tmp_path):
    finish(tmp_path, cell("stc"), 0.5)
    finish(tmp_path, cell("fedavg"), 0.5)
    assert (
        about(summary(tmp_path)[0], "iid data: STC sends the least")[0] == "nothing to compare yet"
    )
    finish(tmp_path, cell("sgd"), 0.95)
    rows, details = summary(tmp_path)
    assert about(rows, "iid data: STC sends the least") == ("did not hold here", 0, 2)
    assert any(row["ours"] == "n.a." and row["margin"] is None for row in details)


def test_requirements_compare_bytes_and_degradation(tmp_path):
    few = Environment(clients=10, participation=1.0)
    for method, falls in (("stc", (0.9, 0.85, 0.8)), ("fedavg", (0.9, 0.7, 0.88))):
        for place, accuracy in zip((Environment(), SKEWED, few), falls, strict=True):
            finish(tmp_path, cell(method, place), accuracy, up=1e3, down=1e4)
    rows, details = summary(tmp_path)
    assert about(rows, "STC compresses up and down") == ("held", 3, 3)
    assert about(rows, "non-iid data, small batches, unbalanced data") == ("held", 1, 1)
    assert about(rows, "partial participation") == ("held", 1, 1)
    losses = next(row for row in details if row["claim"] == "R3")
    assert losses["ours"] == "gains 10.0 points (1 seed)"
    assert losses["other"] == "gains 2.0 points (1 seed)"


def test_the_command_prints_and_writes_every_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    odd = Environment(clients=200, participation=5 / 200, gamma=0.9, batch_size=10, public=0.1)
    for place in (SKEWED, odd, Environment(split="dirichlet")):
        finish(runs, cell("stc", place), 0.7)
        finish(runs, cell("fedavg", place), 0.8)
    finish(runs, cell("stc", Environment(classes_per_client=1), iterations=500), 0.7)
    (runs / "torn").mkdir()
    (runs / "torn" / "config.json").write_text("{")
    finish(runs, cell("sgd"), 0.9)
    (runs / cell("sgd").digest / "config.json").write_text("{}")
    result = CliRunner().invoke(app, ["reproduce", "--check"])
    assert result.exit_code == 0, result.output
    assert "does not hold" in result.stdout
    assert "5/200 clients, 10 classes, batch 10, γ=0.9, 10 % public" in result.stdout
    assert "did not hold here" in result.stdout
    assert "500 of 5,000" in result.stdout
    page = (tmp_path / "results" / "claims.md").read_text()
    assert "fedtern reproduce --check" in page
    assert "## Each comparison" in page
    rows = read_csv(tmp_path / "results" / "claims.csv")
    assert {row["holds"] for row in rows if row["claim"] == "Lesson 1"} == {"False"}
    again = CliRunner().invoke(app, ["reproduce", "--check", "--json"])
    assert len(json.loads(again.stdout)["comparisons"]) == len(rows)


def test_an_unknown_task_is_an_error(tmp_path):
    line = ["reproduce", "--check", "--task", "logistic-minst", "--out", str(tmp_path)]
    assert "Unknown task 'logistic-minst'" in CliRunner().invoke(app, line).stderr


def test_a_check_without_runs_is_an_error_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finish(tmp_path / "runs", cell("stc"), 0.9)
    for arguments, sentence in (
        (["--out", "nowhere"], "no finished runs under nowhere"),
        (["--task", "cnn-kws"], "no finished runs of cnn-kws under runs"),
        (["fig6"], "remove fig6, or select a task with --task"),
    ):
        result = CliRunner().invoke(app, ["reproduce", "--check", *arguments])
        assert result.exit_code == 1
        assert sentence in result.stderr
    assert not (tmp_path / "results").exists()
    assert CliRunner().invoke(app, ["reproduce", "--check", "--task", TASK]).exit_code == 0
    assert f"--check --task {TASK}\n" in (tmp_path / "results" / "claims.md").read_text()


def test_checking_one_task_keeps_the_results_of_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for task, accuracy in ((TASK, 0.7), ("cnn-kws", 0.9)):
        finish(tmp_path / task, cell("stc", SKEWED, task=task), 0.8)
        finish(tmp_path / task, cell("fedavg", SKEWED, task=task), accuracy)
        finish(tmp_path / "both", cell("stc", SKEWED, task=task), 0.8)
        finish(tmp_path / "both", cell("fedavg", SKEWED, task=task), accuracy)

    def check_task(task, out, results="results"):
        arguments = ["--out", out, "--results", results, *(["--task", task] if task else [])]
        return CliRunner().invoke(app, ["reproduce", "--check", *arguments])

    for task in (TASK, "cnn-kws", TASK):  # the second check of a task replaces the first
        assert check_task(task, task).exit_code == 0
    assert check_task(None, "both", "at-once").exit_code == 0
    one_by_one, at_once = (tmp_path / name for name in ("results", "at-once"))
    assert (one_by_one / "claims.csv").read_bytes() == (at_once / "claims.csv").read_bytes()
    page, whole = ((path / "claims.md").read_text() for path in (one_by_one, at_once))
    lines = [f"fedtern reproduce --check --task {task}" for task in ("cnn-kws", TASK)]
    assert page == whole.replace("fedtern reproduce --check", "\n".join(lines), 1)
    assert "| Lesson 1 | non-iid data: STC above FedAvg | held in part | 1 of 2 |" in page


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("close", "near", "close"),
        ("STC above FedAvg", "STC wins", "STC wins"),
        ("True", "so", "so"),
    ],
)
def test_a_claims_file_of_another_version_is_an_error_and_is_kept(tmp_path, old, new, reason):
    runs = tmp_path / "runs"
    results = tmp_path / "results"
    for method in ("stc", "fedavg"):
        finish(runs, cell(method, SKEWED), 0.8)
        finish(runs, cell(method, SKEWED, task="cnn-kws"), 0.9)
    command = ["reproduce", "--check", "--out", str(runs), "--results", str(results)]
    assert CliRunner().invoke(app, command).exit_code == 0
    listed = results / "claims.csv"
    listed.write_text(listed.read_text().replace(old, new))
    found = listed.read_text()
    result = CliRunner().invoke(app, [*command, "--task", TASK])
    assert result.exit_code == 1
    assert reason in result.stderr
    assert "without --task" in result.stderr.replace("\n", " ")
    assert listed.read_text() == found
    assert CliRunner().invoke(app, command).exit_code == 0  # it does not read the file


def test_a_run_of_another_version_is_reported(tmp_path):
    finish(tmp_path, cell("stc"), 0.9)
    finish(tmp_path, cell("sgd"), 0.9)
    metrics = tmp_path / cell("sgd").digest / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"round"', '"round_of_later"'))
    errors = []
    finished = Results(tmp_path).finished_runs(errors.append)
    assert [found.method["name"] for found, _ in finished] == ["stc"]
    assert str(metrics) in str(*errors)
    with pytest.raises(
        StoreError, match=r"metrics.jsonl: line 1 is damaged, or was written by another version"
    ):
        Results(tmp_path).evaluations(cell("sgd"))


def test_an_artefact_is_judged_by_its_own_cells(tmp_path):
    skewed = Environment(classes_per_client=1)
    mine = [cell("stc", skewed), cell("fedavg:local_steps=400", skewed)]
    finish(tmp_path, mine[0], 0.8)
    finish(tmp_path, mine[1], 0.5)
    other = Environment(classes_per_client=2)
    finish(tmp_path, cell("stc", other), 0.3)
    finish(tmp_path, cell("fedavg:local_steps=400", other), 0.5)
    lines = verdicts(Results(tmp_path), mine)
    assert "Lesson 1 (non-iid data: STC above FedAvg): held, in 1 of 1 comparisons." in lines
    assert not any("Lesson 2" in line for line in lines)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "is missing or empty"),
        (lambda path: path.write_text(""), "is missing or empty"),
        (lambda path: path.write_text(path.read_text()[:-10]), "ends early"),
    ],
)
def test_a_finished_run_with_incomplete_metrics_is_reported(tmp_path, spoil, words):
    finish(tmp_path, cell("sgd"), 0.8, 0.9)
    spoil(tmp_path / cell("sgd").digest / "metrics.jsonl")
    with pytest.raises(StoreError, match=f"{words}, but the run is finished; move"):
        Results(tmp_path).evaluations(cell("sgd"))
    out = CliRunner().invoke(app, ["reproduce", "--check", "--out", str(tmp_path)])
    assert "fedtern: skipped: " in out.stderr
    assert "no finished runs" in out.stderr


def test_runs_of_other_engines_are_ignored(tmp_path):
    finish(tmp_path, cell("stc"), 0.9)
    config = (tmp_path / cell("stc").digest / "config.json").read_text()
    served = tmp_path / f"{cell('stc').digest}-mqtt"
    (tmp_path / "other").mkdir()
    finish(tmp_path / "other", cell("stc"), 0.2, 0.3)
    (tmp_path / "other" / cell("stc").digest).rename(served)
    (served / "config.json").write_text(json.dumps({**json.loads(config), "engine": "mqtt"}))
    ((_, rounds),) = Results(tmp_path).finished_runs()
    assert [found.accuracy for found in rounds] == [0.9]
