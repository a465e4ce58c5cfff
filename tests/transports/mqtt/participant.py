"""One side of the federation of ``upload_audit.py`` as a process that can be killed.

python participant.py serve PORT DIRECTORY ROUNDS
python participant.py join PORT DIRECTORY CLIENT SECONDS
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from upload_audit import new_client, new_server, trainer

from fedtern import DurableClient, DurableServer, Store
from fedtern.transports.mqtt import Broker, RoundPolicy, Sample, join, serve

SETTINGS = {"deadline": 3.0, "quorum": 2, "min_clients": 2, "grace": 0.5}


async def main(role: str, port: str, directory: str, number: str, seconds: str = "0") -> None:
    broker = Broker("127.0.0.1", int(port))
    slow = Path(directory).with_name("slow")
    with Store(directory) as store:
        if role == "serve":
            server = DurableServer(new_server(), store)
            await serve(server, broker, RoundPolicy(Sample(size=3), rounds=int(number), **SETTINGS))
        else:
            client = DurableClient(new_client(int(number)), store)
            learn = trainer(int(number))

            def train(weights, round):
                # Slow rounds, so that a client can restart in the meantime.
                time.sleep(0.5 if slow.exists() else float(seconds))
                return learn(weights, round)

            await join(client, train, broker)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
