# SPDX-License-Identifier: Apache-2.0
"""The Secrets of the control channel: the authority in the operator's namespace, a certificate in each with workers."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ballast_contract import names
from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client, Object
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import BUDGETS, MANAGED_BY, MANAGED_LABEL, SECRETS
from ballast_operator.fleet.authority import Authority, AuthorityError, Identity, renewed
from ballast_operator.reconcile import naming

logger = logging.getLogger(__name__)

_ATTEMPTS = 5


class Certificates:
    """Makes and renews what operator and workers prove themselves with. One loop owns it.

    The authority is written at its resourceVersion only, so that two processes that both believe to lead agree on one.

    Args:
        namespace: the operator's own.
        budgets: the WeightBudgets of each namespace that has any.
        seen: whether every worker is known to trust the authorities of this digest (SHA-256, hexadecimal).
        now: the time of day, UTC.
        period: seconds between two looks at everything.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        budgets: Callable[[], Mapping[str, list[Object]]],
        seen: Callable[[str], bool],
        now: Callable[[], dt.datetime],
        period: float,
    ) -> None:
        self._client, self._namespace = client, namespace
        self._budgets, self._seen = budgets, seen
        self._now, self._period = now, period
        self._authority: Authority | None = None
        self._identity: Identity | None = None
        self._spread = False
        """Every namespace was found or made to carry the authorities as they are now."""

    @property
    def identity(self) -> Identity:
        """What the operator shows and trusts. Only after `start`."""
        assert self._identity is not None  # noqa: S101 - nobody connects before the start
        return self._identity

    async def start(self) -> None:
        """Find or make the authority. Raises ApiError, and AuthorityError when what is there cannot be used."""
        await self._renew(seen=False)

    async def run(self) -> None:
        """Keep everything as it should be until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            try:
                await self._round()
            except (errors.ApiError, AuthorityError) as error:
                logger.warning("certificates of the control channel: %s; again in %.0f s", error, self._period)

    async def ensure(self, namespace: str) -> str:
        """Make the Secret of a namespace's workers as it should be; returns why that is not possible, or nothing.

        It belongs to all WeightBudgets of the namespace, and goes with the last of them. Raises ApiError.
        """
        try:
            return await self._ensure(namespace)
        except errors.Refused as error:
            return f"the API server refuses Secret '{names.WORKER_CERTIFICATE}': {error.message}"

    async def _ensure(self, namespace: str) -> str:
        for _ in range(_ATTEMPTS):
            try:
                held = await self._client.get(SECRETS, namespace, names.WORKER_CERTIFICATE)
            except errors.NotFound:
                held = None
            if held is not None and not naming.is_ours(held):
                return (
                    f"Secret '{names.WORKER_CERTIFICATE}' exists and was not made by Ballast: delete it, workers get "
                    "their certificate by this name"
                )
            wanted = self._wanted(namespace, held)
            if wanted is None or await self._written(held, wanted):
                return ""
        raise errors.Conflict(f"Secret {namespace}/{names.WORKER_CERTIFICATE} is being changed by somebody else")

    async def _round(self) -> None:
        assert self._authority is not None  # noqa: S101 - it was started
        digest = hashlib.sha256(self._authority.certificates).hexdigest()
        await self._renew(seen=self._spread and self._seen(digest))
        spread = True
        for namespace in self._budgets():
            try:
                obstacle = await self.ensure(namespace)
            except errors.ApiError as error:
                obstacle = str(error)
            if obstacle:
                logger.warning("namespace %s: %s", namespace, obstacle)
                spread = False
        self._spread = spread

    async def _renew(self, *, seen: bool) -> None:
        """Bring authority and identity up to date."""
        for _ in range(_ATTEMPTS):
            try:
                held = await self._client.get(SECRETS, self._namespace, names.OPERATOR_CERTIFICATE)
            except errors.NotFound:
                held = None
            found = None if held is None else self._read(held)
            wanted = renewed(found, now=self._now(), seen=seen and found == self._authority)
            if wanted != found:
                body = self._body(held, self._namespace, names.OPERATOR_CERTIFICATE, wanted.to_data())
                if not await self._written(held, body):
                    continue
                logger.info("the authority of the control channel was %s", _change(found, wanted))
            self._take(wanted)
            return
        raise errors.Conflict(f"Secret '{names.OPERATOR_CERTIFICATE}' is being changed by somebody else")

    def _read(self, held: Object) -> Authority:
        try:
            return Authority.from_data(_data(held))
        except AuthorityError as error:
            raise AuthorityError(
                f"Secret '{names.OPERATOR_CERTIFICATE}' in namespace {self._namespace} cannot be used: {error}; restore it, "
                "or delete it: a new authority is then made, and workers are heard again within minutes"
            ) from error

    def _take(self, authority: Authority) -> None:
        now, identity = self._now(), self._identity
        if authority != self._authority:
            self._spread = False
        self._authority = authority
        if (
            identity is None
            or identity.authorities != authority.certificates
            or authority.due(identity.own.certificate, now)
        ):
            own = authority.signer.issue(names.TLS_OPERATOR_NAME, client=True, now=now)
            self._identity = Identity(authority.certificates, own)

    def _wanted(self, namespace: str, held: Object | None) -> Object | None:
        """The Secret of a namespace's workers; None when what is there will do."""
        assert self._authority is not None  # noqa: S101 - it was started
        authority, now = self._authority, self._now()
        data = {} if held is None else _data(held)
        if held is None or authority.due(data.get("tls.crt", b""), now) or not data.get("tls.key"):
            own = authority.signer.issue(names.TLS_WORKER_NAME, client=False, now=now)
            data = {"tls.crt": own.certificate, "tls.key": own.key}
        data = {"ca.crt": authority.certificates, "tls.crt": data["tls.crt"], "tls.key": data["tls.key"]}
        owners = [
            owner
            for budget in self._budgets().get(namespace, ())
            for owner in naming.owner(BUDGETS, budget, controls=False)
        ]
        body = self._body(held, namespace, names.WORKER_CERTIFICATE, data, owners)
        return None if body == held else body

    @staticmethod
    def _body(
        held: Object | None,
        namespace: str,
        name: str,
        data: Mapping[str, bytes],
        owners: list[dict[str, Any]] | None = None,
    ) -> Object:
        metadata: Object = dict(held["metadata"]) if held is not None else {"namespace": namespace, "name": name}
        metadata["labels"] = {
            **metadata.get("labels", {}),
            MANAGED_LABEL: MANAGED_BY,
            "app.kubernetes.io/name": "ballast",
        }
        if owners is not None:
            metadata["ownerReferences"] = sorted(owners, key=lambda owner: str(owner["uid"]))
        text = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
        return {**(held or {"type": "Opaque"}), "metadata": metadata, "data": text}

    async def _written(self, held: Object | None, body: Object) -> bool:
        """Whether a Secret could be written over what was read of it; otherwise somebody was faster."""
        act = self._client.create if held is None else self._client.replace
        try:
            await act(SECRETS, body, priority=Priority.READY)
        except (errors.AlreadyExists, errors.Conflict, errors.NotFound):
            return False
        return True


def _data(secret: Object) -> dict[str, bytes]:
    return {key: base64.b64decode(text) for key, text in (secret.get("data") or {}).items()}


def _change(before: Authority | None, after: Authority) -> str:
    if before is None:
        return "made"
    if before.signer != after.signer:
        return "replaced by its successor"
    if before.successor != after.successor:
        return "told of its successor"
    return "rid of a predecessor that has run out"
