"""Measure time and memory of a large model in a deployment, with and without compression.

`python examples/flower/large_model.py` starts a SuperLink and two SuperNodes on the loopback
interface, and runs the app `large` twice. It reads CPU time and peak memory of each process
from /proc, so that it works on Linux only.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

from processes import Processes, descendants

APP = Path(__file__).parent / "large"
NODES = 2
TICKS = 100  # per second, in /proc on every Linux


class Watch(threading.Thread):
    """Notes CPU time and peak memory of all processes that some processes start."""

    def __init__(self, roots: list[int]) -> None:
        super().__init__(daemon=True)
        self.roots = roots
        self.seen: dict[int, tuple[str, float, float]] = {}  # name, CPU seconds, peak in GB
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            for root in self.roots:
                for pid in [root, *descendants(root)]:
                    self.look(pid)

    def look(self, pid: int) -> None:
        process = Path(f"/proc/{pid}")
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            peak = re.search(r"VmHWM:\s+(\d+)", (process / "status").read_text())
        except OSError:
            return
        kinds = ("flwr-clientapp", "flwr-serverapp", "flower-superlink", "flower-supernode")
        name = next((kind for kind in kinds if kind in command), "")
        if peak is not None and name:
            seconds = (int(fields[11]) + int(fields[12])) / TICKS
            self.seen[pid] = name, seconds, int(peak[1]) / 1e6

    def end(self) -> None:
        self._ended.set()
        self.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6, help="16.8 million parameters each")
    parser.add_argument("--only", choices=("plain", "compressed"))
    parser.add_argument("--initial", default="exact", help="precision of the first download")
    parser.add_argument("--no-database", action="store_true", help="SuperLink without a database")
    parser.add_argument(
        "--directory", type=Path, help="directory for all files (default: a temporary one)"
    )
    options = parser.parse_args()
    for mode in (options.only,) if options.only else ("plain", "compressed"):
        with tempfile.TemporaryDirectory() as scratch:
            directory = options.directory or Path(scratch)
            measure((directory / mode).resolve(), mode, options)


def measure(directory: Path, mode: str, options: argparse.Namespace) -> None:
    """Run the app once and print what it took."""
    with Processes(directory) as here:
        here.superlink(database=not options.no_database)
        for number in range(NODES):
            here.supernode(number, NODES)
        watch = Watch([process.pid for process in here.running.values()])
        watch.start()
        started = time.time()
        run = here.run(
            APP,
            "run",
            compressed=mode == "compressed",
            layers=options.layers,
            num_server_rounds=options.rounds,
            initial=options.initial,
        )
        here.wait("the run to end", lambda: run.poll() is not None, 1800)
        watch.end()
        said = here.said("run")
        if "Final results" not in said:
            raise RuntimeError(said[-3000:])
        states = sum(f.stat().st_size for f in directory.glob("state-0/**/*") if f.is_file())
    times = [float(found) for found in re.findall(r"finished round \d+ at ([\d.]+)", said)]
    rounds = [f"{end - begin:.1f}" for begin, end in pairwise(times)]
    print(f"{mode}: {times[0] - started:.1f} s to start, then {' + '.join(rounds)} s per round")
    for kind in ("flwr-clientapp", "flwr-serverapp", "flower-superlink", "flower-supernode"):
        found = sorted(v for v in watch.seen.values() if v[0] == kind)
        cpu = " ".join(f"{seconds:.1f}" for _, seconds, _ in found)
        memory = " ".join(f"{peak:.2f}" for _, _, peak in found)
        print(f"  {kind:17} CPU s: {cpu:40} peak GB: {memory}")
    for name, value in re.findall(r"'(payload-\w+-bytes|wire-\w+-bytes)': '(\d+)'", said)[-4:]:
        print(f"  {name}: {int(value) / 1e6:.1f} MB")
    print(f"  state of a client: {states / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
