"""Recommendations, estimates and records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedtern.advice import (
    OBJECTIVES,
    Point,
    Record,
    Situation,
    collect_records,
    dump_records,
    load_records,
    merge_records,
)
from fedtern.advice import advise as advise_with
from fedtern.cli.app import app
from fedtern.core.analytic import analytic_bits
from fedtern.core.layout import Layout
from fedtern.core.methods import METHODS, make_method
from fedtern.data.environment import Environment
from fedtern.report import join_words
from fedtern.runs import complete_method, parse_method
from fedtern.runs.recorded_run import load_run
from fedtern_paper.lessons import GUIDANCE, LESSONS

STC = {"name": "stc", "p_up": 1 / 400, "p_down": 1 / 400, "local_steps": 1, "scope": "model"}
FEDAVG = {"name": "fedavg", "local_steps": 100, "weighted": False}


def advise(situation, records):
    """Recommend a method by the paper's lessons."""
    return advise_with(situation, records, GUIDANCE)


def record(method, curve, momentum=0.0, parameters=7850, **environment):
    """Return a record with these accuracies after 100, 200, ... iterations."""
    rounds = [100 * (i + 1) / method["local_steps"] for i in range(len(curve))]
    each = 60 if method["name"] == "stc" else 4 * parameters
    points = tuple(
        Point(100 * (i + 1), accuracy, each * rounds[i], 5 * each * rounds[i])
        for i, accuracy in enumerate(curve)
    )
    return Record(
        task="logistic-mnist",
        parameters=parameters,
        method=method,
        momentum=momentum,
        learning_rate=0.04,
        weight_decay=0.0,
        environment=Environment(**environment),
        iterations=300,
        own_iterations=300,
        seeds=1,
        points=points,
    )


def of(method, advice):
    """Return the estimate of a method."""
    return next(e for e in advice.estimates if e.record.method == method)


def lesson(number, advice):
    """Return what the reasons say about a lesson."""
    return next(reason for reason in advice.reasons if reason.startswith(f"lesson {number} "))


def both(stc, fedavg, **environment):
    return [record(STC, stc, **environment), record(FEDAVG, fedavg, **environment)]


IID = both([0.5, 0.8, 0.9], [0.8, 0.89, 0.9])
SKEWED = both([0.3, 0.6, 0.88], [0.2, 0.3, 0.4], classes_per_client=1)


def test_the_best_method_of_the_nearest_records_is_recommended():
    slow_link = Situation(parameters=7850, up=1e3, down=1e3, latency=0, minimise="time")
    advice = advise(slow_link, IID + SKEWED)
    assert advice.method["name"] == "stc"
    assert [e.record.method["name"] for e in advice.estimates] == ["stc", "fedavg"]
    slow_rounds = Situation(parameters=7850, up=1e9, down=1e9, latency=60, minimise="time")
    assert advise(slow_rounds, IID + SKEWED).method["name"] == "fedavg"


def test_a_method_that_misses_the_target_is_not_recommended():
    situation = Situation(classes=1, parameters=7850, up=1e9, latency=60, minimise="time")
    advice = advise(situation, IID + SKEWED)
    assert advice.method["name"] == "stc"
    assert advice.estimates[-1].reached is None
    assert any(reason.startswith("lesson 1 agrees") for reason in advice.reasons)


def test_estimates_are_recorded_costs_scaled_to_the_model():
    situation = Situation(parameters=7850, up=8e3, down=8e4, latency=2, step=0.5, within=0.02)
    fedavg = of(FEDAVG, advise(situation, IID))
    assert fedavg.reached is not None
    assert fedavg.reached.iteration == 200  # 0.89 is within two points of 0.9
    assert fedavg.rounds == 2
    assert (fedavg.up_bytes_mean, fedavg.down_bytes_mean) == (2 * 31400, 10 * 31400)
    assert fedavg.seconds == pytest.approx(2 * 2 + 62800 / 1e3 + 314000 / 1e4 + 200 * 0.5)
    assert of(FEDAVG, advise(Situation(parameters=78_500), IID)).up_bytes_mean == 20 * 31400


def test_bytes_at_the_server_are_those_of_all_clients_of_each_round():
    fedavg = of(FEDAVG, advise(Situation(clients=200, participation=0.2, parameters=7850), IID))
    assert fedavg.up_bytes == 40 * fedavg.up_bytes_mean
    assert fedavg.down_bytes == 40 * fedavg.down_bytes_mean


