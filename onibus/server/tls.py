"""TLS: the operator's certificate, or one that the server generates in the data directory.

A self-signed certificate covers this machine's names. The server generates it once, and again
shortly before it expires; clients trust it by its file.
"""

from __future__ import annotations

import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from onibus.core.errors import InvalidArgument
from onibus.operation.private_files import write_private
from onibus.store.files import make_directory

if TYPE_CHECKING:
    from cryptography import x509

CERTIFICATE_FILE = "tls-certificate.pem"
KEY_FILE = "tls-key.pem"
#: The longest lifetime that browsers and most libraries accept.
_LIFE = timedelta(days=397)
#: A certificate that expires sooner than this is regenerated at start.
_RENEW = timedelta(days=30)


def context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context for a certificate and its key."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that renegotiates repeatedly costs the server more than itself.
    made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    for file in (certificate, key):
        if not os.access(file, os.R_OK):
            raise InvalidArgument(f"cannot read {file}: check the path and its permissions")
    try:
        made.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise InvalidArgument(
            f"{certificate} and {key} are not a PEM certificate and its key: {error}"
        ) from None
    return made


def _no_password() -> str:
    """Reject a key with a password: a server has no one to ask for it."""
    raise InvalidArgument("the certificate's key has a password: use a key without one")


def self_made(directory: Path, host: str) -> tuple[Path, Path]:
    """Return the files of the generated certificate and its key, creating missing ones."""
    certificate, key = directory / CERTIFICATE_FILE, directory / KEY_FILE
    names = _names(host)
    if not _is_good(certificate, key, names):
        make_directory(directory)
        made, secret = _make(names)
        write_private(key, secret)
        write_private(certificate, made)
    return certificate, key


@cache
def in_memory(host: str) -> ssl.SSLContext:
    """Return what a server needs to speak TLS with a certificate that is in no file.

    Its clients cannot trust it. Those that connect to their own machine need not check it.
    """
    with TemporaryDirectory(prefix="onibus-") as directory:
        return context(*self_made(Path(directory), host))


def _names(host: str) -> list[str]:
    """Return the names by which clients may reach this machine."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if host not in ("", "0.0.0.0", "::"):
        names.append(host)
    return sorted({name.lower() for name in names if name.isascii() and len(name) < 64})


def _is_good(certificate: Path, key: Path, names: list[str]) -> bool:
    """Return whether the existing certificate covers all names and is valid for a while."""
    # Slow to import: only loaded when a certificate is generated.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        others = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        context(certificate, key)
    except (OSError, ValueError, InvalidArgument, x509.ExtensionNotFound):
        return False
    return found.not_valid_after_utc > datetime.now(UTC) + _RENEW and {
        str(name.value) for name in others
    } >= set(names)


def _make(names: list[str]) -> tuple[bytes, bytes]:
    """Return a certificate and its key, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Onibus, self-signed")])
    now = datetime.now(UTC)
    others = [_general_name(one) for one in names]
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName(others), critical=False)
        # Self-signed: clients that trust it require a certificate authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return built.public_bytes(serialization.Encoding.PEM), secret


def _usage() -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
