"""A run's ``metrics.jsonl``: where things stood at each evaluation, one a line."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedtern.core.errors import StoreError
from fedtern.transports.local.federation import Round


def as_json(found: Round) -> dict[str, Any]:
    """An evaluation as JSON has it."""
    # JSON has no infinity: a loss that is none is written as null.
    return {**asdict(found), "loss": found.loss if math.isfinite(found.loss) else None}


def write_round(found: Round) -> str:
    """A line of the file."""
    return json.dumps(as_json(found), allow_nan=False) + "\n"


def read_rounds(path: Path) -> list[Round]:
    """Every evaluation so far; a line that was cut off is left out."""
    if not path.exists():
        return []
    try:
        return [_round(json.loads(line)) for line in path.read_text().split("\n")[:-1]]
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{path} is damaged, or another version's ({error}): move its directory away"
        ) from error


def read_all_rounds(path: Path, iterations: int) -> list[Round]:
    """Every evaluation of a run that is finished, and so was trained for so many iterations."""
    rounds = read_rounds(path)
    if not rounds or rounds[-1].iteration < iterations:
        what = "ends early" if rounds else "is missing or empty"
        raise StoreError(
            f"{path} {what}, though its run is finished: move {path.parent} away to run it again"
        )
    return rounds


def _round(values: dict[str, Any]) -> Round:
    loss = math.inf if values["loss"] is None else values["loss"]
    return Round(**{**values, "loss": loss})