def test_the_cost_is_that_of_the_clients_and_of_the_egress_of_the_server():
    prices = {"price_up": 7.0, "price_down": 3.0, "price_server": 0.5}
    fedavg = of(FEDAVG, advise(Situation(parameters=7850, minimise="cost", **prices), IID))
    assert fedavg.cost == pytest.approx((7 * fedavg.up_bytes + 3.5 * fedavg.down_bytes) / 1e9)


def test_each_objective_has_its_own_recommendation():
    down_heavy = [
        replace(r, points=tuple(p._replace(down=1e6) for p in r.points)) if r.method is STC else r
        for r in IID
    ]

    def best(**options):
        return advise(Situation(parameters=7850, **options), down_heavy).method["name"]

    assert best(minimise="bytes") == "fedavg"
    assert best(minimise="bytes-up") == "stc"
    assert best(minimise="cost", price_up=1) == "stc"
    assert best(minimise="cost", price_server=1) == "fedavg"
    assert best(minimise="time", latency=0, up=10, down=1e9) == "stc"
    assert best(minimise="time", latency=9) == "fedavg"


def test_local_iterations_take_time_by_the_speed_of_the_device():
    assert Situation().step_seconds == pytest.approx(6 * 1e6 * 20 / 1e9)
    assert Situation(gflops=100).step_seconds == pytest.approx(Situation().step_seconds / 100)
    assert Situation(step=0.0).step_seconds == 0
    slow, fast = (
        of(FEDAVG, advise(Situation(parameters=7850, gflops=g), IID)) for g in (0.001, 1000)
    )
    assert slow.seconds - fast.seconds == pytest.approx(200 * 6 * 7850 * 20 / 1e6, rel=1e-4)


def test_momentum_is_that_of_the_better_run_and_both_are_reported():
    records = [*IID, record(STC, [0.7, 0.9, 0.92], momentum=0.9)]
    advice = advise(Situation(parameters=7850), records)
    assert advice.momentum == 0.9
    assert any(
        "momentum 0.9: best accuracy 92.0 %, 90.0 % with momentum 0" in r for r in advice.reasons
    )


@pytest.mark.parametrize(
    ("situation", "method", "momentum"),
    [
        (Situation(classes=1), "stc", 0.0),
        (Situation(batch_size=1, latency=100, minimise="time"), "stc", 0.0),
        (Situation(participation=0.01, latency=100, minimise="time"), "stc", 0.0),
        (Situation(latency=100, minimise="time"), "fedavg", 0.9),
        (Situation(latency=100), "stc", 0.9),
        (Situation(latency=0.01, minimise="time"), "stc", 0.9),
    ],
)
def test_without_records_the_lessons_decide(situation, method, momentum):
    advice = advise(situation, [])
    assert (advice.method["name"], advice.momentum) == (method, momentum)
    assert "chosen by the lessons alone" in advice.reasons[0]


@pytest.mark.parametrize(
    ("situation", "option"),
    [
        ({"latency": 100}, "stc:p_up=1/25,p_down=1/25,local_steps=25"),
        ({"latency": 100, "classes": 2}, "stc:p_up=1/400,p_down=1/400"),
        ({}, "stc:p_up=1/400,p_down=1/400"),
    ],
)
def test_lessons_recommend_delay_for_slow_rounds_on_iid_data(situation, option):
    rare = Situation(participation=0.01, minimise="time", **situation)
    assert advise(rare, []).method_option == option


def test_near_full_runs_are_preferred_to_nearer_short_runs():
    short = [replace(found, task="cnn-kws", own_iterations=3000) for found in SKEWED]
    near = Situation(classes=1, parameters=7850)
    full = [replace(found, parameters=100_000) for found in SKEWED]
    assert advise(near, short + full).cell.records == tuple(full)
    advice = advise(near, short)
    assert advice.cell.description.endswith("batch size 20, 300 of 3,000 iterations")
    assert "the recorded runs were cut short: 300 of 3,000 iterations" in advice.reasons


def test_near_short_runs_are_preferred_to_full_runs_that_are_not_near():
    short = [replace(found, own_iterations=3000) for found in SKEWED]
    assert advise(Situation(classes=1, parameters=7850), short + IID).cell.records == tuple(short)


