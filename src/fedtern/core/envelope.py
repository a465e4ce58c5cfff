"""The envelope that every message comes in."""

from __future__ import annotations

import zlib

from fedtern.core.errors import DecodeError
from fedtern.core.wire import Reader, u32

MAGIC = 0xFE
VERSION = 1
UPLOAD, BROADCAST, CATCH_UP, ARRAY, COHORT_NOTICE = 1, 2, 3, 4, 5
KINDS = {
    UPLOAD: "upload",
    BROADCAST: "broadcast",
    CATCH_UP: "catch-up",
    ARRAY: "array",
    COHORT_NOTICE: "cohort notice",
}
"""Kinds of messages by number, as people call them."""
FRAME = 6  # bytes around a body


def seal(kind: int, body: bytes) -> bytes:
    """Put a body into its envelope: ``magic | version and kind | body | crc32``."""
    data = bytes([MAGIC, VERSION << 4 | kind]) + body
    return data + u32(zlib.crc32(data))


def unseal(data: bytes) -> tuple[int, Reader]:
    """The kind of a message and a reader of its body."""
    if len(data) < FRAME:
        raise DecodeError(f"a message has at least {FRAME} bytes, got {len(data)}")
    if data[0] != MAGIC:
        raise DecodeError(f"not a fedtern message: it starts with {data[0]:#04x}")
    if data[1] >> 4 != VERSION:
        raise DecodeError(f"message has format version {data[1] >> 4}, this reader knows {VERSION}")
    if zlib.crc32(data[:-4]) != Reader(data[-4:]).u32():
        raise DecodeError("checksum does not match: the message was damaged on the way")
    return data[1] & 15, Reader(data[2:-4])
