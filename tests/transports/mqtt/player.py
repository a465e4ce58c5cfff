"""One side of the federation of ``audit.py`` in a process of its own, to be killed.

python player.py serve PORT DIRECTORY ROUNDS | python player.py join PORT DIRECTORY CLIENT SECONDS
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from upload_audit import new_client, new_server, trainer

from fedtern import DurableClient, DurableServer, Store
from fedtern.transports.mqtt import Broker, RoundPolicy, Sample, join, serve

PLAN = {"deadline": 3.0, "quorum": 2, "least": 2, "grace": 0.5}


async def main(role: str, port: str, directory: str, number: str, seconds: str = "0") -> None:
    broker, slow = Broker("127.0.0.1", int(port)), Path(directory).with_name("slow")
    with Store(directory) as store:
        if role == "serve":
            server = DurableServer(new_server(), store)
            await serve(server, broker, RoundPolicy(Sample(size=3), rounds=int(number), **PLAN))
        else:
            client, learn = DurableClient(new_client(int(number)), store), trainer(int(number))

            def train(weights, round):
                # While somebody is starting, rounds take their time.
                time.sleep(0.5 if slow.exists() else float(seconds))
                return learn(weights, round)

            await join(client, train, broker)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