def test_records_without_the_methods_that_lessons_compare_are_chosen_last():
    topk = [{**STC, "name": "topk", "p_up": 1 / n} for n in (10, 100, 400)]
    one_sided = [record(method, [0.5, 0.8, 0.9], batch_size=30) for method in (STC, *topk)]
    situation = Situation(batch_size=30, parameters=7850)
    assert advise(situation, one_sided + IID).cell.records == tuple(IID)
    assert "there are no recorded runs of fedavg" in advise(situation, one_sided).reasons


def test_records_of_a_single_method_are_not_used():
    assert advise(Situation(parameters=7850), IID[:1]).cell is None


def test_every_difference_to_the_recorded_runs_is_named():
    situation = Situation(clients=200, participation=0.2, batch_size=10, parameters=10**6)
    assert [str(difference) for difference in advise(situation, IID).differences] == [
        "parameters: recorded: 7,850, yours: 1,000,000",
        "batch size: recorded: 20, yours: 10",
        "participation: recorded: 0.1, yours: 0.2",
        "clients: recorded: 100, yours: 200",
    ]
    assert advise(Situation(parameters=7850), IID).differences == ()


@pytest.mark.parametrize(
    ("far", "name", "values"),
    [
        ({"classes": 9}, "data", "recorded: iid, yours: non-iid (another kind)"),
        ({"batch_size": 9}, "batch size", "recorded: 20, yours: 9 (more than a factor of 2)"),
        (
            {"participation": 0.21},
            "participation",
            "recorded: 0.1, yours: 0.21 (more than a factor of 2)",
        ),
    ],
)
def test_runs_that_a_lesson_distinguishes_from_the_situation_do_not_decide(far, name, values):
    advice = advise(Situation(parameters=7850, **far), IID)
    assert advice.estimates == ()
    assert f"differ too much in {name}" in advice.reasons[0]
    assert f"{name}: {values}" in [str(difference) for difference in advice.differences]


def test_of_near_runs_those_of_the_closest_model_decide():
    larger = [replace(found, task="cnn-kws", parameters=900_000) for found in IID]
    similar = both([0.5, 0.8, 0.9], [0.8, 0.89, 0.9], batch_size=19)
    records = [*IID, *larger, *similar]
    assert advise(Situation(batch_size=19), records).cell.records == tuple(larger)
    assert advise(Situation(batch_size=19, parameters=7850), records).cell.records == tuple(similar)


def test_of_equal_runs_those_with_equal_amounts_of_data_decide():
    uneven = both([0.5, 0.8, 0.9], [0.8, 0.89, 0.9], gamma=0.9)
    assert advise(Situation(), uneven + IID).cell.records == tuple(IID)
    (difference,) = advise(Situation(parameters=7850), uneven).differences
    assert str(difference).startswith("examples per client: recorded: unequal numbers")


def test_lessons_are_judged_by_the_methods_that_they_compare():
    quick = {**METHODS["qsgd"].defaults, "name": "qsgd"}
    runs = [*SKEWED, record(quick, [0.9, 0.9, 0.9], classes_per_client=1)]
    situation = Situation(classes=1, parameters=7850, latency=600, minimise="time")
    advice = advise(situation, runs)
    assert advice.method["name"] == "qsgd"
    turned = both([0.2, 0.3, 0.4], [0.3, 0.6, 0.88], classes_per_client=1)
    alone = [turned[1], record(quick, [0.1, 0.1, 0.1], classes_per_client=1)]
    for records, verdict in ((turned, "contradicted"), (alone, "not tested")):
        assert lesson(1, advise(situation, records)).startswith(f"lesson 1 is {verdict} by these")
    assert lesson(1, advice).startswith(
        "lesson 1 agrees with these runs (STC p=1/400: 2 days, 2:00:00; FedAvg n=100: target not"
    )


def test_recommended_momentum_is_reported_as_contrary_to_lesson_6():
    better = [*SKEWED, record(STC, [0.9, 0.9, 0.92], momentum=0.9, classes_per_client=1)]
    situation = Situation(classes=1, parameters=7850)
    advice = advise(situation, better)
    assert advice.momentum == 0.9
    assert lesson(6, advice).startswith("lesson 6 is contradicted by these runs")
    worse = [*SKEWED, record(STC, [0.1, 0.1, 0.2], momentum=0.9, classes_per_client=1)]
    assert lesson(6, advise(situation, worse)).startswith("lesson 6 agrees with these runs")
    alone = [found for found in better if found.momentum or found.method is FEDAVG]
    assert "(all of STC p=1/400 have momentum 0.9)" in lesson(6, advise(situation, alone))


