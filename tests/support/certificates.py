"""Certificates of a test's own CA, and servers on loopback that use them."""

from __future__ import annotations

import socket
import ssl
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.forwarding import LOOPBACK, Forwarder, serving
from tests.support.waiting import patience

#: A host name that no server of a test has.
ELSEWHERE = "cloud.example.org"

_VALID = timedelta(days=2)


@dataclass(frozen=True)
class Certificate:
    """The files of a server: its certificate, and its key."""

    chain: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


class Authority:
    """A CA with its own key; clients that trust it need ``cafile``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _named(f"The {name} of a test")
        made = (
            _unsigned(self._subject, self._subject, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.cafile = folder / f"{name}.pem"
        self.cafile.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def certify(self, *hosts: str) -> Certificate:
        """Return a certificate for servers of these names or addresses; by default those of loopback."""
        hosts = hosts or (LOOPBACK, "localhost")
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = (
            _unsigned(_named(hosts[0]), self._subject, key)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = Certificate(
            self._folder / f"{self._name}-{hosts[0]}.crt", self._folder / f"{self._name}-{hosts[0]}.key"
        )
        files.chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        files.key.touch(mode=0o600)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


class Terminator(Forwarder):
    """A proxy that terminates TLS in front of a server on loopback, as operators run it in front of an API."""

    def __init__(self, port: int, certificate: Certificate) -> None:
        super().__init__(port)
        self.show(certificate)

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self.port}"

    def show(self, certificate: Certificate) -> None:
        """Use this certificate for new connections."""
        self._context = certificate.server_context()

    def attend(self, client: socket.socket) -> None:
        client.settimeout(patience())
        try:
            outside = self._context.wrap_socket(client, server_side=True)
        except OSError:  # the client does not accept the certificate
            client.close()
            return
        super().attend(outside)


def terminating_tls(port: int, certificate: Certificate) -> AbstractContextManager[Terminator]:
    """Run a proxy with this certificate in front of the server at a port, until the end of the block."""
    return serving(Terminator(port, certificate))
