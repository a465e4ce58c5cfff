"""Follow run directories: read what has changed, and tell the live page."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedtern.core.errors import FedternError
from fedtern.data.metric_spec import MetricSpec
from fedtern.report.formatting import format_value
from fedtern.report.groups import group_runs
from fedtern.runs.config_file import ConfigFile
from fedtern.runs.recorded_run import RecordedRun, finite_number
from fedtern.runs.status import FINISHED, RUNNING, STATUS_FILE, STOPPED, RecordedStatus, read_status

COLUMNS = (
    "iteration",
    "round",
    "loss",
    "metric",
    "up_bytes_mean",
    "down_bytes_mean",
    "up_bytes",
    "down_bytes",
    "dense_bytes",
    "seconds",
)
"""Values of one evaluation, in the order of a row."""

Row = list[float | None]
Signature = tuple[tuple[int, int, int] | None, ...]

_FILES = ("config.json", "metrics.jsonl", STATUS_FILE)
_SAMPLES = 240  # of the traffic per second: two minutes at two per second
_MOST_ROWS = 1500  # of one run; of longer ones, the page gets a regular selection


@dataclass(frozen=True)
class Sample:
    """Traffic of all clients between two writes of a status.

    Attributes:
        time: Seconds since 1970.
        up: Bytes per second from the clients to the server.
        down: Bytes per second from the server to the clients.

    """

    time: float
    up: float
    down: float


@dataclass(eq=False)
class WatchedRun:
    """What is known about one run directory.

    Attributes:
        path: The directory.
        config: Content of ``config.json``.
        label: Name on the page, unique among the runs.
        rows: Evaluations; see ``COLUMNS``.
        generation: Increases when rows were removed, as when a run is resumed.
        revision: Version of the watcher at the last change.
        status: Content of ``status.json``.
        state: ``RUNNING``, ``STOPPED`` or ``FINISHED``.
        samples: The latest traffic.

    """

    path: Path
    config: Mapping[str, Any]
    label: str = ""
    rows: list[Row] = field(default_factory=list)
    generation: int = 0
    revision: int = 0
    status: RecordedStatus | None = None
    state: str = STOPPED
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    signature: Signature = ()
    offset: int = 0  # bytes of metrics.jsonl that were read
    inode: int = 0

    @property
    def id(self) -> str:
        """The directory, which identifies the run on the page."""
        return str(self.path)

    def head(self) -> dict[str, Any]:
        """Return everything but the evaluations for the page."""
        config = self.config
        recorded = self.status
        iterations = config.get("iterations")
        planned = iterations if isinstance(iterations, int) else None
        method = config.get("method", {})
        steps = method.get("local_steps", 1) if isinstance(method, Mapping) else 1
        steps = steps if isinstance(steps, int) and steps > 0 else 1
        return {
            "id": self.id,
            "label": self.label,
            "task": format_value(config.get("task", "")),
            "engine": str(config.get("engine", "local")),
            "metric": MetricSpec.of_run(config).to_json(),
            "iterations": planned,
            "rounds": None if planned is None else -(-planned // steps),
            "parameters": finite_number(config, "parameters"),
            "state": self.state,
            "status": None if recorded is None else asdict(recorded.status),
            "updated": None if recorded is None else recorded.updated,
            "started": None if recorded is None else recorded.started,
            "eta": self._remaining_seconds(recorded, planned),
            "samples": [[round(s.time, 2), round(s.up), round(s.down)] for s in self.samples],
        }

    def _remaining_seconds(
        self, recorded: RecordedStatus | None, planned: int | None
    ) -> float | None:
        if recorded is None or self.state != RUNNING:
            return None
        return recorded.remaining_seconds(planned)


class Watcher:
    """Follows run directories in a thread.

    Args:
        paths: Run directories, and directories of run directories. They do not have to exist yet.
        interval: Seconds between two looks at the files.
        most_runs: Follow only this many runs, the ones that changed last.

    """

    def __init__(
        self, paths: Iterable[Path], *, interval: float = 0.5, most_runs: int = 50
    ) -> None:
        self.paths = [Path(path) for path in paths]
        self.interval = interval
        self.most_runs = most_runs
        self.version = 0
        self.ended = False
        self.changed = threading.Condition()
        self._runs: dict[Path, WatchedRun] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look at the files once, then start the thread."""
        self.scan()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="fedtern watch")
        self._thread.start()

    def close(self) -> None:
        """Look at the files for the last time and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.scan()
        with self.changed:
            self.ended = True
            self.version += 1
            self.changed.notify_all()

    def runs(self) -> list[WatchedRun]:
        """Return the runs, the one that changed last first; hold ``changed``."""
        return list(self._runs.values())

    def _follow(self) -> None:
        while not self._stop.wait(self.interval):
            self.scan()

    def scan(self) -> None:
        """Read the files that have changed."""
        found = self._find()
        with self.changed:
            version = self.version + 1
            before = list(self._runs)
            runs = {}
            for path in found:
                run = self._runs.get(path) or _open(path)
                if run is not None:
                    runs[path] = run
                    if _refresh(run):
                        run.revision = version
            self._runs = runs
            if list(runs) != before:
                _label(list(runs.values()), version)
            if list(runs) != before or any(run.revision == version for run in runs.values()):
                self.version = version
                self.changed.notify_all()

    def _find(self) -> list[Path]:
        """Return the run directories, the one that changed last first."""
        times: dict[Path, float] = {}
        for path in _directories(self.paths):
            with suppress(OSError):
                times[path] = max(
                    file.stat().st_mtime for name in _FILES if (file := path / name).exists()
                )
        return sorted(times, key=lambda path: -times[path])[: self.most_runs]


def _directories(paths: Sequence[Path]) -> Iterator[Path]:
    for path in dict.fromkeys(path.resolve() for path in paths):
        if (path / "config.json").exists():
            yield path
            continue
        with suppress(OSError):
            yield from (each for each in path.iterdir() if (each / "config.json").exists())


def _open(path: Path) -> WatchedRun | None:
    with suppress(FedternError):  # the process that writes it may not have finished
        config = ConfigFile(path / "config.json").read()
        if isinstance(config.get("method"), dict):
            return WatchedRun(path, config)
    return None


def _refresh(run: WatchedRun) -> bool:
    """Read what has changed in a run directory; return whether the page has to know."""
    signature = tuple(_file_signature(run.path / name) for name in _FILES)
    before = (run.state, run.signature)
    if signature != run.signature:
        if signature[0] != (run.signature or (None,))[0]:
            with suppress(FedternError):
                run.config = ConfigFile(run.path / "config.json").read() or run.config
        _read_rows(run)
        _read_status(run)
        run.signature = signature
    run.state = _state(run)
    return (run.state, run.signature) != before


def _file_signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _state(run: WatchedRun) -> str:
    if run.config.get("finished"):
        return FINISHED
    if run.status is None:
        return STOPPED
    if run.status.state == RUNNING:
        return RUNNING if run.status.is_alive(time.time()) else STOPPED
    return run.status.state


def _read_rows(run: WatchedRun) -> None:
    """Read the lines that were added to ``metrics.jsonl``; all of them if it was replaced."""
    path = run.path / "metrics.jsonl"
    try:
        with path.open("rb") as file:
            found = path.stat()
            if found.st_ino != run.inode or found.st_size < run.offset:
                run.inode = found.st_ino
                run.offset = 0
                run.rows = []
                run.generation += 1
            file.seek(run.offset)
            data = file.read()
    except OSError:
        return
    complete = data[: data.rfind(b"\n") + 1]
    run.offset += len(complete)
    metric = MetricSpec.of_run(run.config)
    for line in complete.splitlines():
        # A page that is only looked at shows what it can read.
        with suppress(ValueError):
            evaluation = json.loads(line)
            if isinstance(evaluation, dict):
                run.rows.append(_row(evaluation, metric))


def _row(evaluation: Mapping[str, Any], metric: MetricSpec) -> Row:
    seconds = evaluation.get("seconds")
    values: dict[str, float | None] = {
        name: finite_number(evaluation, name) for name in COLUMNS if name != "seconds"
    }
    values["metric"] = metric.value(evaluation)
    values["seconds"] = None
    if isinstance(seconds, Mapping):
        spent = (finite_number(seconds, name) for name in seconds)
        values["seconds"] = sum(value for value in spent if value is not None)
    return [values[name] for name in COLUMNS]


def _read_status(run: WatchedRun) -> None:
    found = read_status(run.path)
    if found is None:
        return
    before = run.status
    run.status = found
    if before is None or before.pid != found.pid or found.updated <= before.updated:
        return
    seconds = found.updated - before.updated
    up = (found.status.up_bytes - before.status.up_bytes) / seconds
    down = (found.status.down_bytes - before.status.down_bytes) / seconds
    if up >= 0 and down >= 0:
        run.samples.append(Sample(found.updated, up, down))


def _label(runs: Sequence[WatchedRun], version: int) -> None:
    """Name runs by their method and the settings that differ between them."""
    recorded = {run.path: RecordedRun(run.path, run.config) for run in reversed(runs)}
    labels: dict[Path, str] = {}
    for group in group_runs(list(recorded.values())):
        for each in group.runs:
            seed = format_value(each.config.get("seed"))
            labels[each.path] = (
                f"{group.label}, seed {seed}" if len(group.runs) > 1 else group.label
            )
    for run in runs:
        if run.label != labels[run.path]:
            run.label = labels[run.path]
            run.revision = version


class Subscription:
    """The changes that one page has not received yet.

    Args:
        watcher: The watcher.

    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self._version = -1
        self._sent: dict[str, tuple[int, int]] = {}  # generation and number of rows, by run

    def wait(self, timeout: float) -> list[tuple[str, dict[str, Any]]]:
        """Wait for changes and return them as events: pairs of a name and its data.

        Args:
            timeout: Seconds; after them, the list is empty.

        """
        watcher = self.watcher
        with watcher.changed:
            watcher.changed.wait_for(lambda: watcher.version > self._version, timeout)
            runs = watcher.runs()
            events = [("run", self._changes(run)) for run in runs if run.revision > self._version]
            known = {run.id for run in runs}
            gone = [each for each in self._sent if each not in known]
            for each in gone:
                del self._sent[each]
            if gone:
                events.append(("gone", {"ids": gone}))
            if watcher.ended:
                events.append(("end", {}))
            self._version = watcher.version
        return events

    def _changes(self, run: WatchedRun) -> dict[str, Any]:
        generation, count = self._sent.get(run.id, (-1, 0))
        rows = run.rows
        start = count if generation == run.generation else 0
        new = rows[start:]
        every = -(-len(new) // _MOST_ROWS)
        if every > 1:
            new = new[(len(new) - 1) % every :: every]  # with the last one
        self._sent[run.id] = (run.generation, len(rows))
        return {**run.head(), "rows": new, "replace": start == 0}
