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
ADDRESSED_CATCH_UP = 2 << 4 | CATCH_UP  # version 2, which only catch-ups have
SECURE = 6
KINDS = {
    UPLOAD: "upload",
    BROADCAST: "broadcast",
    CATCH_UP: "catch-up",
    ARRAY: "array",
    COHORT_NOTICE: "cohort notice",
    ADDRESSED_CATCH_UP: "catch-up",
    SECURE: "secure aggregation",
}
"""Names of the kinds of messages."""

SECURE_STEPS = (
    "invitation",
    "keys",
    "roster",
    "shares",
    "delivery",
    "masked upload",
    "survivors",
    "revealed shares",
)
"""Names of the steps of secure aggregation, by their number in a message."""

ENVELOPE_BYTES = 6


def seal(kind: int, *body: bytes | memoryview) -> bytes:
    """Put the parts of a body into an envelope: ``magic | version and kind | body | crc32``."""
    head = bytes([MAGIC, kind if kind == ADDRESSED_CATCH_UP else VERSION << 4 | kind])
    checksum = zlib.crc32(head)
    for part in body:
        checksum = zlib.crc32(part, checksum)
    # Joined once, because a part may be a whole model.
    return b"".join((head, *body, u32(checksum)))


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
    is_addressed = data[1] == ADDRESSED_CATCH_UP
    if data[1] >> 4 != VERSION and not is_addressed:
        raise DecodeError(
            f"message has format version {data[1] >> 4}, this reader knows {VERSION}, and 2 for"
            " catch-ups"
        )
    if zlib.crc32(memoryview(data)[:-4]) != Reader(data[-4:]).u32():
        raise DecodeError("checksum does not match: the message was damaged in transit")
    return data[1] if is_addressed else data[1] & 15, Reader(data, 2, len(data) - 4)
