"""Compressed messages for Flower apps.

Add the mod to the ``ClientApp``, and wrap the strategy of the ``ServerApp``; the functions that
train and evaluate stay as they are::

    app = ClientApp(mods=[compression()])
    strategy = Compressed(FedAvg(), stc(p_up=1 / 100, p_down=1 / 100))
"""

from fedtern.core.extras import require

# Before the imports below, which would fail without naming the extra to install.
require("flwr", "flower", "fedtern.transports.flower")

from fedtern.transports.flower.legacy import (  # noqa: E402
    compressed_server_app as compressed_server_app,
)
from fedtern.transports.flower.mod import compression as compression  # noqa: E402
from fedtern.transports.flower.strategy import Compressed as Compressed  # noqa: E402

__all__ = ["Compressed", "compressed_server_app", "compression"]
