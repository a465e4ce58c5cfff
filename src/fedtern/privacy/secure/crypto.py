"""The cryptography of secure aggregation: key agreement, key streams, sealed shares, signatures.

All primitives are those of the library ``cryptography``; this module only combines them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import RemoteProtocolError
from fedtern.core.extras import require

KEY_BYTES = 32
COMMITMENT_BYTES = 16
TAG_BYTES = 16
SIGNATURE_BYTES = 64

_USER = "secure aggregation"
_PRIMITIVES = "cryptography.hazmat.primitives."


@cache
def _load(module: str) -> Any:
    return require(_PRIMITIVES + module, "secure", _USER)


def _exceptions() -> Any:
    return require("cryptography.exceptions", "secure", _USER)


def derive_key(secret: bytes, label: str, context: bytes) -> bytes:
    """Derive a key of 32 bytes with HKDF-SHA256.

    Args:
        secret: the input key material.
        label: the purpose of the key; keys of different purposes are independent.
        context: the round and the clients of the key.

    """
    hkdf = _load("kdf.hkdf").HKDF
    sha256 = _load("hashes").SHA256()
    info = b"fedtern secure aggregation " + label.encode() + b"\0" + context
    key: bytes = hkdf(algorithm=sha256, length=KEY_BYTES, salt=None, info=info).derive(secret)
    return key


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key pair.

    Attributes:
        private: the private key of the library.
        public: the 32 bytes of the public key.

    """

    private: Any
    public: bytes

    @classmethod
    def from_private(cls, private: bytes) -> KeyPair:
        """Make a key pair from the 32 bytes of a private key."""
        key = _load("asymmetric.x25519").X25519PrivateKey.from_private_bytes(private)
        return cls(key, key.public_key().public_bytes_raw())

    def agree(self, public: bytes) -> bytes:
        """Return the secret that both owners of the keys compute.

        Raises:
            RemoteProtocolError: the other key is not a valid public key.

        """
        key = _load("asymmetric.x25519").X25519PublicKey.from_public_bytes(public)
        try:
            secret: bytes = self.private.exchange(key)
        except ValueError:  # a point of low order: the secret would be zero for any private key
            raise RemoteProtocolError("a public key of this round is invalid") from None
        return secret


@cache
def _any_key_pair() -> KeyPair:
    return KeyPair.from_private(bytes(KEY_BYTES))


def check_public_key(public: bytes) -> None:
    """Check that secrets can be agreed with a public key.

    Raises:
        RemoteProtocolError: the key is not a valid public key.

    """
    _any_key_pair().agree(public)  # invalid keys fail with every private key


def key_stream(key: bytes, count: int) -> NDArray[np.uint32]:
    """Expand a key of 32 bytes to uniform 32-bit numbers: AES-256 in counter mode, from zero.

    A key must be used for one stream only, because the counter always starts at zero.
    """
    ciphers = _load("ciphers")
    cipher = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(bytes(16)))
    return np.frombuffer(cipher.encryptor().update(bytes(4 * count)), "<u4").astype(np.uint32)


def seal_share(key: bytes, sender_is_lower: bool, text: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate shares for a neighbour with AES-256-GCM.

    Each key seals two texts, one in each direction, with different nonces.
    """
    return bytes(_aead(key).encrypt(_nonce(sender_is_lower), text, context))


def open_share(key: bytes, sender_is_lower: bool, sealed: bytes, context: bytes) -> bytes:
    """Decrypt what ``seal_share`` made.

    Raises:
        RemoteProtocolError: the bytes are not from the owner of the other key.

    """
    try:
        return bytes(_aead(key).decrypt(_nonce(sender_is_lower), sealed, context))
    except _exceptions().InvalidTag:
        raise RemoteProtocolError("a share was damaged or made with another key") from None


def _aead(key: bytes) -> Any:
    return _load("ciphers.aead").AESGCM(key)


def _nonce(sender_is_lower: bool) -> bytes:
    return bytes(11) + bytes([sender_is_lower])


def commit(secret: bytes, context: bytes) -> bytes:
    """Return a commitment to a uniformly random secret of 127 bits."""
    text = b"fedtern secure aggregation commitment\0" + context + secret
    return hashlib.sha256(text).digest()[:COMMITMENT_BYTES]


def public_signing_key(private: bytes) -> bytes:
    """Return the public Ed25519 key of a private one; both have 32 bytes."""
    key = _load("asymmetric.ed25519").Ed25519PrivateKey.from_private_bytes(private)
    return bytes(key.public_key().public_bytes_raw())


def sign(private: bytes, text: bytes) -> bytes:
    """Sign a text with a private Ed25519 key."""
    key = _load("asymmetric.ed25519").Ed25519PrivateKey.from_private_bytes(private)
    return bytes(key.sign(text))


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether a signature of a text is valid."""
    key = _load("asymmetric.ed25519").Ed25519PublicKey.from_public_bytes(public)
    try:
        key.verify(signature, text)
    except _exceptions().InvalidSignature:
        return False
    return True
