# SPDX-License-Identifier: Apache-2.0
"""The workers' certificate, as a pod would mount it."""

from __future__ import annotations

import base64

from ballast_contract import names
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client
from ballast_operator.cluster.resources import Resource
from benchmarks.operator.workers import Certificate

_SECRETS = Resource("", "v1", "secrets", "Secret")


async def worker_certificate(client: Client, namespace: str) -> Certificate | None:
    """The certificate of a namespace's workers; None where they speak plain text."""
    try:
        secret = await client.get(_SECRETS, namespace, names.WORKER_CERTIFICATE)
    except errors.NotFound:
        return None
    data = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
    return Certificate(authority=data["ca.crt"], certificate=data["tls.crt"], key=data["tls.key"])