GRID = [
    Situation(
        clients=clients,
        participation=participation,
        classes=classes,
        batch_size=batch_size,
        parameters=parameters,
        latency=latency,
        minimise=minimise,
        price_up=2.0,
        price_server=0.1,
    )
    for clients, participation in ((10, 1.0), (100, 0.1), (400, 0.0125))
    for classes in (1, 4, 10)
    for batch_size in (1, 20)
    for parameters in (7850, 1_000_000)
    for minimise, latency in ((*((name, 0.1) for name in OBJECTIVES), ("time", 60.0)))
]


@pytest.fixture(scope="module")
def grid():
    """Advice by the bundled records for each situation of the grid."""
    records = load_records()
    return [advise(situation, records) for situation in GRID]


def test_the_recommended_method_is_the_first_of_its_own_table(grid):
    for advice in grid:
        if advice.estimates:
            first = advice.estimates[0]
            amount = OBJECTIVES[advice.situation.minimise].amount
            assert (advice.method, advice.momentum) == (first.record.method, first.record.momentum)
            assert first.reached
            assert amount(first) == min(amount(e) for e in advice.estimates if e.reached)


def test_no_lesson_agrees_with_runs_whose_table_says_otherwise(grid):
    verdicts = set()
    for advice in grid:
        names = [e.record.method["name"] for e in advice.estimates if e.reached]
        for rule in LESSONS:
            if rule.method and rule.applies(advice.situation) and advice.estimates:
                verdict = " ".join(lesson(rule.number, advice).split()[2:4])
                verdicts.add(verdict)
                if verdict in ("agrees with", "is contradicted"):
                    wins = next(name for name in names if name in (rule.method, rule.instead_of))
                    assert (verdict == "agrees with") == (wins == rule.method)
    assert {"agrees with", "is contradicted"} <= verdicts


def test_without_a_table_the_first_reason_says_what_is_too_different(grid):
    by_lessons = [advice for advice in grid if not advice.estimates]
    assert 0 < len(by_lessons) < len(grid)
    for advice in by_lessons:
        too_large = [d.name for d in advice.differences if d.too_large]
        assert too_large
        assert f"differ too much in {join_words(too_large)}" in advice.reasons[0]
    for advice in grid:
        if advice.estimates:
            assert not any(d.too_large for d in advice.differences)


def test_message_overhead_does_not_grow_with_the_model():
    stc = of(STC, advise(Situation(parameters=785_000), IID))
    # 300 messages of 60 bytes, of which the formula knows 26: a hundred times that, and the rest.
    formula = analytic_bits(make_method(STC).up, Layout.flat(7850)) / 8
    larger = analytic_bits(make_method(STC).up, Layout.flat(785_000)) / 8
    assert 25 < formula < 28
    assert stc.up_bytes_mean == pytest.approx(300 * (32 + (60 - 32) * larger / formula))
    assert of(STC, advise(Situation(parameters=1), IID)).up_bytes_mean >= 300 * 32


def test_downloads_grow_with_absence():
    def down(method, participation, parameters=785_000):
        situation = Situation(1000, participation, parameters=parameters)
        return of(method, advise(situation, [record(method, [0.9]), *IID])).down_bytes_mean

    assert down(STC, 0.05) == pytest.approx(2 * down(STC, 0.1), rel=0.05)
    assert down(FEDAVG, 0.05) == down(FEDAVG, 0.1)
    steps = {**STC, "codec": "adaptive", "magnitudes": "powers"}
    assert down(steps, 0.05) == pytest.approx(2 ** (2 / 3) * down(steps, 0.1), rel=0.05)
    assert down(steps, 0.1, 7850) == 100 * 5 * 60  # as recorded


def test_a_download_is_never_larger_than_the_model():
    place = {"clients": 10**6, "participation": 1e-4, "batch_size": 20}
    advice = advise(Situation(participation=1e-4, clients=10**6), both([0.9], [0.9], **place))
    stc = of(STC, advice)
    assert stc.down_bytes_mean <= stc.rounds * 4_000_100


