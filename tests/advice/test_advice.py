"""Recommendations, estimates and records."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedtern.advice import (
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
    each = 60 if method is STC else 4 * parameters
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


def both(stc, fedavg, **environment):
    return [record(STC, stc, **environment), record(FEDAVG, fedavg, **environment)]


IID = both([0.5, 0.8, 0.9], [0.8, 0.89, 0.9])
SKEWED = both([0.3, 0.6, 0.88], [0.2, 0.3, 0.4], classes_per_client=1)


def test_the_fastest_method_of_the_nearest_records_is_recommended():
    slow_link = Situation(parameters=7850, up=1e3, down=1e3, latency=0)
    advice = advise(slow_link, IID + SKEWED)
    assert advice.method["name"] == "stc"
    assert [e.record.method["name"] for e in advice.estimates] == ["stc", "fedavg"]
    slow_rounds = Situation(parameters=7850, up=1e9, down=1e9, latency=60)
    assert advise(slow_rounds, IID + SKEWED).method["name"] == "fedavg"


def test_a_method_that_misses_the_target_is_not_recommended():
    advice = advise(Situation(classes=1, parameters=7850, up=1e9, latency=60), IID + SKEWED)
    assert advice.method["name"] == "stc"
    assert advice.estimates[-1].reached is None
    assert any(
        "did not reach the target: FedAvg n=100 (40.00 %)" in reason for reason in advice.reasons
    )
    assert any(reason.startswith("lesson 1") for reason in advice.reasons)


def test_estimates_are_recorded_costs_scaled_to_the_model():
    situation = Situation(parameters=7850, up=8e3, down=8e4, latency=2, step=0.5, within=0.02)
    first = advise(situation, IID).estimates
    fedavg = next(e for e in first if e.record.method is FEDAVG)
    assert fedavg.reached is not None
    assert fedavg.reached.iteration == 200  # 0.89 is within two points of 0.9
    assert (fedavg.rounds, fedavg.up, fedavg.down) == (2, 2 * 31400, 10 * 31400)
    assert fedavg.seconds == pytest.approx(2 * 2 + 62800 / 1e3 + 314000 / 1e4 + 200 * 0.5)
    larger = advise(Situation(parameters=78_500), IID).estimates
    assert next(e for e in larger if e.record.method is FEDAVG).up == 20 * 31400


def test_momentum_is_that_of_the_better_run_and_both_are_reported():
    records = [*IID, record(STC, [0.7, 0.9, 0.92], momentum=0.9)]
    advice = advise(Situation(parameters=7850, up=1e3), records)
    assert advice.momentum == 0.9
    assert any(
        "momentum 0.9: best accuracy 92.0 %, 90.0 % with momentum 0" in r for r in advice.reasons
    )


@pytest.mark.parametrize(
    ("situation", "method", "momentum"),
    [
        (Situation(classes=1), "stc", 0.0),
        (Situation(batch_size=1, latency=100), "stc", 0.0),
        (Situation(participation=0.01, latency=100), "stc", 0.0),
        (Situation(latency=100), "fedavg", 0.9),
        (Situation(latency=0.01), "stc", 0.9),
    ],
)
def test_without_records_the_lessons_decide(situation, method, momentum):
    advice = advise(situation, [])
    assert (advice.method["name"], advice.momentum) == (method, momentum)
    assert "chosen by the lessons alone" in advice.reasons[0]


@pytest.mark.parametrize(
    ("situation", "option"),
    [
        (Situation(participation=0.01, latency=100), "stc:p_up=1/25,p_down=1/25,local_steps=25"),
        (Situation(participation=0.01, latency=100, classes=2), "stc:p_up=1/400,p_down=1/400"),
        (Situation(participation=0.01), "stc:p_up=1/400,p_down=1/400"),
    ],
)
def test_lessons_recommend_delay_for_slow_rounds_on_iid_data(situation, option):
    assert advise(situation, []).method_option == option


def test_full_runs_are_preferred_to_nearer_short_runs():
    short = [replace(found, task="cnn-kws", own_iterations=3000) for found in SKEWED]
    near = Situation(classes=1, parameters=7850)
    full = [replace(found, parameters=100_000) for found in SKEWED]
    assert advise(near, short + full).group.records == tuple(full)
    assert advise(near, short).group.description.endswith("batch size 20, 300 of 3,000 iterations")


def test_records_without_the_methods_that_lessons_compare_are_chosen_last():
    topk = [{**STC, "name": "topk", "p_up": 1 / n} for n in (10, 100, 400)]
    one_sided = [record(method, [0.5, 0.8, 0.9]) for method in (STC, *topk)]
    situation = Situation(parameters=7850, latency=100)
    assert advise(situation, one_sided + IID).method["name"] == "fedavg"


def test_only_the_methods_that_a_lesson_compares_can_contradict_it():
    quick = {**METHODS["qsgd"].defaults, "name": "qsgd"}
    runs = [*SKEWED, record(quick, [0.9, 0.9, 0.9], classes_per_client=1)]
    situation = Situation(classes=1, parameters=7850, up=1e9, down=1e9, latency=60)
    advice = advise(situation, runs)
    assert advice.method["name"] == "qsgd"
    assert not any("contrary to lesson" in reason for reason in advice.reasons)
    turned = both([0.2, 0.3, 0.4], [0.3, 0.6, 0.88], classes_per_client=1)
    assert any("contrary to lesson 1" in reason for reason in advise(situation, turned).reasons)
    alone = [found for found in turned if found.method is FEDAVG]
    twice = [*alone, record(quick, [0.1, 0.1, 0.1], classes_per_client=1)]
    assert not any("contrary to lesson" in reason for reason in advise(situation, twice).reasons)


def test_only_bytes_can_contradict_a_lesson_about_bytes():
    quick_rounds = Situation(parameters=785_000, up=1e6, down=1e8, latency=5)
    advice = advise(quick_rounds, [replace(found, parameters=785_000) for found in IID])
    assert advice.method["name"] == "fedavg"
    assert min(advice.estimates, key=lambda e: e.up).record.method["name"] == "stc"
    assert not any("lesson 4" in reason for reason in advice.reasons)
    failed = record({**STC, "p_up": 1 / 25, "p_down": 1 / 25}, [0.1, 0.1, 0.1])
    more = [replace(found, parameters=785_000) for found in (*IID, failed)]
    assert not any("lesson 4" in reason for reason in advise(quick_rounds, more).reasons)
    short = [replace(found, points=found.points[:2]) for found in IID]
    turned = advise(quick_rounds, [replace(found, parameters=785_000) for found in short])
    assert any("contrary to lesson 4" in reason for reason in turned.reasons)


def test_near_short_runs_are_preferred_to_full_runs_that_are_too_far():
    short = [replace(found, own_iterations=3000) for found in SKEWED]
    assert advise(Situation(classes=1, parameters=7850), short + IID).group.records == tuple(short)


def test_recommended_momentum_is_reported_as_contrary_to_lesson_6():
    better = [*SKEWED, record(STC, [0.9, 0.9, 0.92], momentum=0.9, classes_per_client=1)]
    advice = advise(Situation(classes=1, parameters=7850, up=1e3), better)
    assert advice.momentum == 0.9
    assert any(reason.startswith("contrary to lesson 6") for reason in advice.reasons)
    assert not any(reason.startswith("lesson 6") for reason in advice.reasons)
    alone = [found for found in better if found.momentum or found.method is FEDAVG]
    advice = advise(Situation(classes=1, parameters=7850, up=1e3), alone)
    assert any(
        "all recorded runs of this method have momentum 0.9" in reason for reason in advice.reasons
    )


def test_records_that_are_too_far_do_not_decide():
    advice = advise(Situation(clients=10_000, participation=0.001, batch_size=1), IID)
    assert "too different" in advice.reasons[0]
    assert advice.too_far
    out = CliRunner().invoke(app, ["advise", "--clients", "10000", "--participation", "0.0001"])
    assert "too far to decide by" in out.output


def test_records_that_are_too_far_choose_the_sparsity_of_stc():
    finer = {**STC, "p_up": 1 / 25, "p_down": 1 / 25}
    far = Situation(classes=1, clients=1000, participation=0.001, up=1e9, down=1e9, latency=9)
    advice = advise(far, [*SKEWED, record(finer, [0.6, 0.88, 0.89], classes_per_client=1)])
    assert advice.too_far
    assert advice.method == finer
    assert any(
        "instead of other parameters: the fastest in those runs" in reason
        for reason in advice.reasons
    )
    delayed = {**finer, "local_steps": 25}  # delay is not up to the records
    slow = [*SKEWED, record(delayed, [0.88, 0.89, 0.89], classes_per_client=1)]
    assert advise(far, slow).method == STC
    assert advise(far, SKEWED).method == STC


def test_a_method_that_misses_the_target_is_listed_with_its_best_accuracy():
    out = CliRunner().invoke(app, ["advise", "--classes", "1"])
    assert "best accuracy 7" in out.output


def test_message_overhead_does_not_grow_with_the_model():
    situation = Situation(parameters=785_000, up=1e3)
    (stc, _) = sorted(advise(situation, IID).estimates, key=lambda e: e.up)
    # 300 messages of 60 bytes, of which the formula knows 26: a hundred times that, and the rest.
    formula = analytic_bits(make_method(STC).up, Layout.flat(7850)) / 8
    larger = analytic_bits(make_method(STC).up, Layout.flat(785_000)) / 8
    assert 25 < formula < 28
    assert stc.up == pytest.approx(300 * (32 + (60 - 32) * larger / formula))
    tiny = Situation(parameters=1, up=1e3)
    assert all(e.up >= 300 * 32 for e in advise(tiny, IID).estimates if e.record.method is STC)


def test_downloads_grow_with_absence_up_to_the_size_of_the_model():
    down = {}
    for share in (0.1, 0.05, 1e-6):
        situation = Situation(clients=10_000_000, participation=share, parameters=785_000)
        for found in advise(situation, IID).estimates:
            down.setdefault(found.record.method["name"], []).append(found.down)
    near, half, never = down["stc"]
    assert half == pytest.approx(2 * near, rel=0.05)
    assert never < 300 * 5 * 4 * 785_000 * 1.01
    assert len(set(down["fedavg"])) == 1


def test_the_method_option_contains_parameters_that_differ_from_the_default():
    records = both([0.5, 0.8, 0.9], [0.1, 0.1, 0.1])
    for method, option in (
        ({"name": "dgc", "p": 0.01, "momentum": 0.0}, "dgc:p=1/100,momentum=0"),
        ({"name": "structured", "rank": 2}, "structured:rank=2"),
        ({"name": "stc", "p_up": 0.0123456789, "weighted": True},
         "stc:p_up=0.0123456789,p_down=1/400,weighted=true"),
    ):  # fmt: skip
        local = {**METHODS[method["name"]].defaults, **method}
        points = records[0].points
        odd = replace(records[0], method=local, points=tuple(p._replace(up=0.0) for p in points))
        written = advise(Situation(parameters=7850, up=1e3), [odd, records[1]]).method_option
        assert written == option
        assert complete_method(parse_method(written)) == local


def test_every_lesson_applies_in_some_situation():
    situations = [
        Situation(classes=1), Situation(batch_size=1), Situation(participation=0.01),
        Situation(latency=0.01), Situation(latency=100),
    ]  # fmt: skip
    spoken = {m.number for m in LESSONS for s in situations if m.applies(s)}
    assert spoken == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0}, {"participation": 0.0}, {"classes": 11}, {"up": 0.0}, {"down": -1.0},
        {"latency": -1.0}, {"parameters": 0}, {"within": -0.1},
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
    assert found["method"].startswith("stc:")
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
    assert advise(alike, mixed).too_far
    assert not advise(apart, mixed).too_far
    assert "dirichlet data (concentration 0.05)" in advise(apart, mixed).group.description


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


def test_momentum_that_lessons_leave_open_is_that_of_the_chosen_record():
    advice = advise(Situation(batch_size=10**6), load_records())
    assert advice.too_far
    (row,) = [e for e in advice.estimates if e.record.method == advice.method]
    assert advice.momentum == row.record.momentum
    assert any(reason.startswith(f"momentum {advice.momentum:g}: ") for reason in advice.reasons)


def test_records_of_iid_data_do_not_decide_for_non_iid_data():
    assert "5 classes per client" in advise(Situation(classes=5), load_records()).group.description


def test_a_download_is_never_larger_than_the_model():
    advice = advise(Situation(clients=10**6, participation=1e-4, classes=2), load_records())
    stc = next(e for e in advice.estimates if e.record.method["name"] == "stc")
    assert stc.down <= stc.rounds * 4_000_100


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
    assert json.loads(run.stdout)["method"].startswith("stc:")
