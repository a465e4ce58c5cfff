"""Runs that nobody trained: directories as a finished run leaves them."""

from __future__ import annotations

import json
from dataclasses import asdict

from fedtern.engines.local import Round
from fedtern.experiments import open_run


def finish(out, cell, *accuracies, up=1e3, down=1e4, seconds=1.0):
    """Pretend that a cell was run and tested so well each time; bytes are those of each round."""
    run = open_run(cell, out)
    run.create()
    local, tests = cell.make_method().local_steps, len(accuracies)
    lines = []
    for number, accuracy in enumerate(accuracies, 1):
        iteration = cell.iterations * number // tests
        rounds = -(-iteration // local)
        found = Round(
            iteration, rounds, 0.5, accuracy, 0, 0, up * rounds, down * rounds, up * rounds / 2,
            down * rounds / 2, int(1e6) * iteration, {"train": seconds, "evaluate": 0.0},
        )  # fmt: skip
        lines.append(json.dumps(asdict(found)) + "\n")
    run.metrics.write_text("".join(lines))
    config = run.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "finished": True}))