def test_the_method_option_contains_parameters_that_differ_from_the_default():
    records = both([0.5, 0.8, 0.9], [0.1, 0.1, 0.1])
    for method, option in (
        ({"name": "dgc", "p": 0.01, "momentum": 0.0}, "dgc:p=1/100,momentum=0"),
        ({"name": "structured", "rank": 2}, "structured:rank=2"),
        ({"name": "stc", "p_up": 0.0123456789, "weighted": True},
         "stc:p_up=0.0123456789,p_down=1/400,weighted=true"),
    ):  # fmt: skip
        local = complete_method(method)
        points = records[0].points
        odd = replace(records[0], method=local, points=tuple(p._replace(up=0.0) for p in points))
        written = advise(Situation(parameters=7850, up=1e3), [odd, records[1]]).method_option
        assert written == option
        assert complete_method(parse_method(written)) == local


def test_every_lesson_applies_in_some_situation():
    situations = [
        Situation(classes=1), Situation(batch_size=1), Situation(participation=0.01),
        Situation(latency=100, minimise="time"),
    ]  # fmt: skip
    spoken = {m.number for m in LESSONS for s in situations if m.applies(s)}
    assert spoken == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0}, {"participation": 0.0}, {"classes": 11}, {"up": 0.0}, {"down": -1.0},
        {"latency": -1.0}, {"parameters": 0}, {"within": -0.1}, {"gflops": 0.0}, {"step": -1.0},
        {"price_up": -1.0}, {"minimise": "energy"}, {"batch_size": 1 << 63},
    ],
)  # fmt: skip
def test_an_error_names_the_value_that_is_out_of_range(wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must"):
        Situation(**wrong)


def test_records_survive_a_round_trip():
    assert load_records(dump_records(IID)) == load_records(
        dump_records(load_records(dump_records(IID)))
    )
    assert load_records(dump_records(IID))[0].points == IID[0].points
    assert dump_records(reversed(IID)) == dump_records(IID)


def test_merging_replaces_records_of_the_same_configuration():
    first, second, *rest = IID
    longer = replace(first, points=(*first.points, Point(10_000, 0.99, 1, 1)))
    merged = merge_records([first, second], [longer, *rest])
    assert len(merged) == len(IID)
    assert {first.method["name"], second.method["name"]} <= {r.method["name"] for r in merged}
    assert longer in merged
    assert first not in merged
    assert merge_records([replace(first, seeds=3)], [longer]) == [replace(first, seeds=3)]


def write_run(path, seed, accuracies, finished=True, method=STC, iterations=300):
    path.mkdir()
    place = {"clients": 17, "participation": 1.0}
    config = {
        "task": "logistic-mnist", "method": method, "environment": place,
        "iterations": iterations,
        "learning_rate": 0.04, "momentum": 0.0, "weight_decay": 0.0, "seed": seed,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps({**config, "finished": finished}))
    tested = [iterations * (i + 1) // len(accuracies) for i in range(len(accuracies))]
    lines = [
        {
            "iteration": tested[i], "accuracy": accuracy, "up_bytes_mean": 6000.0 * (i + 1),
            "down_bytes_mean": 30000.0 * (i + 1), "dense_bytes": 4 * 7850 * tested[i],
        }
        for i, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load_run(path)


def test_seeds_become_one_record_and_unfinished_runs_are_ignored(tmp_path):
    runs = [
        write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9]),
        write_run(tmp_path / "b", 1, [0.7, 0.8, 0.8]),
        write_run(tmp_path / "c", 2, [0.1, 0.1, 0.1], finished=False),
    ]
    (found,) = collect_records(runs)
    assert found.seeds == 2
    assert found.parameters == 7850
    assert [point.accuracy for point in found.points] == [0.6, 0.8, 0.85]


def test_only_runs_with_the_same_evaluation_interval_are_averaged(tmp_path):
    accuracies = [0.1 + i / 200 for i in range(60)]
    accuracies[37] = 0.95
    run = write_run(tmp_path / "a", 0, accuracies, iterations=6000)
    (whole,) = collect_records([run], {"logistic-mnist": 10_000})
    assert (len(whole.points), whole.best) == (60, 0.95)
    assert whole.reaching(0.95).iteration == 3800
    assert (whole.iterations, whole.own_iterations) == (6000, 10_000)
    again = write_run(tmp_path / "b", 0, accuracies)
    (twice,) = collect_records([again, again])
    assert twice.seeds == 1
    other = write_run(tmp_path / "c", 1, [0.5])
    other.config["evaluate_every"] = 300
    assert [found.seeds for found in collect_records([again, other])] == [1, 1]


def test_a_time_beyond_timedelta_is_printed():
    out = CliRunner().invoke(app, ["advise", "--latency", "1e15"])
    assert out.exit_code == 0, out.output
    assert "over 1000 years" in out.output


def test_the_command_prints_a_recommendation_with_reasons():
    out = CliRunner().invoke(app, ["advise", "--classes", "1"])
    assert out.exit_code == 0, out.output
    assert out.output.startswith("--method stc")
    assert "lesson 1" in out.output
    assert "FedAvg" in out.output
    found = json.loads(CliRunner().invoke(app, ["advise", "--classes", "1", "--json"]).output)
    assert found["method"].startswith("stc_plus")
    assert any(not row["reaches_target"] for row in found["estimates"])


def test_runs_of_tasks_without_accuracy_are_ignored(tmp_path):
    write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9], iterations=5000)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config["metric"] = {"name": "perplexity", "best": "lower"}
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    assert collect_records([load_run(tmp_path / "a")]) == []
    out = CliRunner().invoke(app, ["advise", "--runs", str(tmp_path / "a")])
    assert "is ignored: its metric is perplexity, and advice is about accuracy" in out.stderr


