"""Run directories like those of an engine, written without training."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

PARAMETERS = 7850
METHODS: tuple[tuple[dict[str, Any], str, float, float, float], ...] = (
    # method, label, final accuracy, bytes up and down per client and round
    (
        {"name": "stc", "p_up": 0.0025, "p_down": 0.0025, "local_steps": 1, "scope": "model"},
        "STC p=1/400",
        0.901,
        49,
        370,
    ),
    ({"name": "fedavg", "local_steps": 400}, "FedAvg n=400", 0.696, 31424, 31420),
    ({"name": "signsgd", "delta": 0.0002}, "signSGD δ=0.0002", 0.755, 1006, 9800),
    ({"name": "sgd"}, "uncompressed SGD", 0.92, 31424, 31420),
)
ENVIRONMENT = {
    "clients": 100,
    "participation": 0.1,
    "classes_per_client": 1,
    "batch_size": 20,
    "gamma": 1.0,
    "alpha": 0.1,
    "split": "classes",
}


def config(method: dict[str, Any], seed: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "digest": hashlib.sha256(f"{method} {seed}".encode()).hexdigest()[:12],
        "task": "logistic-mnist",
        "method": method,
        "environment": ENVIRONMENT,
        "iterations": 5000,
        "learning_rate": 0.04,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "seed": seed,
        "evaluate_every": 100,
        "parameters": PARAMETERS,
        "command": f"fedtern run logistic-mnist --method {method['name']} --seed {seed}",
        **changes,
    }


def evaluations(method: dict[str, Any], seed: int, upto: int = 5000) -> list[dict[str, Any]]:
    *_, final, up, down = next(row for row in METHODS if row[0] == method)
    steps = method.get("local_steps", 1)
    rng = np.random.default_rng([seed, int(up)])
    measured = []
    for iteration in range(max(100, steps), upto + 1, max(100, steps)):
        rounds = iteration // steps
        accuracy = final - (final - 0.1) * np.exp(-iteration / 600) + rng.normal(0.02 * seed, 0.01)
        measured.append(
            {
                "iteration": iteration,
                "round": rounds,
                "loss": float(-np.log(accuracy)),
                "accuracy": float(accuracy),
                "up_bytes": 10 * up * rounds,
                "down_bytes": 10 * down * rounds,
                "up_bytes_mean": up * rounds * (1 + 0.01 * seed),
                "down_bytes_mean": down * rounds * (1 + 0.01 * seed),
                "up_bytes_paper": up * rounds * 0.93,
                "down_bytes_paper": down * rounds * 0.93,
                "dense_bytes": 4 * PARAMETERS * iteration,
                "seconds": {
                    "train": 0.004 * iteration,
                    "compress": 0.0004 * rounds,
                    "encode": 0.0003 * rounds,
                    "decode": 0.0002 * rounds,
                    "aggregate": 0.0001 * rounds,
                    "evaluate": 0.02 * iteration / 100,
                    "other": 0.0005 * iteration,
                },
            }
        )
    return measured


def split(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    counts = np.zeros((100, 10), int)
    counts[np.arange(100), rng.permutation(np.arange(100) % 10)] = 600
    return {"classes": [str(name) for name in range(10)], "counts": counts.tolist()}


def write_run(
    path: Path,
    configuration: dict[str, Any],
    measured: list[dict[str, Any]] = (),  # type: ignore[assignment]
    torn: str = "",
) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(configuration))
    lines = "".join(json.dumps(evaluation) + "\n" for evaluation in measured)
    (path / "metrics.jsonl").write_text(lines + torn)
    (path / "split.json").write_text(json.dumps(split(configuration.get("seed", 0))))
    return path


def write_all(root: Path, seeds: int = 2) -> list[Path]:
    """Write a run for each of four methods and each seed; return their directories."""
    return [
        write_run(
            root / f"{method['name']}-{seed}", config(method, seed), evaluations(method, seed)
        )
        for method, *_ in METHODS
        for seed in range(seeds)
    ]
