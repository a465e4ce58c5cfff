"""What the two numbers of bytes mean. Everything that shows bytes uses these words.

A federation has two bills. A client pays for the rounds that it takes part in, and the server pays
for all clients. ``Evaluation`` has both: ``up_bytes_mean`` and ``down_bytes_mean`` for one client,
``up_bytes`` and ``down_bytes`` for the server.

Over MQTT, every client that is present receives each broadcast, so that downloads per client are
those of a client that is present.
"""

from __future__ import annotations

PER_CLIENT = (
    "Per client: bytes per participating client, which is the mean over the clients of each round,"
    " summed over rounds."
)
AT_SERVER = "At the server: bytes of all clients together; up is received, down is sent."
MEASURED = "Bytes are lengths of encoded messages that the other side decoded, with catch-ups."
DENSE = "Dense: the size of uncompressed updates at every iteration, in one direction, per client."
DEFINITIONS = f"{PER_CLIENT} {AT_SERVER}"
