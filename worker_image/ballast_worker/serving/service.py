# SPDX-License-Identifier: Apache-2.0
"""What both protocols do alike: find the model, hand a call to the engine, and say no in the same words."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ballast_contract.reasons import Reason
from ballast_worker.bundle.manifest import Manifest
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.call import Call, Engine, Outcome
from ballast_worker.serving.catalog import Catalog, Elsewhere, Here
from ballast_worker.serving.mailbox import Mailbox
from ballast_worker.serving.metadata import wrong_version
from ballast_worker.serving.signature import Request, Signature

_SIGNATURES = 4096
"""Compiled signatures that are kept."""


class Service:
    """One engine and one catalog, as the protocols see them. Belongs to the event loop."""

    def __init__(
        self,
        engine: Engine,
        catalog: Catalog,
        mailbox: Mailbox,
        *,
        timeout_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.catalog = catalog
        self._engine = engine
        self._mailbox = mailbox
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._signatures: dict[str, tuple[Manifest, Signature]] = {}

    def find(self, model: str, version: str, *, forwarded: bool) -> Here | Elsewhere | Refusal:
        """The model, or why there is none.

        Args:
            model: its name.
            version: as the caller gave it.
            forwarded: another worker passed the call on; it is not passed on again.
        """
        if message := wrong_version(model, version):
            return Refusal(Reason.NOT_REQUESTED, message)
        found = self.catalog.find(model)
        if found is None:
            return Refusal(Reason.NOT_REQUESTED, f"there is no model '{model}' in this pool")
        if isinstance(found, Elsewhere) and (forwarded or not found.endpoints):
            return moving(model)
        return found

    def signature(self, model: str, manifest: Manifest) -> Signature:
        """The compiled signature of a manifest."""
        known = self._signatures.get(model)
        if known is not None and known[0] is manifest:
            return known[1]
        if len(self._signatures) >= _SIGNATURES:
            self._signatures.clear()
        signature = Signature(manifest)
        self._signatures[model] = (manifest, signature)
        return signature

    def submit(
        self, model: str, request: Request, receive: Callable[[Outcome], None], *, remaining: float | None = None
    ) -> None:
        """Hand a call to the engine; `receive` is called on the event loop.

        Args:
            model: its name.
            request: as its codec read it.
            receive: gets the outcome, once.
            remaining: seconds until the protocol's own deadline.
        """
        limits = [limit for limit in (remaining, request.timeout_seconds) if limit is not None]
        seconds = min(limits, default=self._timeout_seconds)
        self._engine.submit(
            Call(
                model=model,
                inputs=request.inputs,
                dimensions=request.dimensions,
                deadline=self._clock() + seconds,
                done=functools.partial(self._mailbox.put, receive),
            )
        )


def moving(model: str) -> Refusal:
    """No worker that is known to have the model answers for it."""
    return Refusal(
        Reason.WORKER_GONE,
        f"model '{model}' is on its way from one worker to another: try again",
        retry_after_seconds=1.0,
    )


def forward_timeout(model: str, seconds: float) -> Refusal:
    """Another worker took too long."""
    return Refusal(Reason.DEADLINE_EXCEEDED, f"the worker that has model '{model}' did not answer within {seconds:g} s")
