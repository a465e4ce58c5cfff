"""The envelope of every message: magic byte, version, kind and checksum."""

from __future__ import annotations

import zlib

from fedtern.core.errors import DecodeError
from fedtern.core.wire import Reader, u32

MAGIC = 0xFE
VERSION = 1

# Kinds of messages.
UPLOAD = 1
BROADCAST = 2
CATCH_UP = 3
ARRAY = 4
COHORT_NOTICE = 5
KINDS = {
    UPLOAD: "upload",
    BROADCAST: "broadcast",
    CATCH_UP: "catch-up",
    ARRAY: "array",
    COHORT_NOTICE: "cohort notice",
}
"""Names of the kinds of messages."""

ENVELOPE_BYTES = 6


def seal(kind: int, body: bytes) -> bytes:
    """Put a body into its envelope: ``magic | version and kind | body | crc32``."""
    data = bytes([MAGIC, VERSION << 4 | kind]) + body
    return data + u32(zlib.crc32(data))


def unseal(data: bytes) -> tuple[int, Reader]:
    """Check the envelope of a message.

    Returns:
        The kind of the message, and a reader of its body.

    Raises:
        DecodeError: the message is damaged, or of another format or version.

    """
    if len(data) < ENVELOPE_BYTES:
        raise DecodeError(f"a message has at least {ENVELOPE_BYTES} bytes, got {len(data)}")
    if data[0] != MAGIC:
        raise DecodeError(f"not a fedtern message: it starts with {data[0]:#04x}")
    if data[1] >> 4 != VERSION:
        raise DecodeError(f"message has format version {data[1] >> 4}, this reader knows {VERSION}")
    if zlib.crc32(data[:-4]) != Reader(data[-4:]).u32():
        raise DecodeError("checksum does not match: the message was damaged in transit")
    return data[1] & 15, Reader(data[2:-4])
