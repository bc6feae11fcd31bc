"""TLS certificates are checked against the name in the URL, whatever address is connected to."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.errors import EgressUnreachable
from holdfast.outgoing import EgressPolicy, Outgoing, send
from tests.support.http_server import running

pytestmark = pytest.mark.req("JF-8")


def certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate for one name, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


async def here(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def test_certificate_is_checked_against_the_name_in_the_url(tmp_path: Path) -> None:
    path = certificate(tmp_path, "named.example")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(path)
    sni_names: list[str | None] = []
    serving.sni_callback = lambda _, name, __: sni_names.append(name)
    trusting = ssl.create_default_context(cafile=str(path))
    with running(serving) as web:
        web.says("/", 200, b"secure")
        policy = EgressPolicy(allow=("127.0.0.1/32",), ports=(web.port,), resolver=here, tls=trusting)
        response = await send(Outgoing("GET", f"https://named.example:{web.port}/"), policy)
        assert (response.body, response.address, sni_names) == (b"secure", "127.0.0.1", ["named.example"])
        with pytest.raises(EgressUnreachable, match="TLS failed"):
            await send(Outgoing("GET", f"https://other.example:{web.port}/"), policy)
        unknown = EgressPolicy(allow=("127.0.0.1/32",), ports=(web.port,), resolver=here)
        with pytest.raises(EgressUnreachable, match="TLS failed"):
            await send(Outgoing("GET", f"https://named.example:{web.port}/"), unknown)
