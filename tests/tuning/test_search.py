"""Searches on a small task."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from shutil import copytree

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import fedtern
from fedtern.data.environment import Environment
from fedtern.runs import Evaluation, load_run, open_run
from fedtern.training import register_task
from fedtern.transports.local import train_run
from fedtern.tuning import Grid, Plan, TuningStopped
from fedtern.tuning import search as search_in_processes
from fedtern.tuning.elimination import drop
from training.any_tasks import TASKS

FEW = Environment(clients=10, participation=0.5)
GRID = {"local_steps": [1, 2], "p_up": [1 / 5, 1 / 50], "p_down": [1 / 10]}
search = partial(search_in_processes, workers=0)
SETTINGS = {"iterations": 90, "budget": 45, "rungs": 2, "evaluate_every": 3, "environment": FEW}


class Watched:
    """Counts the rounds of each run of a search."""

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}

    def __call__(self, name: str, iterations: int) -> _Rounds:
        return _Rounds(self, name)


class _Rounds:
    def __init__(self, watched: Watched, name: str) -> None:
        self._watched = watched
        self._name = name

    def __enter__(self) -> _Rounds:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def round_finished(self, federation: object) -> None:
        rounds = self._watched.rounds
        rounds[self._name] = rounds.get(self._name, 0) + 1

    def evaluated(self, evaluation: Evaluation) -> None:
        pass


def plan(**given) -> Plan:
    return Plan.of("logistic-digits", grid=Grid(**GRID), **{**SETTINGS, "seeds": 1, **given})


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A search that several tests look at, its directory and its rounds."""
    out = tmp_path_factory.mktemp("tuning")
    watched = Watched()
    return search(plan(seeds=2), out=out, progress=watched), out, watched.rounds


@pytest.fixture
def copied(shared, tmp_path):
    """A copy of the directory of that search."""
    return copytree(shared[1], tmp_path / "tuning")


def test_the_python_function_finds_the_same_as_the_search_of_a_plan(shared, copied):
    found = fedtern.tune("logistic-digits", "stc", **GRID, **SETTINGS, out=copied, workers=0)
    assert found.to_json() == shared[0].to_json()


def test_survivors_continue_and_are_not_trained_again(shared):
    found, _, rounds = shared
    trainings = [count for name, count in rounds.items() if name.startswith("rung")]
    of_candidates = [
        each.evaluation.iteration // each.experiment.method["local_steps"]
        for each in found.candidates
    ]
    # The progress is not told of the round after which a run pauses.
    assert sum(trainings) + len(trainings) == sum(of_candidates)
    assert len(trainings) == len(of_candidates) + found.plan.rungs[0].keep


def test_a_continued_run_has_the_bytes_of_an_uninterrupted_one(shared, tmp_path):
    found, _, _ = shared
    survivor = next(each for each in found.candidates if each.rung is None)
    last = survivor.evaluation
    run = open_run(survivor.experiment, tmp_path)
    (same,) = [each for each in train_run(run, workers=0) if each.iteration == last.iteration]
    assert replace(same, seconds={}) == replace(last, seconds={})


def test_each_rung_drops_what_the_rule_says(shared):
    found, _, _ = shared
    (first, _) = found.plan.rungs
    curves = {
        each.experiment.digest: replace(
            each.curve, points=each.curve.points[: _evaluations(each, first)]
        )
        for each in found.candidates
    }
    best = max(curve.best for curve in curves.values())
    assert best > 0.3
    expected = drop(curves, first.keep, math.inf, 0.02)
    assert {each.experiment.digest for each in found.candidates if each.rung == 1} == set(expected)