def test_the_command_prints_an_error_for_impossible_options():
    out = CliRunner().invoke(app, ["advise", "--classes", "11"])
    assert out.exit_code == 1
    assert "classes must be between 1 and 10 (of_classes), got 11" in out.output


def test_runs_given_on_the_command_line_are_considered(tmp_path):
    write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9], iterations=5000)
    write_run(tmp_path / "b", 0, [0.1, 0.2, 0.95], method=FEDAVG, iterations=5000)
    write_run(tmp_path / "c", 1, [0.1], finished=False)
    own = [option for name in "abc" for option in ("--runs", str(tmp_path / name))]
    ours = ["advise", "--clients", "17", "--participation", "1", "--parameters", "7850", "--json"]
    out = CliRunner().invoke(app, [*ours, *own])
    assert out.exit_code == 0, out.output
    found = json.loads(out.stdout)
    assert found["recorded_in"].startswith("logistic-mnist, 17 of 17 clients")
    assert {row["best_accuracy"] for row in found["estimates"]} == {0.9, 0.95}
    assert out.stderr == f"fedtern: {tmp_path / 'c'} is ignored: the run is not finished\n"
    for name, method in (("d", STC), ("e", FEDAVG)):  # a handful of iterations
        write_run(tmp_path / name, 0, [0.5], method=method)
    brief = [option for name in "de" for option in ("--runs", str(tmp_path / name))]
    short = CliRunner().invoke(app, [*ours, *brief])
    assert "bundled runs matched better than --runs (" in short.stderr
    alone = CliRunner().invoke(app, [*ours, "--runs", str(tmp_path / "a")])
    assert "bundled runs matched better than --runs (" in alone.stderr
    assert not json.loads(alone.stdout)["recorded_in"].startswith("logistic-mnist, 17 of 17")


def test_runs_at_different_learning_rates_are_not_compared(tmp_path):
    write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9], iterations=5000)
    slow = write_run(tmp_path / "b", 0, [0.1, 0.2, 0.3], method=FEDAVG, iterations=5000)
    (tmp_path / "b" / "config.json").write_text(json.dumps({**slow.config, "learning_rate": 1e-4}))
    own = [option for name in "ab" for option in ("--runs", str(tmp_path / name))]
    ours = ["advise", "--clients", "17", "--participation", "1", "--parameters", "7850"]
    out = CliRunner().invoke(app, [*ours, *own])
    assert out.exit_code == 0, out.output
    assert "17 of 17" not in out.stdout
    assert "at the same learning rate" in out.stderr


def test_one_run_does_not_replace_a_record_with_more_seeds():
    known = next(r for r in load_records() if r.task == "logistic-mnist" and r.seeds == 3)
    lucky = replace(known, seeds=1, points=(known.points[0]._replace(accuracy=1.0),))
    assert merge_records(load_records(), [lucky]) == load_records()
    other = replace(lucky, learning_rate=1.0)
    assert len(merge_records(load_records(), [other])) == len(load_records()) + 1


