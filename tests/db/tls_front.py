"""TLS before a PostgreSQL server that has none (the wheel's is built without OpenSSL), and an authority of our own.

The client's side is all real: libpq asks for TLS, checks the certificate, shows its own. Behind the front the
same bytes go to the server in the clear.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104


class Authority:
    """Signs certificates; `root` is the file with its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.root = folder / f"{name}.pem"
        self._write(self.root, self._signed(name, self._key.public_key(), authority=True))

    def issue(self, name: str, *hosts: str) -> tuple[Path, Path]:
        """Files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, private = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        self._write(certificate, self._signed(name, key.public_key(), hosts))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        private.chmod(0o600)
        return certificate, private

    def _signed(
        self, name: str, key: ec.EllipticCurvePublicKey, hosts: tuple[str, ...] = (), authority: bool = False
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.timezone.utc)
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, self._name)]
        made = (
            x509.CertificateBuilder(*reversed(names))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        return made.sign(self._key, hashes.SHA256())

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _host(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


@contextmanager
def tls_front(port: int, files: tuple[Path, Path], clients: Path | None = None) -> Iterator[int]:
    """A port of 127.0.0.1 that speaks TLS for a server on another one; `clients`: the authority that has
    signed the certificates of those who may come."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    if clients:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, context, port), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with suppress(OSError):
        while True:
            came, _ = listening.accept()
            threading.Thread(target=_serve, args=(came, context, port), daemon=True).start()


def _serve(came: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with suppress(OSError), came:  # an SSLError is one, too: the client was told
        while struct.unpack(">ii", came.recv(8, socket.MSG_WAITALL))[1] == GSS_REQUEST:
            came.sendall(b"N")
        came.sendall(b"S")
        with (
            context.wrap_socket(came, server_side=True) as client,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            while True:
                ready = [client] if client.pending() else select.select([client, server], [], [])[0]
                for one in ready:
                    if not (data := one.recv(1 << 16)):
                        return
                    (server if one is client else client).sendall(data)
