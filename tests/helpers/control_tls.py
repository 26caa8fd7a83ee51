# SPDX-License-Identifier: Apache-2.0
"""Certificates of the control channel in directories, as the kubelet mounts them, and clients that show them."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import grpc

from ballast_contract import names
from ballast_operator.fleet.authority import Signer


def moment(**ago: float) -> dt.datetime:
    """So long ago."""
    return dt.datetime.now(dt.UTC) - dt.timedelta(**ago)


def certificate_of(signer: Signer) -> bytes:
    """A signer's own certificate in PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - only here

    return signer.certificate.public_bytes(Encoding.PEM)


def files(
    signer: Signer, name: str, *, client: bool = False, trusts: bytes = b"", at: dt.datetime | None = None
) -> dict[str, bytes]:
    """ca.crt, tls.crt and tls.key for a name."""
    own = signer.issue(name, client=client, now=at or moment())
    return {"ca.crt": trusts or certificate_of(signer), "tls.crt": own.certificate, "tls.key": own.key}


def mount(contents: dict[str, bytes], directory: Path) -> Path:
    """Put files where a link of the directory leads to, and turn the link at once, as the kubelet does."""
    directory.mkdir(exist_ok=True)
    count = len(list(directory.iterdir()))
    real = directory / f"..{count}"
    real.mkdir()
    for name, content in contents.items():
        (real / name).write_bytes(content)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(Path("..data") / name)
    new = directory / "..new"
    new.symlink_to(real.name)
    os.replace(new, directory / "..data")  # noqa: PTH105 - the call whose atomicity counts
    return directory


def connect(port: int, contents: dict[str, bytes]) -> grpc.Channel:
    """A client with these files; it checks the worker's name and not its address."""
    credentials = grpc.ssl_channel_credentials(contents["ca.crt"], contents["tls.key"], contents["tls.crt"])
    options = (("grpc.ssl_target_name_override", names.TLS_WORKER_NAME), ("grpc.use_local_subchannel_pool", 1))
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials, options)
