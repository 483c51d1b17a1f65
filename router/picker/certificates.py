"""Certificates for proxies: the files of a mounted Secret, or one that is signed here.

A self-signed certificate encrypts and proves nothing: proxies do not check it unless they are told to. It is
made at each start, for ten years, like the reference picker's (``pkg/common/certs.go``).
"""

import datetime
import logging
from pathlib import Path
from typing import NamedTuple

from router.errors import StateError

logger = logging.getLogger(__name__)

VALID_DAYS = 3650


class KeyPair(NamedTuple):
    """A private key and its certificate, in PEM."""

    key: bytes
    certificate: bytes


def self_signed() -> KeyPair:
    """Make a key and a certificate; takes a millisecond."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Cacheway picker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        certificate.public_bytes(serialization.Encoding.PEM),
    )


class CertificateFolder:
    """The files ``tls.crt`` and ``tls.key`` of a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._read_ns = (0, 0)
        self._problem = ""

    def read(self) -> KeyPair:
        """Read them; raise `StateError` if they cannot be read."""
        try:
            self._read_ns = self._times()
            return KeyPair((self._folder / "tls.key").read_bytes(), (self._folder / "tls.crt").read_bytes())
        except OSError as error:
            raise StateError(f"picker.cert_path: cannot read {error.filename}: {error.strerror}") from error

    def changed(self) -> KeyPair | None:
        """Read them again if they changed; None if not, or if they cannot be read now."""
        try:
            changed = None if self._times() == self._read_ns else self.read()
        except (OSError, StateError) as error:
            detail = str(error)[:300]
            if detail != self._problem:  # it is looked at again and again
                logger.warning(
                    "the picker's certificate cannot be read again: the one before stays in use",
                    extra={"event": "picker.certificate_unreadable", "detail": detail},
                )
            self._problem = detail
            return None
        self._problem = ""
        return changed

    def _times(self) -> tuple[int, int]:
        key, certificate = (self._folder / name for name in ("tls.key", "tls.crt"))
        return key.stat().st_mtime_ns, certificate.stat().st_mtime_ns
