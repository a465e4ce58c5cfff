"""Accuracy and bytes of secure aggregation beside STC, on logistic-mnist.

`python benchmarks/secure_accuracy.py --data-dir DATA` trains 100 clients, 10 of them in each round,
and prints a table. Every message of every phase is made and read. With `--no-messages`, the sums
are computed directly, which gives the same weights in a fraction of the time; uploaded bytes are
then those of the first 25 rounds with all messages, times the number of rounds, and downloads are
not shown. `--dropout 0.2` lets each client leave a round with this probability, in a random phase.
`--results FILE` keeps finished runs, one per line, so that an interrupted table continues.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedtern import Environment, stc
from fedtern.core.methods import Method
from fedtern.data.hyperparameters import Sgd
from fedtern.privacy.secure import secure_topk
from fedtern.training.tasks import get_task
from fedtern.transports.local.secure import SecureFederation
from fedtern.transports.local.simulation import federate

TASK = "logistic-mnist"
MEASURED = 25  # rounds with all messages, if the others have none
SPLITS = {"iid": 10, "one class": 1}  # classes per client
METHODS: dict[str, dict[str, Method]] = {
    "STC": {"iid": stc(), "one class": stc()},
    "leader": {"iid": secure_topk(), "one class": secure_topk(1 / 100)},
    "random": {
        "iid": secure_topk(1 / 40, 1 / 40, "random"),
        "one class": secure_topk(1 / 40, 1 / 40, "random"),
    },
}


def run(
    name: str, split: str, seed: int, rounds: int, dropout: float, messages: bool, data: Path
) -> dict[str, Any]:
    """Train one federation and return its results."""
    torch.set_num_threads(1)
    task = get_task(TASK)
    method = METHODS[name][split]
    is_secure = name != "STC"
    make = partial(SecureFederation, dropout=dropout, messages=messages)
    federation = federate(
        task,
        task.load(data),
        method,
        Environment(classes_per_client=SPLITS[split]),
        Sgd(task.learning_rate, task.momentum),
        seed=seed,
        workers=0,
        make=make if is_secure else None,
    )
    with closing(federation):
        for _ in range(rounds):
            federation.step()
        found = federation.evaluate()
    result = {
        "method": name,
        "split": split,
        "seed": seed,
        "rounds": rounds,
        "dropout": dropout,
        "messages": messages,
        "accuracy": found.accuracy,
        "up": found.up_bytes_mean,
        "down": found.down_bytes_mean,
        "payload": found.up_bytes_mean,
        "abandoned": 0,
        "left": 0,
    }
    if isinstance(federation, SecureFederation):
        totals = federation.totals
        result |= {"payload": totals.payload_up, "abandoned": totals.abandoned}
        result["left"] = totals.left
        if not messages:
            first = run(name, split, seed, MEASURED, dropout, True, data)
            # Uploads have nearly the same size in every round. Downloads grow in the first rounds.
            result |= {key: first[key] * rounds / MEASURED for key in ("payload", "up")}
            result["down"] = None
    return result


def results(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results of all runs; those in the file are not run again."""
    keys = ("method", "split", "seed", "rounds", "dropout", "messages")
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    if options.results.exists():
        for line in options.results.read_text(encoding="utf-8").splitlines():
            kept = {"messages": True, **json.loads(line)}
            known[tuple(kept[key] for key in keys)] = kept
    for name in options.methods:
        for split in options.splits:
            for seed in options.seeds:
                key = (name, split, seed, options.rounds, options.dropout, options.messages)
                if key not in known:
                    known[key] = run(*key, options.data_dir)
                    with options.results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(known[key]) + "\n")
                yield known[key]


def print_table(found: list[dict[str, Any]]) -> None:
    """Print the means over seeds."""
    columns = ("split", "method", "seeds", "accuracy", "values up, MB", "all up, MB")
    print("|", " | ".join((*columns, "all down, MB", "abandoned")), "|")
    print("|---|---|---|---|---|---|---|---|")
    for split in SPLITS:
        for name in METHODS:
            rows = [row for row in found if row["split"] == split and row["method"] == name]
            if not rows:
                continue
            accuracy = [100 * row["accuracy"] for row in rows]
            spread = f" ± {statistics.stdev(accuracy):.1f}" if len(rows) > 1 else ""
            mega = {
                key: statistics.mean(row[key] for row in rows) / 1e6 for key in ("payload", "up")
            }
            downs = [row["down"] for row in rows if row["down"] is not None and row["messages"]]
            down = f"{statistics.mean(downs) / 1e6:.2f}" if downs else "–"
            abandoned = statistics.mean(row["abandoned"] / row["rounds"] for row in rows)
            print(
                f"| {split} | {name} | {len(rows)} | {statistics.mean(accuracy):.1f}{spread} % |"
                f" {mega['payload']:.3f} | {mega['up']:.2f} | {down} |"
                f" {abandoned:.1%} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=2500)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--messages", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--splits", nargs="*", default=list(SPLITS), choices=list(SPLITS))
    parser.add_argument("--results", type=Path, default=Path("secure-accuracy.jsonl"))
    print_table(list(results(parser.parse_args())))


if __name__ == "__main__":
    main()
