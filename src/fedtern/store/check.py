"""Examine a store without opening its state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedtern.core.envelope import BROADCAST, unseal
from fedtern.core.errors import DecodeError, StoreError
from fedtern.core.snapshot import Snapshot
from fedtern.store.log import LogReport, examine_log, read_log

_BROADCAST_RECORDS = (b"B", b"E")
_ROUND_AT = 9  # offset of the round in the body of a message


@dataclass(frozen=True)
class StoreReport:
    """The condition of a store.

    Attributes:
        path: the directory.
        facts: contents of the store by name.
        damage: lost data, each as a sentence; empty if nothing is lost.
        notes: damage that loses nothing, because the data exists twice, and data that was never
            acknowledged.

    """

    path: Path
    facts: dict[str, str]
    damage: tuple[str, ...]
    notes: tuple[str, ...]


def examine_store(path: Path) -> StoreReport:
    """Return the condition of a store, without any change of its files.

    Args:
        path: the directory of a server or a client.

    Raises:
        StoreError: the directory is not a store, or cannot be read.

    """
    found = [*path.glob("*.safetensors"), *path.glob("*.log")]
    generations = sorted({int(file.stem) for file in found if file.stem.isdecimal()})
    if not generations:
        raise StoreError(f"{path} is not a store: it has no snapshot and no log")
    try:
        return _examine(path, generations)
    except OSError as error:
        raise StoreError(f"cannot read the store {path}: {error}") from error


def _examine(path: Path, generations: list[int]) -> StoreReport:
    damage: list[str] = []
    notes: list[str] = []
    start, first, problems = _newest_snapshot(path, generations)
    if start is None:
        damage += [*problems, "no snapshot leads to the newest state"]
    else:
        notes += [f"{problem}; an older snapshot replaces it" for problem in problems]
    facts = {} if start is None else _facts_of(start)
    newest = generations[-1]
    for generation in generations:
        report = _examine_log(path, generation)
        problem = report if isinstance(report, str) else report.damage
        if problem is not None:
            (damage if generation >= first else notes).append(problem)
        if isinstance(report, str):
            continue
        if report.note is not None:
            notes.append(report.note)
        if generation == newest:
            facts["records of the newest log"] = str(report.intact)
            if report.commit is not None and report.commit.is_followed:
                damage.append(f"the snapshot after {report.path.name} is missing, with its log")
    if start is not None:
        facts["round that can be recovered"] = str(_last_round(path, start, first, newest))
    return StoreReport(path, facts, tuple(damage), tuple(notes))


def _newest_snapshot(path: Path, generations: list[int]) -> tuple[Snapshot | None, int, list[str]]:
    """Return the snapshot that a recovery starts from, its number, and why not a newer one."""
    problems: list[str] = []
    newest = generations[-1]
    for generation in reversed(generations):
        if generation != newest - len(problems):
            break
        file = path / f"{generation:08d}.safetensors"
        try:
            return Snapshot.from_bytes(file.read_bytes()), generation, problems
        except FileNotFoundError:
            problems.append(f"{file.name} is missing")
        except DecodeError as error:
            problems.append(f"{file.name}: {error}")
    return None, newest, problems


def _facts_of(snapshot: Snapshot) -> dict[str, str]:
    names = {name: name for name in ("kind", "federation", "client")}
    names["round"] = "round of the snapshot"
    meta = snapshot.meta
    return {
        title: str(meta[name]) for name, title in names.items() if meta.get(name) not in (None, "")
    }


def _examine_log(path: Path, generation: int) -> LogReport | str:
    log = path / f"{generation:08d}.log"
    if log.exists():
        return examine_log(log)
    if log.with_name(f"{log.name}.new").exists():
        return examine_log(log.with_name(f"{log.name}.new"))
    return f"{log.name} is missing: all changes after its snapshot are lost"


def _last_round(path: Path, start: Snapshot, first: int, newest: int) -> int:
    """Return the round that the readable records lead to."""
    round = int(start.meta["round"])
    for generation in range(first, newest + 1):
        log = path / f"{generation:08d}.log"
        for record in read_log(log) if log.exists() else []:
            if start.meta.get("kind") == "server":
                round += record[:1] in _BROADCAST_RECORDS
            else:
                kind, reader = unseal(record)
                reader.take(_ROUND_AT)
                round = max(round, reader.u32() + (kind == BROADCAST))
    return round
