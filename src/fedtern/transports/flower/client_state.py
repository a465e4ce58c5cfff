"""Where a node keeps what a client must not forget: its directory, or a simulation's context."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from logging import WARNING
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from flwr.app import ConfigRecord, Context, RecordDict
from flwr.common import log

from fedtern.core.errors import DecodeError, StoreError
from fedtern.core.protocol import Client
from fedtern.core.snapshot import Snapshot
from fedtern.federation.interfaces import ClientLike
from fedtern.store import DurableClient, Store
from fedtern.store.files import write_atomic
from fedtern.transports.flower.messages import KEY

STATE_DIRECTORY = "fedtern-state"  # in a node's configuration
SHARED = f"two nodes must not share one state directory: give each its own {STATE_DIRECTORY}"
_STATE = "state"
Make = Callable[[], Client]


class ClientState(Protocol):
    """A client's state, and notes beside it."""

    def alone(self) -> AbstractContextManager[object]:
        """Keep everybody else out while the context lasts; nothing else is to be called outside."""
        ...

    def note(self, name: str) -> str | None:
        """What was noted under a name."""
        ...

    def take_note(self, name: str, text: str) -> None:
        """Note something, durably."""
        ...

    def client(self, make: Make, *, fresh: bool = False) -> AbstractContextManager[ClientLike]:
        """The client as it was left, while the context lasts.

        With ``fresh``, or where it cannot be read, that is forgotten and the client is a new one;
        notes stay.
        """
        ...


class ContextClientState:
    """A record in the state that Flower keeps for a node of a simulation."""

    def __init__(self, state: RecordDict) -> None:
        if KEY not in state:
            state[KEY] = ConfigRecord()
        self._record = state.config_records[KEY]

    def alone(self) -> AbstractContextManager[object]:
        """A simulation gives a context to one process at a time."""
        return nullcontext()

    def note(self, name: str) -> str | None:
        """What was noted under a name."""
        text = self._record.get(name)
        return text if isinstance(text, str) else None

    def take_note(self, name: str, text: str) -> None:
        """Note something."""
        self._record[name] = text

    @contextmanager
    def client(self, make: Make, *, fresh: bool = False) -> Iterator[Client]:
        """The client as it was left; what becomes of it is kept unless there is an error."""
        client, data = make(), self._record.get(_STATE)
        if isinstance(data, bytes) and not fresh:
            try:
                client.restore(Snapshot.from_bytes(data))
            except (DecodeError, KeyError, ValueError) as error:
                _warn("the state in the context", error)
                client = make()
        yield client
        self._record[_STATE] = client.snapshot().to_bytes()


class DirectoryClientState:
    """A directory of a federation, under that of a node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: Store | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out, perhaps those of another node that was given this directory."""
        with Store(self.path) as self._store:
            yield

    def note(self, name: str) -> str | None:
        """What was noted under a name."""
        try:
            return self._file(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            return ""  # damaged, as whoever reads it will notice, and knows what that means
        except OSError as error:  # of the disk, not of what is on it
            raise StoreError(f"cannot read {self._file(name)}: {error.strerror}") from error

    def take_note(self, name: str, text: str) -> None:
        """Note something, durably."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file(name), [text.encode()])
        except OSError as error:
            raise StoreError(f"cannot write {self._file(name)}: {error.strerror}") from error

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.json"

    @contextmanager
    def client(self, make: Make, *, fresh: bool = False) -> Iterator[DurableClient]:
        """The client as it was left; what happens to it is on disk before anyone hears of it."""
        assert self._store is not None  # only those who are alone get here
        if fresh:
            self._store.clear()
        try:
            client = DurableClient(make(), self._store)
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise  # of the disk, not of what is on it
            _warn(str(self.path), error)
            self._store.clear()
            client = DurableClient(make(), self._store)
        yield client


def client_state_of(context: Context, federation: str, *, in_context: bool) -> ClientState:
    """Where a node's client of a federation lives."""
    if in_context:
        return ContextClientState(context.state)
    root = context.node_config.get(STATE_DIRECTORY)
    parent = Path(str(root)).expanduser() if root else default_directory() / str(context.node_id)
    return DirectoryClientState(parent / f"federation-{quote(federation, safe='')}")


def default_directory() -> Path:
    """Where nodes keep their states if nothing else is said."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "fedtern" / "flower"


def _warn(what: str, error: Exception) -> None:
    log(
        WARNING,
        "fedtern: %s cannot be read (%s): asking for the whole model and going on with an empty"
        " residual",
        what,
        error,
    )
