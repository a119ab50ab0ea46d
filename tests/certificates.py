"""Certificates for servers of tests, made without a program."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa


def make_certificate(folder: Path, name: str, signed_by: str | None = None) -> tuple[Path, Path]:
    """``<name>.pem`` for 127.0.0.1, and ``<name>.key``, the key to it. By itself it is an authority;
    `signed_by` names one that this function has made in the same folder."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signing = subject, key
    if signed_by is not None:
        issuer = x509.load_pem_x509_certificate((folder / f"{signed_by}.pem").read_bytes()).subject
        found = serialization.load_pem_private_key((folder / f"{signed_by}.key").read_bytes(), None)
        assert isinstance(found, rsa.RSAPrivateKey)
        signing = found
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=signed_by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signing, hashes.SHA256())
    )
    certificate, private = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*form))
    return certificate, private
