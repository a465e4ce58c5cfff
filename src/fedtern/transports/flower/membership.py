"""A node's record of the federation that it belongs to."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from logging import WARNING

from flwr.common import log

from fedtern.transports.flower.client_state import ClientState
from fedtern.transports.flower.federation_spec import FederationSpec

_NOTE = "membership"
_SPEC = "charter"  # key in the file; nodes have files with this name


@dataclass(frozen=True)
class Membership:
    """The federation of a node, and the number of its client.

    Attributes:
        spec: The federation.
        client: Number of the node's client; None before the server has assigned one.
        mark: Random bytes that tell this state from that of any other node. Client numbers cannot
            do this: a server that starts again may assign a number that a client has from before,
            and two nodes may have been configured with the same directory.

    """

    spec: FederationSpec
    client: int | None = None
    mark: bytes = field(default_factory=lambda: secrets.token_bytes(8))

    @classmethod
    def read(cls, state: ClientState) -> Membership | None:
        """Return the membership in a node's state; None if it is missing or damaged."""
        if (text := state.read_note(_NOTE)) is None:
            return None
        try:
            values = json.loads(text)
            number = values["client"]
            spec = FederationSpec.from_json(values[_SPEC])
            mark = bytes.fromhex(values["mark"])
            return cls(spec, None if number is None else int(number), mark)
        except (KeyError, TypeError, ValueError) as error:
            log(
                WARNING,
                "fedtern: the membership of this node is damaged (%s): joining as a new client,"
                " with an empty residual",
                error,
            )
            return None

    def has_ended(self, offered: FederationSpec) -> bool:
        """Return whether this federation cannot be the offered one, and will not continue."""
        if self.spec.session != offered.session:
            return bool(self.spec.session or offered.session)
        # A directory has the name of its federation; a context is the same for all.
        return self.spec.federation != offered.federation

    def write(self, state: ClientState) -> None:
        """Save the membership in a node's state."""
        values = {"client": self.client, "mark": self.mark.hex(), _SPEC: self.spec.to_json()}
        state.write_note(_NOTE, json.dumps(values))
