"""A socket that reads ahead, so that short MQTT packets need fewer system calls."""

from __future__ import annotations

from typing import Any

_CHUNK = 8 << 10  # bytes of one read; more than a hundred short packets


class BufferedSocket:
    """Wraps a non-blocking socket, encrypted or not, for the MQTT library.

    The library reads each packet in three or more parts, and handles one packet for each event of
    the loop. It goes on while ``pending`` is not 0, as it does for encrypted sockets. One event
    reads from the network once: other tasks have their turn even if data arrives faster than it
    can be handled.
    """

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._buffer = b""
        self._position = 0
        self._has_read = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv(self, size: int) -> bytes:
        """Return at most ``size`` bytes.

        Raises:
            BlockingIOError: no data is available, or this event has read from the network before.

        """
        if self._position == len(self._buffer):
            if self._has_read:
                raise BlockingIOError
            self._has_read = True
            self._buffer = self._socket.recv(max(size, _CHUNK))
            self._position = 0
        data = self._buffer[self._position : self._position + size]
        self._position += len(data)
        return data

    def pending(self) -> int:
        """Return the number of bytes that can be read without waiting for an event."""
        left = len(self._buffer) - self._position
        if left:
            return left
        self._has_read = False
        # Decrypted bytes cause no event.
        return self._socket.pending() if hasattr(self._socket, "pending") else 0