def _evaluations(candidate, rung) -> int:
    """Number of evaluations of a candidate until the end of a rung."""
    steps = candidate.experiment.method["local_steps"]
    at = [i for i in range(steps, 100, steps) if i // 3 > (i - steps) // 3]
    return next(n for n, iteration in enumerate(at, 1) if iteration >= rung.iterations)


def test_the_chosen_target_is_below_the_best_accuracy_by_the_stated_distance(shared):
    found, _, _ = shared
    best = max(each.curve.best for each in found.candidates)
    assert found.target == pytest.approx(best - 0.02)
    assert found.findings()[0].endswith("2 points below the best value of any candidate")


def test_the_recommended_candidate_needs_the_fewest_bytes(shared):
    found, _, _ = shared
    costs = [each.cost for each in found.candidates if each.cost is not None]
    assert found.reached
    assert found.best.cost == min(costs)
    assert costs == sorted(costs)


def test_the_cheapest_candidates_have_a_cost_for_each_seed(shared):
    found, _, rounds = shared
    repeated = [each for each in found.candidates if each.repetitions]
    assert 1 <= len(repeated) <= 2
    assert found.best in repeated
    assert all(len(each.costs) == 2 and each.costs[0] != each.costs[1] for each in repeated)
    assert sum(name.startswith("seed 1: ") for name in rounds) == len(repeated)


def test_a_finished_search_is_read_and_not_repeated(shared):
    found, out, _ = shared
    watched = Watched()
    assert search(plan(seeds=2), out=out, progress=watched).to_json() == found.to_json()
    assert watched.rounds == {}


def test_a_stopped_search_continues_to_the_same_result(shared, tmp_path):
    expected, _, rounds = shared
    watched = Watched()
    limit = sum(rounds.values()) // 2

    def stopped() -> bool:
        return sum(watched.rounds.values()) >= limit

    with pytest.raises(TuningStopped, match="the same command continues"):
        search(plan(seeds=2), out=tmp_path, progress=watched, stopped=stopped)
    continued = search(plan(seeds=2), out=tmp_path, progress=watched)
    assert continued.to_json() == expected.to_json()
    assert sum(watched.rounds.values()) == sum(rounds.values())


def test_only_runs_that_can_continue_keep_a_checkpoint(shared):
    found, out, _ = shared
    kept = {path.parent.name for path in out.glob("*/checkpoint.safetensors")}
    assert kept == {each.experiment.digest for each in found.candidates if each.rung is None}


def test_runs_stop_at_a_given_target(tmp_path):
    found = search(plan(target=0.4), out=tmp_path)
    for each in found.candidates:
        before = [point.value for point in each.curve.points[:-1]]
        assert all(value < 0.4 for value in before)
    assert found.reached
    assert found.best.curve.best >= 0.4


def test_an_unreached_target_is_said_plainly(copied):
    found = search(plan(target=0.999), out=copied)
    assert not found.reached
    assert found.to_json()["reached"] is False
    assert found.best.curve.best == max(each.curve.best for each in found.candidates)
    assert "no candidate reached the target in 45 iterations" in found.findings()[1]


def test_a_winner_within_noise_names_the_others(shared):
    found, _, _ = shared
    close = replace(
        found.candidates[1],
        curve=replace(
            found.best.curve,
            points=tuple(p._replace(cost=p.cost * 1.0001) for p in found.best.curve.points),
        ),
        repetitions=found.best.repetitions,
    )
    tied = replace(found, candidates=(found.best, close, *found.candidates[2:]))
    assert tied.ties == [close]
    assert "within noise of the recommended candidate" in tied.findings()[1]


def test_a_winner_at_the_edge_of_the_grid_names_a_value_beyond(shared):
    found, _, _ = shared
    assert found.best.experiment.method["p_up"] == 1 / 5
    assert found.edges["p_up"] == 1.0
    assert any("p_up=1/5 is at the edge of the grid: try 1, too" in s for s in found.findings())


def test_a_candidate_that_may_still_win_with_a_larger_budget_is_named(shared):
    found, _, _ = shared
    late = replace(
        found.candidates[-1],
        rung=None,
        curve=replace(found.best.curve, points=found.best.curve.points[:1]),
    )
    with_late = replace(found, candidates=(*found.candidates[:-1], late))
    assert late in with_late.undecided
    assert any("with a larger budget" in sentence for sentence in with_late.findings())


def test_a_candidate_that_has_spent_more_than_the_cheapest_is_too_expensive(shared):
    found, _, _ = shared
    points = tuple(p._replace(cost=p.cost * 1e6, value=0.0) for p in found.best.curve.points)
    late = replace(found.candidates[-1], rung=None, curve=replace(found.best.curve, points=points))
    with_late = replace(found, candidates=(*found.candidates[:-1], late))
    assert with_late.is_too_expensive(late)
    assert late not in with_late.undecided
    assert not with_late.is_too_expensive(found.best)


def test_a_metric_where_lower_is_better_has_a_target_above_the_best(tmp_path):
    task = replace(TASKS["any-regression"], name="tuned-regression")
    register_task(task)
    settings = {**SETTINGS, "evaluate_every": 5, "rungs": 1, "budget": 30}
    two = Grid([1], [1 / 5, 1 / 20], [1 / 5])
    found = search(Plan.of(task.name, grid=two, **settings, within=10, seeds=1), out=tmp_path)
    best = min(each.evaluation.primary[1] for each in found.candidates)
    assert found.metric.best == "lower"
    assert found.target >= 1.09 * best
    assert found.reached
    assert "10 % above the best value" in found.findings()[0]


@pytest.mark.parametrize("target", [0.0, 90.0])
def test_an_accuracy_that_is_no_share_is_refused(target, tmp_path):
    with pytest.raises(ValueError, match=r"target must be an accuracy in \(0, 1\], got"):
        search(plan(target=target), out=tmp_path)


def test_runs_of_a_search_can_be_read_as_runs(shared):
    found, out, _ = shared
    run = load_run(out / found.best.experiment.digest)
    assert len(run.evaluations) == len(found.best.curve.points)
