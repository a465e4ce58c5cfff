"""Flower federations that send a hundredth or a thousandth of the bytes.

``ClientApp(mods=[compression()])`` on the nodes, ``Compressed(strategy, method=...)`` round the
strategy of the server; what clients train, and how, does not change.
"""

from fedtern.core.extras import require

require(
    "flwr", "flower", "fedtern.transports.flower"
)  # before an import below fails less helpfully

from fedtern.transports.flower.mod import compression as compression  # noqa: E402
from fedtern.transports.flower.strategy import Compressed as Compressed  # noqa: E402

__all__ = ["Compressed", "compression"]
