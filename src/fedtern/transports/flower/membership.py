"""A node's own record of the federation it belongs to."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from logging import WARNING

from flwr.common import log

from fedtern.transports.flower.client_state import ClientState
from fedtern.transports.flower.federation_spec import FederationSpec

_NOTE = "membership"


@dataclass(frozen=True)
class Membership:
    """What the federation is, and which of its clients this node is; None before it was told.

    ``mark`` tells this state from that of any other node: a server that begins again may give a
    number out that a client has from before, and two nodes may have been given one directory.
    """

    charter: FederationSpec
    client: int | None = None
    mark: bytes = field(default_factory=lambda: secrets.token_bytes(8))

    @classmethod
    def read(cls, home: ClientState) -> Membership | None:
        """What a node has noted; None where it has not, or where that cannot be read."""
        if (text := home.note(_NOTE)) is None:
            return None
        try:
            noted = json.loads(text)
            client, charter = noted["client"], FederationSpec.from_json(noted["charter"])
            mark = bytes.fromhex(noted["mark"])
            return cls(charter, None if client is None else int(client), mark)
        except (KeyError, TypeError, ValueError) as error:
            log(WARNING, "fedtern: this node no longer knows its federation (%s): joining it as a"
                " new client, with an empty residual", error)  # fmt: skip
            return None

    def write(self, home: ClientState) -> None:
        """Note it."""
        charter, mark = self.charter.to_json(), self.mark.hex()
        note = json.dumps({"client": self.client, "mark": mark, "charter": charter})
        home.take_note(_NOTE, note)
