"""The state of a node's client: in a directory, or in the context of a simulated node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from logging import WARNING
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from flwr.app import ConfigRecord, Context
from flwr.common import log

from fedtern.core.errors import DecodeError, StoreError
from fedtern.core.protocol import Client
from fedtern.core.snapshot import Snapshot
from fedtern.federation.interfaces import ClientLike
from fedtern.store import DurableClient, Store
from fedtern.store.files import write_atomic
from fedtern.transports.flower.messages import KEY

STATE_DIRECTORY = "fedtern-state"  # key in a node's configuration
SHARED_DIRECTORY = (
    f"two nodes must not share one state directory: give each its own {STATE_DIRECTORY}"
)
_STATE = "state"
NewClient = Callable[[], Client]


class ClientState(Protocol):
    """A client, and notes next to it; use them only while the state is locked."""

    def locked(self) -> AbstractContextManager[object]:
        """Lock the state while the context lasts.

        Raises:
            StoreError: Another process has locked it.

        """
        ...

    def read_note(self, name: str) -> str | None:
        """Return the text of a note; None if there is none.

        Raises:
            StoreError: The note cannot be read.

        """
        ...

    def write_note(self, name: str, text: str) -> None:
        """Replace the text of a note.

        Raises:
            StoreError: The note cannot be written.

        """
        ...

    def has_client(self) -> bool:
        """Return whether a client has been saved."""
        ...

    def client(
        self, new_client: NewClient, *, fresh: bool = False
    ) -> AbstractContextManager[ClientLike]:
        """Open the client while the context lasts.

        Args:
            new_client: Makes a client without a past. It is used if there is no state, or if the
                state is damaged, which is logged.
            fresh: Discard the state of the client. Notes stay.

        """
        ...


class ContextClientState:
    """A client in the state that Flower keeps for a simulated node.

    While it is locked, the record is not in the context: the app may replace or clear the state
    of its context, and must not find a record there that it does not know.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._record = ConfigRecord()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Take the record out of the context; no other process has this context."""
        found = self._context.state.pop(KEY, None)
        self._record = found if isinstance(found, ConfigRecord) else ConfigRecord()
        try:
            yield
        finally:
            self._context.state[KEY] = self._record

    def read_note(self, name: str) -> str | None:
        """Return the text of a note; None if there is none."""
        text = self._record.get(name)
        return text if isinstance(text, str) else None

    def write_note(self, name: str, text: str) -> None:
        """Replace the text of a note."""
        self._record[name] = text

    def has_client(self) -> bool:
        """Return whether a client has been saved."""
        return _STATE in self._record

    @contextmanager
    def client(self, new_client: NewClient, *, fresh: bool = False) -> Iterator[Client]:
        """Open the client; it is saved at the end of the context, but not after an exception."""
        client = new_client()
        data = self._record.get(_STATE)
        if isinstance(data, bytes) and not fresh:
            try:
                client.restore(Snapshot.from_bytes(data))
            except (DecodeError, KeyError, ValueError) as error:
                _warn_damaged("the state in the context", error)
                client = new_client()
        yield client
        self._record[_STATE] = client.snapshot().to_bytes()


class DirectoryClientState:
    """A client in a directory of the node, which survives a kill of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: Store | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory against other processes, such as a node configured with the same one.

        Raises:
            StoreError: Another process has locked it.

        """
        # Mapped, because a node starts a process for each message.
        with Store(self.path, mapped=True) as self._store:
            yield

    def read_note(self, name: str) -> str | None:
        """Return the text of a note; None if there is none, and "" if it is not text.

        Raises:
            StoreError: The file cannot be read.

        """
        try:
            return self._file(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            return ""  # damaged: callers treat text that is not JSON in this way
        except OSError as error:
            raise StoreError(f"cannot read {self._file(name)}: {error.strerror}") from error

    def write_note(self, name: str, text: str) -> None:
        """Replace the text of a note; it is on disk when this returns.

        Raises:
            StoreError: The file cannot be written.

        """
        try:
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            write_atomic(self._file(name), [text.encode()], private=True)
        except OSError as error:
            raise StoreError(f"cannot write {self._file(name)}: {error.strerror}") from error

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def has_client(self) -> bool:
        """Return whether a client has been saved."""
        return any(self.path.glob("*.safetensors")) or any(self.path.glob("*.log"))

    @contextmanager
    def client(self, new_client: NewClient, *, fresh: bool = False) -> Iterator[DurableClient]:
        """Open the client; its upload is on disk when that is made, all else at the end.

        Raises:
            StoreError: The disk cannot be read or written.

        """
        assert self._store is not None  # the state is locked
        if fresh:
            self._store.clear()
        try:
            client = DurableClient(new_client(), self._store, defer=True)
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise  # the disk failed, which does not mean that the state is damaged
            _warn_damaged(str(self.path), error)
            self._store.clear()
            client = DurableClient(new_client(), self._store, defer=True)
        try:
            yield client
        finally:
            client.flush()


def open_client_state(context: Context, federation: str, *, in_context: bool) -> ClientState:
    """Return the state of a node's client in a federation.

    Args:
        context: The node's context; its configuration may name a directory.
        federation: Name of the federation.
        in_context: Whether the state is in the context itself.

    """
    if in_context:
        return ContextClientState(context)
    root = context.node_config.get(STATE_DIRECTORY)
    parent = Path(str(root)).expanduser() if root else default_directory() / str(context.node_id)
    return DirectoryClientState(parent / f"federation-{quote(federation, safe='')}")


def default_directory() -> Path:
    """Return the directory of nodes whose configuration names none."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "fedtern" / "flower"


def _warn_damaged(what: str, error: Exception) -> None:
    log(
        WARNING,
        "fedtern: %s is damaged (%s): requesting the whole model and continuing with an empty"
        " residual",
        what,
        error,
    )
