# SPDX-License-Identifier: Apache-2.0
"""The cluster's certificate authority, its certificates and the kubeconfigs that carry them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.commands import put, run
from e2e.cluster.settings import Settings

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365")


def make_authority(settings: Settings) -> None:
    """Make the authority and the keys that sign the tokens of ServiceAccounts, unless they are there."""
    settings.pki.mkdir(parents=True, exist_ok=True)
    settings.pki.chmod(0o700)
    put(settings.pki / "openssl.cnf", "[req]\ndistinguished_name = dn\n[dn]\n")
    if (settings.pki / "sa.pub").exists():
        return
    extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"]
    _request(settings, "ca", subject=f"/CN={settings.name}-ca", extensions=extensions)
    key = settings.pki / "sa.key"
    run(settings, "openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
    run(settings, "openssl", "pkey", "-in", key, "-pubout", "-out", settings.pki / "sa.pub")


def certificate(settings: Settings, name: str, *, common_name: str, group: str = "", names: Iterable[str] = ()) -> None:
    """Make a client's certificate; a server's too when names (DNS names and addresses) are given."""
    if (settings.pki / f"{name}.crt").exists():
        return
    alternatives = ",".join(f"{'IP' if each[0].isdigit() else 'DNS'}:{each}" for each in names)
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=clientAuth" + (",serverAuth" if alternatives else ""),
    ]
    if alternatives:
        extensions.append(f"subjectAltName={alternatives}")
    subject = (f"/O={group}" if group else "") + f"/CN={common_name}"
    _request(settings, name, subject=subject, extensions=extensions, signer="ca")


def kubeconfig(settings: Settings, name: str) -> Path:
    """Write the kubeconfig of a client that has a certificate of this name."""

    def data(file: str) -> str:
        return base64.b64encode((settings.pki / file).read_bytes()).decode()

    path = settings.conf / f"{name}.kubeconfig"
    cluster = {"server": settings.api_url, "certificate-authority-data": data("ca.crt")}
    user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": settings.name,
        "clusters": [{"name": settings.name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": settings.name, "context": {"cluster": settings.name, "user": name}}],
    }
    put(path, json.dumps(content, indent=1), mode=0o600)
    return path


def _request(
    settings: Settings, name: str, *, subject: str, extensions: Iterable[str], signer: str | None = None
) -> None:
    folder = settings.pki
    adds = [part for extension in extensions for part in ("-addext", extension)]
    sign = ["-CA", folder / f"{signer}.crt", "-CAkey", folder / f"{signer}.key"] if signer else []
    files = ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
    config = ["-config", folder / "openssl.cnf", "-subj", subject]
    run(settings, "openssl", "req", "-x509", *config, *_KEY, *files, *adds, *sign)
