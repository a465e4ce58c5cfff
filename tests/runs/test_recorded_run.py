from __future__ import annotations

import json

import pytest

from fedtern.core.errors import FedternError
from fedtern.report import load_run
from fedtern.report.formatting import method_label
from fedtern.report.groups import curve, group_runs
from fedtern.report.summary import summary
from fedtern.runs.recorded_run import EXPERIMENT_KEYS
from report.fake_runs import METHODS, config, evaluations, write_run

STC = METHODS[0][0]


def test_a_run_is_read_as_it_was_written(tmp_path):
    measured = evaluations(STC, 0)
    run = load_run(write_run(tmp_path / "run", config(STC), measured))
    assert list(run.evaluations) == measured
    assert run.config == config(STC)
    assert run.split is not None
    assert len(run.split.counts) == 100


@pytest.mark.parametrize("torn", ['{"iteration": 51', '{"iteration": 5100}\n{"itera', "\xff", "{}"])
def test_an_unfinished_last_line_is_dropped(tmp_path, torn):
    path = write_run(tmp_path / "run", config(STC), evaluations(STC, 0), torn)
    whole = torn.count("}")
    assert len(load_run(path).evaluations) == 50 + whole


def test_a_damaged_line_is_an_error_that_names_the_line(tmp_path):
    path = write_run(tmp_path / "run", config(STC), [], '{"iteration"\n{"iteration": 2}\n')
    with pytest.raises(FedternError, match=r"metrics\.jsonl: line 1 "):
        load_run(path)


def test_a_run_without_evaluations_can_be_read(tmp_path):
    path = write_run(tmp_path / "run", config(STC))
    (path / "metrics.jsonl").unlink()
    (path / "split.json").unlink()
    run = load_run(path)
    assert (run.evaluations, run.split, run.last) == ((), None, {})


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", "{}"),
        ("config.json", '{"method": "stc"}'),
        ("split.json", "{}"),
        ("split.json", '{"classes": ["0"], "counts": [[1, 2]]}'),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, file, text):
    path = write_run(tmp_path / "run", config(STC))
    (path / file).write_text(text)
    with pytest.raises(ValueError, match=file) as caught:
        load_run(path)
    assert isinstance(caught.value, FedternError)
    assert "\n" not in str(caught.value)


def test_a_directory_without_a_run_is_named(tmp_path):
    with pytest.raises(FedternError, match="nowhere is not a run directory"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(FedternError, match=r"it has no config\.json; try"):
        load_run(tmp_path)


@pytest.mark.parametrize(("method", "label"), [row[:2] for row in METHODS])
def test_famous_methods_have_readable_names(method, label):
    assert method_label(method) == label


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ({"name": "stc", "p_up": 0.01, "p_down": 0.0025}, "STC p=1/100 up, 1/400 down"),
        ({"name": "stc", "p_up": 0.01, "p_down": 0.01, "local_steps": 10}, "STC p=1/100, n=10"),
        ({"name": "topk", "p_up": 0.0025, "p_down": None}, "top-k p=1/400"),
        ({"name": "topk", "p_up": 0.0025, "p_down": 0.0025}, "top-k p=1/400 both ways"),
        ({"name": "new", "rank": 4, "warm": True}, "new(rank=4, warm=yes)"),
        ({"name": "new"}, "new"),
    ],
)
def test_other_methods_are_named_by_what_tells_them_apart(method, label):
    assert method_label(method) == label


def test_seeds_share_a_group_and_nothing_else_does(tmp_path):
    changes = [{"seed": 0}, {"seed": 1, "command": "x"}, {"learning_rate": 0.1}, {"task": "t"}]
    runs = [
        load_run(write_run(tmp_path / str(i), config(STC, **{"seed": 0} | change)))
        for i, change in enumerate(changes)
    ]
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert len({group.label for group in groups}) == 3
    assert "learning rate 0.1" in groups[1].label


def test_seeds_of_finished_runs_share_a_group(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from fedtern.data.environment import Environment
    from fedtern.runs import Experiment, open_run
    from fedtern.transports.local.launch import train_run

    few = Environment(clients=4, participation=0.5)
    paths = []
    for seed in (0, 1):
        what = Experiment.of("mlp-digits", "stc", few, iterations=2, seed=seed)
        run = open_run(what, tmp_path, command=f"fedtern run --seed {seed}")
        list(train_run(run, workers=0))
        assert run.is_finished()
        paths.append(run.path)
    (group,) = group_runs([load_run(path) for path in paths])
    assert (len(group.runs), group.label) == (2, "STC p=1/400")


def test_every_setting_of_an_experiment_except_the_seed_tells_groups_apart():
    assert EXPERIMENT_KEYS == (
        "task",
        "method",
        "environment",
        "iterations",
        "learning_rate",
        "momentum",
        "weight_decay",
        "privacy",
    )


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"split": "classes"}, "10 per round, with 2 classes per client, for"),
        ({}, "10 per round, with 2 classes per client, for"),
        ({"split": "iid"}, "10 per round, with i.i.d. data, for"),
        (
            {"split": "dirichlet", "concentration": 0.5},
            "with data split by a Dirichlet distribution with concentration 0.5, for",
        ),
        ({"split": "natural"}, "10 per round, with data split by its source, for"),
        (
            {"split": "classes", "public": 0.1},
            "with 2 classes per client and 10 % of the data shared by all clients, for",
        ),
    ],
)
def test_the_setting_says_what_the_split_is_by(tmp_path, environment, words):
    place = {"clients": 100, "participation": 0.1, "classes_per_client": 2, **environment}
    run = load_run(write_run(tmp_path / "r", config(STC, environment=place)))
    assert words in summary(group_runs([run]))


def test_those_left_to_the_table_are_counted_as_people_do(tmp_path):
    runs = [
        load_run(write_run(tmp_path / str(i), config(STC, learning_rate=0.1 + i))) for i in range(7)
    ]
    assert summary(group_runs(runs[:6])).endswith("The other one is in the table.")
    assert summary(group_runs(runs)).endswith("The other 2 are in the table.")


def test_what_has_cost_nothing_yet_has_no_place_on_a_logarithmic_axis(tmp_path):
    start = {"iteration": 0, "accuracy": 0.1, "up_bytes_mean": 0, "dense_bytes": 0}
    run = load_run(write_run(tmp_path / "r", config(STC), [start, *evaluations(STC, 0)]))
    assert curve([run], "iteration", "accuracy").iterations[0] == 0
    assert curve([run], "up_bytes_mean", "accuracy").iterations[0] == 100


def test_a_mean_never_mixes_how_many_seeds_it_is_of(tmp_path):
    runs = [
        load_run(write_run(tmp_path / str(seed), config(STC, seed), evaluations(STC, seed, upto)))
        for seed, upto in ((0, 2000), (1, 1000))
    ]
    found = curve(runs, "iteration", "accuracy")
    assert found.iterations[-1] == 1000
    accuracies = [json.loads(json.dumps(run.evaluations[9]))["accuracy"] for run in runs]
    assert found.mean[-1] == pytest.approx(sum(accuracies) / 2)
    assert (found.low[-1], found.high[-1]) == (min(accuracies), max(accuracies))


def test_apps_of_flower_with_models_of_different_sizes_are_not_seeds_of_one(tmp_path):
    runs = []
    for size in (650, 865_482):
        told = {"task": "app", "engine": "flower", "method": dict(STC), "parameters": size}
        runs.append(load_run(write_run(tmp_path / str(size), told, evaluations(STC, 0))))
    assert [len(group.runs) for group in group_runs(runs)] == [1, 1]
