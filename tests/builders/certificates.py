"""Certificates of a test: a CA, and what it issues, as PEM files."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.runtime.tls.tls_files import TlsFiles

DAY = timedelta(days=1)
LOOPBACK_NAMES = ("localhost", "127.0.0.1")


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


@dataclass(frozen=True, slots=True)
class IssuedFiles:
    """The files of a certificate, and of the CA that it trusts."""

    cert: Path
    key: Path
    ca: Path

    @property
    def tls(self) -> TlsFiles:
        """For a service."""
        return TlsFiles(self.cert, self.key, self.ca)

    @property
    def flags(self) -> list[str]:
        """For a service's command line."""
        return ["--tls-cert", str(self.cert), "--tls-key", str(self.key), "--tls-ca", str(self.ca)]

    @property
    def settings(self) -> dict[str, Path]:
        """For a service's settings."""
        return {"tls_cert": self.cert, "tls_key": self.key, "tls_ca": self.ca}

    def serial(self) -> int:
        """The number of the certificate that is in the file now."""
        return x509.load_pem_x509_certificate(self.cert.read_bytes()).serial_number

    def context(self) -> ssl.SSLContext:
        """For a client that has the certificate and trusts the CA."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.cert, self.key)
        return context


class CertificateAuthority:
    """A CA of its own."""

    def __init__(self, name: str = "ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name))
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        folder: Path,
        stem: str = "service",
        names: tuple[str, ...] = LOOPBACK_NAMES,
        *,
        expired: bool = False,
        password: bytes | None = None,
    ) -> IssuedFiles:
        """A new certificate, in STEM.crt, STEM.key and STEM-ca.crt. What was there is replaced, file by file."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + (-DAY if expired else DAY)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name(stem))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(end - 2 * DAY)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = IssuedFiles(folder / f"{stem}.crt", folder / f"{stem}.key", folder / f"{stem}-ca.crt")
        replace(files.ca, self.pem)
        replace(files.cert, certificate.public_bytes(serialization.Encoding.PEM))
        replace(files.key, _pem(key, password))
        return files


def replace(path: Path, data: bytes) -> None:
    """Puts a new file in the place of the one that is there, as who renews certificates does."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)
