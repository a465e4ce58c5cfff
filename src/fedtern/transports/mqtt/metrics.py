"""A server's counters for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedtern.core.errors import FedternError
from fedtern.core.extras import require
from fedtern.transports.mqtt.stats import Stats

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Collector:
    """Reads the counters when they are asked for, and never in between."""

    def __init__(self, stats: Stats, federation: str) -> None:
        self.stats, self.federation = stats, federation

    def collect(self) -> Iterator[Metric]:
        """Everything there is to know."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats, names = self.stats, ["federation"]
        counters = {
            "rounds": ("Rounds that have ended.", stats.rounds),
            "rounds_void": ("Rounds that ended without a quorum.", stats.void),
            "uploads_counted": ("Uploads that are in a broadcast.", stats.counted),
            "uploads_late": ("Uploads to rounds that were over.", stats.refused["late"]),
            "catch_ups": ("Catch-ups that were asked for.", stats.catch_ups),
            "connections": ("Connections to the broker.", stats.connections),
        }
        for name, (about, value) in counters.items():
            yield _one(CounterMetricFamily(f"fedtern_{name}", about, labels=names), self, value)
        gauges = {
            "clients_present": ("Clients that are connected.", stats.present),
            "cohort": ("Clients called to the round that is open.", stats.cohort),
        }
        for name, (about, value) in gauges.items():
            yield _one(GaugeMetricFamily(f"fedtern_{name}", about, labels=names), self, value)
        tables: dict[tuple[str, str, str], Mapping[str, float]] = {
            ("messages_refused", "reason", "Messages that were refused."): stats.refused,
            ("phase_seconds", "phase", "Seconds spent in each phase."): stats.seconds,
            ("payload_bytes", "way", "Payloads; an announcement counts once."): {
                "up": stats.up_bytes,
                "announced": stats.announced_bytes,
                "catch-up": stats.catch_up_bytes,
            },
        }
        for (name, label, about), values in tables.items():
            family = CounterMetricFamily(f"fedtern_{name}", about, labels=[*names, label])
            for key, amount in values.items():
                family.add_metric([self.federation, key], amount)
            yield family


def _one(family: Metric, collector: Collector, value: float) -> Metric:
    family.add_metric([collector.federation], value)  # type: ignore[attr-defined]
    return family


@contextmanager
def exported(
    stats: Stats, federation: str, port: int | None, address: str = "127.0.0.1"
) -> Iterator[None]:
    """Show the counters at ``/metrics`` on a port; on none if there is no port."""
    if port is None:
        yield
        return
    prometheus = require("prometheus_client", "mqtt", "a port for metrics")
    registry = prometheus.CollectorRegistry()
    registry.register(Collector(stats, federation))
    try:
        server, thread = prometheus.start_http_server(port, address, registry)
    except OSError as error:
        raise FedternError(f"metrics port {port} cannot be used: {error.strerror}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
