# SPDX-License-Identifier: Apache-2.0
"""Where the API server is and how to speak to it: the one source of credentials for our client and for kopf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import Configuration


@dataclass(frozen=True, slots=True)
class Credentials:
    """What it takes to open a connection, read anew each time it is asked for."""

    server: str
    certificate_authority: str | None
    certificate: str | None
    private_key: str | None
    token: str | None
    insecure: bool
    rotates: bool
    """The token is a file that the kubelet renews: ask again before it runs out."""


class Access:
    """A configuration of the official client, from the pod's service account or from a kubeconfig."""

    def __init__(self, configuration: Configuration, *, in_cluster: bool) -> None:
        self.configuration = configuration
        self._in_cluster = in_cluster

    @classmethod
    async def load(cls, kubeconfig: Path | None, context: str | None = None) -> Access:
        """Read the kubeconfig, or without one the service account of the pod.

        Raises:
            kubernetes.aio.config.ConfigException: neither can be used; the message says why.
        """
        configuration = Configuration()
        if kubeconfig is None:
            kubernetes_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), context=context, client_configuration=configuration, persist_config=False
            )
        configuration.connection_pool_maxsize = 100
        configuration.proxy = configuration.proxy or _proxy(configuration.host)
        configuration.client_session_kwargs = {"trust_env": False}
        return cls(configuration, in_cluster=kubeconfig is None)

    async def credentials(self) -> Credentials:
        """The credentials as they are now; a service account token is read from its file again."""
        configuration = self.configuration
        token = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return Credentials(
            server=configuration.host,
            certificate_authority=configuration.ssl_ca_cert,
            certificate=configuration.cert_file,
            private_key=configuration.key_file,
            token=token.split(" ", 1)[-1].strip() if token else None,
            insecure=not configuration.verify_ssl,
            rotates=self._in_cluster,
        )

    async def headers(self) -> dict[str, str]:
        """The Authorization header for one call, or nothing with client certificates."""
        settings: Any = await self.configuration.auth_settings()
        return {s["key"]: s["value"] for s in settings.values() if s["in"] == "header" and s["value"]}


def _proxy(server: str) -> str | None:
    """The proxy that the environment names for the server, asked once: aiohttp would ask in a thread for each call."""
    url = urlsplit(server)
    return None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme)
