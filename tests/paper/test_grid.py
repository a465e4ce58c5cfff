"""Grids of real runs in real processes: finished, failing, stopped and killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")


from fedtern import Environment
from fedtern.core.errors import LockedError
from fedtern.runs import Experiment, open_run
from fedtern.store.files import Lock
from fedtern.transports.local.launch import train_run
from fedtern_paper import Results, run_cells
from fedtern_paper.cli import progress
from fedtern_paper.workers import CellResult, Outcome, WorkerSettings, work

FEW = Environment(clients=4, participation=1.0)


def cell(method="sgd", environment=FEW, **changes):
    return Experiment.of("logistic-digits", method, environment, **{"iterations": 10, **changes})


class Recorder:
    """Records the events of a grid, and calls ``act`` when a cell progresses or is locked."""

    def __init__(self, act=lambda: None):
        self.begun = []
        self.results = []
        self.act = act

    def started(self, cell):
        self.begun.append(cell.digest)

    def progressed(self, cell, iteration):
        self.act()

    def locked(self, cell):
        self.act()

    def finished(self, cell):
        self.results.append((cell.digest, "finished"))

    def stopped(self, cell):
        self.results.append((cell.digest, "stopped"))

    def failed(self, cell, error):
        self.results.append((cell.digest, error))


def curve(rounds):
    return [replace(found, seconds={}) for found in rounds]


def test_a_failing_cell_is_reported_and_the_others_finish_once(tmp_path):
    good, twice = cell(), cell("stc:p_up=1/10,p_down=1/10")
    bad = cell(environment=Environment(clients=5000))
    (tmp_path / cell(seed=9).digest).mkdir()
    (tmp_path / cell(seed=9).digest / "notes.txt").write_text("not a run")
    cells = [bad, good, cell(seed=9), twice, twice]
    first = Recorder()
    second = Recorder()
    failed = run_cells(cells, tmp_path, workers=1, observer=first, command="fedtern reproduce x")
    assert set(failed) == {bad.digest, cell(seed=9).digest}
    assert "use fewer clients" in failed[bad.digest]
    assert "holds files that are not a run" in failed[cell(seed=9).digest]
    assert first.begun == [bad.digest, good.digest, cell(seed=9).digest, twice.digest]
    finished = {good.digest: "finished", twice.digest: "finished"}
    assert dict(first.results) == finished | failed
    found = Results(tmp_path)
    assert found.missing(cells) == [bad, cell(seed=9)]
    assert [r.iteration for r in found.evaluations(good)] == list(range(1, 11))
    assert found.run(good).command == ""
    assert run_cells([good, twice], tmp_path, observer=second) == {}
    assert second.begun == []


@pytest.mark.slow
def test_a_killed_worker_fails_only_its_cell_and_the_next_grid_resumes_it(tmp_path):
    # Long enough that the kill, after about 0.3 seconds, comes well before the end.
    long = cell("stc:p_up=1/10,p_down=1/10", iterations=800)
    short = cell()
    alone = list(train_run(open_run(long, tmp_path / "alone")))
    killed = []

    def kill():
        if not killed and open_run(long, tmp_path).checkpoint_path.exists():
            killed.append(True)
            (worker,) = multiprocessing.active_children()
            os.kill(worker.pid, signal.SIGKILL)

    failed = run_cells(
        [long, short], tmp_path, workers=1, checkpoint_seconds=0.0, observer=Recorder(kill)
    )
    assert list(failed) == [long.digest]
    assert "its process ended with signal SIGKILL" in failed[long.digest]
    assert Results(tmp_path).missing([long, short]) == [long]
    assert run_cells([long], tmp_path, workers=1) == {}
    assert curve(open_run(long, tmp_path).evaluations()) == curve(alone)


def test_a_grid_waits_for_a_cell_that_another_process_runs(tmp_path):
    elsewhere, here = cell(), cell(seed=1)
    (tmp_path / elsewhere.digest).mkdir()
    lock = Lock(tmp_path / elsewhere.digest)
    seen = Recorder(lambda: Results(tmp_path).missing([here]) or lock.close())
    assert run_cells([elsewhere, here], tmp_path, workers=1, observer=seen) == {}
    assert lock.closed
    assert seen.begun[:2] == [elsewhere.digest, here.digest]  # and not idle until it was free
    assert seen.results == [(here.digest, "finished"), (elsewhere.digest, "finished")]
    assert Results(tmp_path).missing([elsewhere, here]) == []


def test_a_grid_that_waits_for_another_process_can_be_stopped(tmp_path):
    stop = []
    (tmp_path / cell().digest).mkdir()
    lock = Lock(tmp_path / cell().digest)
    seen = Recorder(lambda: stop.append(True))
    assert run_cells([cell()], tmp_path, stopped=lambda: bool(stop), observer=seen) == {}
    lock.close()
    assert seen.begun == [cell().digest]  # not given to a worker again after the stop
    assert seen.results == []


def test_a_stop_that_arrives_before_a_worker_begins_its_cell_leaves_the_cell_unbegun(tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    ours.send(cell())
    ours.send(None)
    worker = context.Process(target=work, args=(theirs, WorkerSettings(tmp_path)))
    worker.start()
    theirs.close()
    assert ours.recv() == CellResult(Outcome.STOPPED)
    with pytest.raises(EOFError):
        ours.recv()
    worker.join()
    assert worker.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_grid_that_is_stopped_before_it_begins_starts_no_cell(tmp_path):
    seen = Recorder()
    assert run_cells([cell()], tmp_path, stopped=lambda: True, observer=seen) == {}
    assert (seen.begun, seen.results) == ([], [])
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_grid_saves_a_checkpoint_and_starts_no_other_cell(tmp_path):
    stop = []
    long, other = cell(iterations=10**6, evaluate_every=1), cell()
    seen = Recorder(lambda: stop.append(True))
    run_cells([long, other], tmp_path, workers=1, stopped=lambda: bool(stop), observer=seen)
    assert (seen.begun, seen.results) == ([long.digest], [(long.digest, "stopped")])
    assert open_run(long, tmp_path).checkpoint_path.exists()
    found = Results(tmp_path)
    assert found.missing([long, other]) == [long, other]
    assert (found.evaluations(long), found.last_iteration(other)) == ([], 0)
    assert found.last_iteration(long) > 0


def test_a_slow_grid_prints_its_progress_and_the_time_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_HEARTBEAT_SECONDS", -1.0)
    slow, failing = cell(iterations=100), cell(seed=1)
    with progress.GridProgress(3, [slow, failing], Results(tmp_path)) as watch:
        watch.started(slow)
        watch.progressed(slow, 0)
        watch.progressed(slow, 55)
        watch.failed(failing, "no luck")
    unknown, known, failed = capsys.readouterr().err.splitlines()
    assert unknown == "1/3 runs: sgd clients=4 participation=1.0, time left unknown"
    assert known == "1/3 runs: sgd clients=4 participation=1.0, about 0:00:00 left"
    assert failed == "sgd clients=4 participation=1.0 seed=1 failed: no luck"


def test_missing_data_fails_each_cell_and_starts_no_worker(tmp_path):
    absent = Experiment.of("logistic-mnist", "sgd", FEW)
    failed = run_cells([absent], tmp_path / "runs", data_dir=tmp_path / "nowhere")
    assert "put it there" in failed[absent.digest]
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        run_cells([absent], tmp_path, workers=0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_ctrl_c_saves_and_workers_end_with_a_killed_parent(tmp_path):
    command = (
        "reproduce table1 --task logistic-digits --method sgd --iterations 1000000 --workers 1"
    )
    line = [sys.executable, "-m", "fedtern", *command.split()]
    environment = {**os.environ, "FEDTERN_CHECKPOINT_SECONDS": "0"}

    def begin():
        before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/checkpoint.safetensors")}
        process = subprocess.Popen(
            line, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env=environment,
        )  # fmt: skip

        def moved():
            now = tmp_path.glob("runs/*/checkpoint.safetensors")
            return any(p.stat().st_mtime_ns != before.get(p) for p in now)

        while not moved():
            assert process.poll() is None
            time.sleep(0.05)
        return process

    first = begin()
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: the workers get it as well
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "press Ctrl-C again to stop at once" in errors
    assert "stopped; the same command resumes" in errors
    assert "Traceback" not in errors
    second = begin()
    second.kill()
    second.communicate(timeout=60)
    runs = list(tmp_path.glob("runs/*"))
    deadline = time.monotonic() + 60
    while runs:
        assert time.monotonic() < deadline, "a worker outlives its parent"
        try:
            Lock(runs[0]).close()
        except LockedError:
            time.sleep(0.05)
        else:
            runs.pop(0)
