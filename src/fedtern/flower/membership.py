"""A node's own record of the federation it belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from logging import WARNING

from flwr.common import log

from fedtern.flower.charter import Charter
from fedtern.flower.homes import Home

_NOTE = "membership"


@dataclass(frozen=True)
class Membership:
    """What the federation is, and which of its clients this node is; None before it was told."""

    charter: Charter
    client: int | None = None

    @classmethod
    def read(cls, home: Home) -> Membership | None:
        """What a node has noted; None where it has not, or where that cannot be read."""
        if (text := home.note(_NOTE)) is None:
            return None
        try:
            noted = json.loads(text)
            client = noted["client"]
            return cls(Charter.from_json(noted["charter"]), None if client is None else int(client))
        except (KeyError, TypeError, ValueError) as error:
            log(WARNING, "fedtern: this node no longer knows its federation (%s): joining it as a"
                " new client, with an empty residual", error)  # fmt: skip
            return None

    def write(self, home: Home) -> None:
        """Note it."""
        home.take_note(
            _NOTE, json.dumps({"client": self.client, "charter": self.charter.to_json()})
        )
