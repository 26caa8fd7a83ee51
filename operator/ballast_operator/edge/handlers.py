# SPDX-License-Identifier: Apache-2.0
"""kopf, used as an edge only: it lists and watches, and each event goes to the caches, which mark keys dirty."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any, Final

import kopf

from ballast_contract import names
from ballast_operator.cluster.access import Access
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import WATCHED, Resource, selector_of

Observe = Callable[[Resource, str | None, Object], None]
"""Takes a kind, the type of an event (None: of a listing) and the object."""

_TOKEN_SECONDS: Final = 600


def registry(observe: Observe, access: Access, *, kinds: Iterable[Resource] = WATCHED) -> kopf.OperatorRegistry:
    """Handlers for every watched kind. A registry of its own keeps kopf's global state out."""
    found = kopf.OperatorRegistry()
    for resource in kinds:
        _watch(found, resource, observe)

    @kopf.on.login(registry=found)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        credentials = await access.credentials()
        expiration = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_TOKEN_SECONDS) if credentials.rotates else None
        return kopf.ConnectionInfo(
            server=credentials.server,
            ca_path=credentials.certificate_authority,
            insecure=credentials.insecure,
            certificate_path=credentials.certificate,
            private_key_path=credentials.private_key,
            token=credentials.token,
            expiration=expiration,
        )

    return found


def settings() -> kopf.OperatorSettings:
    """Kopf's settings, all those that matter said explicitly."""
    found = kopf.OperatorSettings()
    prefix = names.API_GROUP
    found.persistence.finalizer = f"{prefix}/kopf-finalizer"  # never used; the default is shared by all operators
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix)
    found.persistence.diffbase_storage = _NoDiffBase()
    found.posting.enabled = False
    found.scanning.disabled = True
    found.peering.standalone = True
    found.watching.chunk_size = 500
    found.watching.initial_streaming = False
    found.watching.server_timeout = 480
    found.watching.inactivity_timeout = 70
    found.networking.request_timeout = 30
    found.networking.connect_timeout = 5
    found.execution.max_workers = 1
    found.process.ultimate_exiting_timeout = 10
    for resource in WATCHED:
        selector = selector_of(resource)
        if selector is not None:
            found.watching.label_selectors[resource.group, resource.version, resource.plural] = selector
    return found


class _NoDiffBase(kopf.DiffBaseStorage):
    """Nothing is compared with what was handled last, so nothing is copied to compare it."""

    def build(self, **_: Any) -> Any:
        """Every object looks the same."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """Nothing was handled before."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


def _watch(found: kopf.OperatorRegistry, resource: Resource, observe: Observe) -> None:
    @kopf.on.event(resource.group, resource.version, resource.plural, registry=found, id=resource.plural)
    async def handle(event: Any, **_: Any) -> None:
        body = dict(event["object"])
        body.setdefault("apiVersion", resource.api_version)
        body.setdefault("kind", resource.kind)
        observe(resource, event["type"], body)
