"""Create a certificate authority, a server certificate and node keys for the loopback interface.

For any other use, have your own authority sign the SuperLink's certificate.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificates:
    """Files of an authority and of the one server whose certificate it signed."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def server_options(self) -> list[str]:
        """Command-line options for the SuperLink."""
        return [
            *("--ssl-ca-certfile", str(self.authority)),
            *("--ssl-certfile", str(self.certificate)),
            *("--ssl-keyfile", str(self.key)),
        ]

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        """Create an authority, and a certificate for the loopback addresses of this machine."""
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(directory / "ca.crt", directory / "server.pem", directory / "server.key")
        authority = ec.generate_private_key(ec.SECP256R1())
        server = _new_key(made.key)
        root = _name("fedtern example authority")
        _write(made.authority, _certificate(root, root, authority.public_key(), authority, ca=True))
        name = _name("localhost")
        _write(made.certificate, _certificate(name, root, server.public_key(), authority, ca=False))
        return made


def node_key(path: Path) -> Path:
    """Create a key for a node. The public key, for registration, goes to ``path`` + ``.pub``."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret = serialization.NoEncryption()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, secret
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.touch(mode=0o600)
    path.write_bytes(private)
    path.with_name(f"{path.name}.pub").write_bytes(public)
    return path


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return key


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    ca: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if not ca:
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
