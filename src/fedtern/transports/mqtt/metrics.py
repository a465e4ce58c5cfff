"""Counters of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedtern.core.errors import FedternError
from fedtern.core.extras import require
from fedtern.core.kernels import describe_kernels
from fedtern.core.version import __version__
from fedtern.transports.mqtt.stats import Stats

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Collector:
    """Reads the counters each time Prometheus asks for them."""

    def __init__(self, stats: Stats, federation: str) -> None:
        self.stats = stats
        self.federation = federation

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self.stats
        counters = {
            "rounds": ("Finished rounds.", stats.rounds),
            "rounds_void": ("Rounds without a quorum.", stats.void),
            "rounds_abandoned": ("Secure rounds without a sum.", stats.abandoned),
            "uploads_counted": ("Uploads that are part of a broadcast.", stats.counted),
            "uploads_capped": ("Counted uploads with limited influence.", stats.capped),
            "uploads_late": ("Uploads for finished rounds.", stats.refused["late"]),
            "catch_ups": ("Answered requests to catch up.", stats.catch_ups),
            "connections": ("Connections to the broker.", stats.connections),
            "floods": ("Times that a client was muted because it flooded.", stats.floods),
        }
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(f"fedtern_{name}", text, labels=["federation"])
            counter.add_metric([self.federation], value)
            yield counter
        gauges: dict[str, tuple[str, float]] = {
            "clients_present": ("Clients that are present.", stats.present),
            "clients_muted": ("Clients whose topics are not received.", stats.muted),
            "clients_resting": (
                "Clients that are present and not selected, because they missed deadlines.",
                stats.resting,
            ),
            "cohort": ("Clients that are selected for the open round.", stats.cohort),
        }
        if (spent := stats.privacy) is not None:
            gauges["privacy_epsilon"] = ("Largest privacy loss of any client.", spent.epsilon)
            gauges["privacy_delta"] = ("Probability that epsilon may fail.", spent.delta)
            if spent.budget is not None:
                gauges["privacy_budget"] = ("Largest epsilon that is allowed.", spent.budget)
        if stats.evaluated_round is not None:
            gauges["evaluated_round"] = ("Round of the last evaluation.", stats.evaluated_round)
        for name, (text, level) in gauges.items():
            gauge = GaugeMetricFamily(f"fedtern_{name}", text, labels=["federation"])
            gauge.add_metric([self.federation], level)
            yield gauge
        scores = GaugeMetricFamily(
            "fedtern_score",
            "Loss and metrics of the last evaluation on the test data.",
            labels=["federation", "metric"],
        )
        for name, score in stats.scores.items():
            scores.add_metric([self.federation, name], score)
        yield scores
        build = GaugeMetricFamily(
            "fedtern_build_info",
            "Version of fedtern and its kernels; the value is 1.",
            labels=["federation", "version", "kernels"],
        )
        build.add_metric([self.federation, __version__, describe_kernels()], 1)
        yield build
        payload_bytes = {
            "up": stats.up_bytes,
            "dropped": stats.dropped_bytes,
            "announced": stats.announced_bytes,
            "catch-up": stats.catch_up_bytes,
            "secure": stats.secure_bytes,
        }
        tables: dict[str, tuple[str, str, Mapping[str, float]]] = {
            "messages_refused": ("Refused messages.", "reason", stats.refused),
            "phase_seconds": ("Seconds by phase.", "phase", stats.seconds),
            "payload_bytes": (
                "Payload bytes; an announcement counts once.",
                "direction",
                payload_bytes,
            ),
        }
        for name, (text, label, values) in tables.items():
            labels = ["federation", label]
            counter = CounterMetricFamily(f"fedtern_{name}", text, labels=labels)
            for key, amount in values.items():
                counter.add_metric([self.federation, key], amount)
            yield counter


@contextmanager
def serve_metrics(
    stats: Stats, federation: str, port: int | None, address: str = "127.0.0.1"
) -> Iterator[None]:
    """Serve the counters at ``/metrics`` of a port; do nothing if ``port`` is None.

    The page also has ``process_*``, on Linux, and ``python_info``.

    Raises:
        FedternError: the port is not available.

    """
    if port is None:
        yield
        return
    prometheus = require("prometheus_client", "mqtt", "--metrics-port")
    registry = prometheus.CollectorRegistry()
    registry.register(Collector(stats, federation))
    prometheus.ProcessCollector(registry=registry)
    prometheus.PlatformCollector(registry=registry)
    try:
        server, thread = prometheus.start_http_server(port, address, registry)
    except OSError as error:
        raise FedternError(f"Metrics port {port} cannot be used: {error.strerror}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
