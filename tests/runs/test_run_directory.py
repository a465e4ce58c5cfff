from __future__ import annotations

import json

import numpy as np
import pytest

from fedtern import StoreError
from fedtern.runs import Evaluation, Experiment, RunDirectory, open_run, reopen_run
from fedtern.store.files import Lock
from runs.quick import QUICK


def evaluation(iteration: int) -> Evaluation:
    return Evaluation(iteration, iteration, 0.5, 0.9, 10, 20, 1.0, 2.0, 0.5, 1.0, 100, {"train": 1})


def finished_run(run: RunDirectory, *iterations: int) -> RunDirectory:
    """Write a run with an evaluation at each of these iterations."""
    with run.locked():
        run.write_experiment()
        for iteration in iterations:
            run.record(evaluation(iteration))
        run.finish({"weight": np.zeros(3, np.float32)})
    return run


def test_evaluations_are_read_as_they_were_recorded(tmp_path):
    run = finished_run(open_run(QUICK, tmp_path), 10, 20, 30)
    assert open_run(QUICK, tmp_path).evaluations() == [evaluation(i) for i in (10, 20, 30)]
    assert reopen_run(run.path).final_evaluation() == evaluation(30)


def test_a_run_directory_tells_its_experiment_and_engine(tmp_path):
    run = finished_run(open_run(QUICK, tmp_path, engine="mqtt"), 30)
    assert run.path == tmp_path / f"{QUICK.digest}-mqtt"
    again = reopen_run(run.path)
    assert (again.experiment, again.engine, again.is_finished()) == (QUICK, "mqtt", True)


def test_a_directory_of_another_experiment_is_refused(tmp_path):
    open_run(QUICK, tmp_path, path=tmp_path / "here").create()
    other = Experiment.of("logistic-digits", {"name": "sgd"})
    with pytest.raises(StoreError, match=f"holds experiment {QUICK.digest}, not {other.digest}"):
        open_run(other, tmp_path, path=tmp_path / "here")


def test_a_directory_of_other_files_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="holds files that are not a run"):
        open_run(QUICK, tmp_path, path=tmp_path / "mine")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot create"):
        open_run(QUICK, tmp_path / "file").create()
    with pytest.raises(StoreError, match=r"cannot create .*: a file of this name exists"):
        open_run(QUICK, tmp_path, path=tmp_path / "file")


def test_only_the_process_that_holds_the_lock_writes_the_experiment(tmp_path):
    run = open_run(QUICK, tmp_path)
    run.path.mkdir()
    lock = Lock(run.path)
    with pytest.raises(StoreError, match="is locked by another process"):
        run.create()
    assert [path.name for path in run.path.iterdir()] == ["lock"]
    lock.close()
    run.create()
    assert run.recorded_digest() == QUICK.digest


def test_opening_a_finished_run_removes_a_checkpoint_that_a_kill_left(tmp_path):
    run = finished_run(open_run(QUICK, tmp_path), 30)
    run.checkpoint_path.write_bytes(b"residuals")
    open_run(QUICK, tmp_path)
    assert not run.checkpoint_path.exists()


def test_a_checkpoint_without_a_model_is_kept(tmp_path):
    run = finished_run(open_run(QUICK, tmp_path), 30)
    run.model_path.unlink()
    run.checkpoint_path.write_bytes(b"all that is left")
    open_run(QUICK, tmp_path)
    assert run.checkpoint_path.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"digest": ', "\x00"])
@pytest.mark.parametrize("look", ["open", "reopen"])
def test_a_damaged_configuration_is_an_error_that_names_the_file_and_the_remedy(
    tmp_path, text, look
):
    run = open_run(QUICK, tmp_path)
    run.create()
    (run.path / "config.json").write_text(text)
    with pytest.raises(StoreError, match=r"config\.json is damaged \(.*\); move .* away"):
        open_run(QUICK, tmp_path) if look == "open" else reopen_run(run.path)


def test_a_finished_run_without_metrics_is_an_error_that_names_the_remedy(tmp_path):
    run = finished_run(open_run(QUICK, tmp_path), 10, 20, 30)
    for damage in (lambda: run.metrics.path.write_text(""), run.metrics.path.unlink):
        damage()
        with pytest.raises(StoreError, match=r"metrics\.jsonl is missing or empty, but .*move"):
            run.final_evaluation()


def test_a_finished_run_with_metrics_that_end_early_is_an_error(tmp_path):
    run = finished_run(open_run(QUICK, tmp_path), 10, 20)
    with pytest.raises(StoreError, match=r"metrics\.jsonl ends early, but the run is finished"):
        run.complete_evaluations()


def test_resuming_removes_evaluations_that_will_be_repeated(tmp_path):
    run = open_run(QUICK, tmp_path)
    run.create()
    for iteration in (10, 20, 30):
        run.record(evaluation(iteration))
    with run.metrics.path.open("a") as file:
        file.write('{"iteration": 4')
    kept = run.resume_metrics(lambda found: found.iteration <= 20)
    run.record(evaluation(25))
    assert [found.iteration for found in kept] == [10, 20]
    assert [found.iteration for found in run.evaluations()] == [10, 20, 25]


@pytest.mark.parametrize(
    ("config", "message"),
    [(None, "it has no config.json"), ({"method": {"name": "stc"}}, "environment")],
)
def test_a_directory_without_an_experiment_cannot_be_reopened(tmp_path, config, message):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(StoreError, match=f"is not a run directory of an experiment: .*{message}"):
        reopen_run(tmp_path)
