# SPDX-License-Identifier: Apache-2.0
"""The authority that signs the certificates of the control channel, and when it is replaced. Pure but for new keys.

A successor is announced long before it signs: whoever trusts one of the two trusts both, so that certificates of either
are good on every connection meanwhile. The one before stays trusted until it runs out by itself.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE: Final = dt.timedelta(days=365)
ANNOUNCE_BEFORE: Final = dt.timedelta(days=120)
"""Time that the signer has left when its successor is announced."""
SWITCH_BEFORE: Final = dt.timedelta(days=30)
"""Time that the signer has left when the successor takes over although not everybody is known to trust it."""

CERTIFICATE_LIFE: Final = dt.timedelta(days=30)
RENEW_BEFORE: Final = dt.timedelta(days=10)
"""Time that a certificate has left when it is issued anew."""

_CLOCK_SKEW: Final = dt.timedelta(hours=1)
"""Certificates begin so long ago: clocks of machines differ."""

_SIGNER, _SUCCESSOR, _PREDECESSORS = "ca", "next", "previous"


class AuthorityError(Exception):
    """What is kept of an authority cannot be used; the message says which part and why."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """What one side of a connection shows, and whom it believes."""

    authorities: bytes
    """Certificates in PEM, one after the other."""
    own: KeyPair


@dataclass(frozen=True, slots=True)
class Signer:
    """A certificate that may sign others, with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(compare=False)

    @classmethod
    def new(cls, now: dt.datetime) -> Self:
        """A new key (ECDSA P-256) and a certificate signed with it."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"Ballast control channel {secrets.token_hex(4)}")
        builder = _builder(name, name, key, now, now + AUTHORITY_LIFE)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return cls(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)

    def left(self, now: dt.datetime) -> dt.timedelta:
        """How long it is still valid."""
        return self.certificate.not_valid_after_utc - now

    def issue(self, name: str, *, client: bool, now: dt.datetime) -> KeyPair:
        """A certificate for a DNS name, good for connecting (`client`) or for being connected to, and for nothing else."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = min(now + CERTIFICATE_LIFE, self.certificate.not_valid_after_utc)
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = (
            _builder(_name(name), self.certificate.subject, key, now, end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(signed_by, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return KeyPair(_pem(certificate), _key_pem(key))


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs, who will, and who did and is still believed."""

    signer: Signer
    successor: Signer | None = None
    predecessors: tuple[x509.Certificate, ...] = ()

    @property
    def certificates(self) -> bytes:
        """All that are to be trusted, in PEM."""
        successor = () if self.successor is None else (self.successor.certificate,)
        return b"".join(_pem(found) for found in (self.signer.certificate, *successor, *self.predecessors))

    def due(self, held: bytes, now: dt.datetime) -> bool:
        """Whether a certificate (PEM) has to be issued anew: unreadable, not by the signer, or soon over."""
        try:
            certificate = x509.load_pem_x509_certificate(held)
            certificate.verify_directly_issued_by(self.signer.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return True
        left = certificate.not_valid_after_utc - now
        return left < RENEW_BEFORE and certificate.not_valid_after_utc < self.signer.certificate.not_valid_after_utc

    def to_data(self) -> dict[str, bytes]:
        """What a Secret keeps of it."""
        data = _signer_data(_SIGNER, self.signer)
        if self.successor is not None:
            data |= _signer_data(_SUCCESSOR, self.successor)
        if self.predecessors:
            data[f"{_PREDECESSORS}.crt"] = b"".join(map(_pem, self.predecessors))
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, bytes]) -> Self:
        """What a Secret kept. Raises AuthorityError."""
        successor = _signer_from(_SUCCESSOR, data) if f"{_SUCCESSOR}.crt" in data else None
        before = data.get(f"{_PREDECESSORS}.crt", b"")
        try:
            predecessors = tuple(x509.load_pem_x509_certificates(before)) if before else ()
        except ValueError as error:
            raise AuthorityError(f"{_PREDECESSORS}.crt is no certificate: {error}") from error
        return cls(_signer_from(_SIGNER, data), successor, predecessors)


def renewed(held: Authority | None, *, now: dt.datetime, seen: bool) -> Authority:
    """The authority as it should be at a moment; the same one while nothing has to change.

    Args:
        held: what there is; None at the very first start.
        now: UTC.
        seen: everybody is known to trust what `held` says.
    """
    if held is None:
        return Authority(Signer.new(now))
    signer, successor = held.signer, held.successor
    if successor is not None and successor.left(now) <= dt.timedelta():
        successor = None
    left = signer.left(now)
    if successor is None and left <= dt.timedelta():
        return Authority(Signer.new(now))
    believed = (*held.predecessors, signer.certificate)
    if successor is not None and (seen or left < SWITCH_BEFORE):
        signer, successor = successor, None
    elif successor is None and left < ANNOUNCE_BEFORE:
        successor = Signer.new(now)
    kept = tuple(c for c in believed if c is not signer.certificate and c.not_valid_after_utc > now)
    wanted = Authority(signer, successor, kept)
    return held if wanted == held else wanted


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begin: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _signer_data(prefix: str, signer: Signer) -> dict[str, bytes]:
    return {f"{prefix}.crt": _pem(signer.certificate), f"{prefix}.key": _key_pem(signer.key)}


def _signer_from(prefix: str, data: Mapping[str, bytes]) -> Signer:
    try:
        certificate = x509.load_pem_x509_certificate(data[f"{prefix}.crt"])
        key = serialization.load_pem_private_key(data[f"{prefix}.key"], password=None)
    except KeyError as error:
        raise AuthorityError(f"{error.args[0]} is missing") from error
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"{prefix}.crt or {prefix}.key is damaged: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AuthorityError(f"{prefix}.key does not belong to {prefix}.crt")
    return Signer(certificate, key)
