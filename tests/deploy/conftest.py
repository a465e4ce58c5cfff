from __future__ import annotations

import pytest

for module in ("aiomqtt", "prometheus_client", "yaml"):
    pytest.importorskip(module)