def test_dirichlet_data_counts_as_non_iid():
    mixed = both([0.1, 0.2, 0.3], [0.3, 0.6, 0.88], split="dirichlet", concentration=0.05)
    alike, apart = Situation(parameters=7850), Situation(classes=1, parameters=7850)
    assert not advise(alike, mixed).estimates
    assert advise(apart, mixed).estimates
    assert "dirichlet data (concentration 0.05)" in advise(apart, mixed).cell.description


def test_a_run_with_truncated_metrics_is_ignored_with_a_message(tmp_path):
    whole = write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9])
    metrics = tmp_path / "a" / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-10])
    assert len(collect_records([whole])) == 1
    assert collect_records([load_run(tmp_path / "a")]) == []
    out = CliRunner().invoke(app, ["advise", "--runs", str(tmp_path / "a")])
    assert "is ignored: its metrics.jsonl ends early, though the run is finished" in out.stderr
    nowhere = CliRunner().invoke(app, ["advise", "--runs", str(tmp_path)])
    assert f"{tmp_path} is not a run directory: it has no config.json; try" in nowhere.stderr


def test_records_of_iid_data_do_not_decide_for_non_iid_data():
    assert "5 classes per client" in advise(Situation(classes=5), load_records()).cell.description


def test_cost_without_a_price_is_an_error_that_names_the_options():
    out = CliRunner().invoke(app, ["advise", "--minimise", "cost"])
    assert out.exit_code == 1
    assert "set price_up, price_down or price_server (on the command line --price" in out.output
    priced = CliRunner().invoke(app, ["advise", "--minimise", "cost", "--price-server", "0.1"])
    assert "lowest cost" in priced.output


def test_json_has_bytes_per_client_and_at_the_server():
    out = CliRunner().invoke(app, ["advise", "--minimise", "bytes-up", "--json"])
    found = json.loads(out.stdout)
    assert (found["minimise"], found["decided_by"]) == ("bytes-up", "runs")
    for row in found["estimates"]:
        assert row["up_bytes"] == pytest.approx(10 * row["up_bytes_mean"])
        assert row["down_bytes"] == pytest.approx(10 * row["down_bytes_mean"])
    assert found["differences"] == [
        {"name": "parameters", "recorded": "876,938", "yours": "1,000,000", "too_large": False}
    ]
    far = CliRunner().invoke(app, ["advise", "--batch-size", "1", "--json"])
    found = json.loads(far.stdout)
    assert (found["decided_by"], found["estimates"], found["target"]) == ("lessons", [], None)


def test_the_page_shows_what_the_command_prints():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "advise.md"
    blocks = re.findall(r"```text\n\$ fedtern (advise.*)\n((?:.*\n)*?)```", page.read_text())
    assert len(blocks) == 3
    for command, shown in blocks:
        printed = CliRunner().invoke(app, command.split()).output
        lines = [line.split() for line in printed.splitlines()]
        tabular = r"(--method|- \w+: recorded|.* (GB|%|cost)$|.*\d:\d\d)"
        checked = [line for line in shown.splitlines() if re.match(tabular, line)]
        assert len(checked) >= 4
        for line in checked:
            assert line.split() in lines


@pytest.mark.parametrize("option", [["--up", "1e-310"], ["--latency", "1.7e308"]])
def test_infinite_times_are_null_in_json(option):
    out = CliRunner().invoke(app, ["advise", *option, "--json"])
    assert out.exit_code == 0, out.output
    found = json.loads(out.stdout, parse_constant=pytest.fail)
    assert None in {row["seconds"] for row in found["estimates"]}


INDEPENDENT = """
import sys
sys.modules["torch"] = None
import fedtern.advice
print([name for name in sys.modules if name.startswith("fedtern_paper")])
"""


def test_advice_needs_neither_torch_nor_the_paper():
    command = [sys.executable, "-c", INDEPENDENT]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
sys.argv = ["fedtern", "advise", "--classes", "1", "--json"]
from fedtern.__main__ import main
main()
"""


def test_the_command_needs_no_torch():
    command = [sys.executable, "-c", WITHOUT_TORCH]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["method"].startswith("stc_plus")
