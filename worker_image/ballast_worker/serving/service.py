# SPDX-License-Identifier: Apache-2.0
"""What both protocols do alike: find the model, wait for one on its way, hand a call to the engine, say no in the same words."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ballast_contract.reasons import Reason
from ballast_worker.bundle.manifest import Manifest
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.call import Call, Engine, Outcome
from ballast_worker.serving.catalog import Catalog, Elsewhere, Here
from ballast_worker.serving.mailbox import Mailbox
from ballast_worker.serving.metadata import wrong_version
from ballast_worker.serving.shown import cut
from ballast_worker.serving.signature import Request, Signature

T = TypeVar("T")

PATIENCE_SECONDS: Final = 30.0
"""How long a call waits for a model that is on its way, where its own deadline is not earlier."""

_AGAIN_SECONDS: Final = 0.1
"""Between two looks at where a model is."""

_SIGNATURES: Final = 4096
"""Compiled signatures that are kept."""

_ON_ITS_WAY: Final = frozenset({Reason.WORKER_GONE, Reason.MEASURING})
"""Reasons that pass when a model has come to where it is going."""


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
        max_waiting: int,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Make one.

        Args:
            engine: gets the calls.
            catalog: says which models there are.
            mailbox: brings outcomes back to the event loop.
            timeout_seconds: deadline of a call that brings none.
            clock: monotonic seconds, the engine's clock.
            max_waiting: calls of one model that may wait for it to arrive; one more is refused.
            patience_seconds: how long each of them waits at most.
        """
        self.catalog = catalog
        self._engine = engine
        self._mailbox = mailbox
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._max_waiting = max_waiting
        self._patience_seconds = patience_seconds
        self._waiting: Counter[str] = Counter()
        self._signatures: dict[str, tuple[Manifest, Signature]] = {}

    def find(self, model: str, version: str, *, forwarded: bool) -> Here | Elsewhere | Refusal:
        """The model, or why there is none.

        Args:
            model: its name.
            version: as the caller gave it.
            forwarded: another worker passed the call on; it is not passed on again, and it does not wait here: the worker
                that it came from asks elsewhere, and waits.
        """
        if message := wrong_version(model, version):
            return Refusal(Reason.NOT_REQUESTED, message)
        found = self.catalog.find(model)
        if found is None:
            return Refusal(Reason.NOT_REQUESTED, f"there is no model '{cut(model)}' in this pool")
        if forwarded and not isinstance(found, Here):
            lasting = isinstance(found, Refusal) and found.reason not in {*_ON_ITS_WAY, Reason.DRAINING}
            return found if lasting else Refusal(Reason.NOT_REQUESTED, f"model '{cut(model)}' is not on this worker")
        if isinstance(found, Elsewhere) and not found.endpoints:
            return moving(model)
        return found

    async def seek(
        self,
        model: str,
        version: str,
        ask: Callable[[Elsewhere], Awaitable[T | None]],
        *,
        wait: bool,
        left: bool = False,
        remaining: float | None = None,
    ) -> T | Here | Refusal:
        """Find who answers for a model that is not here: another worker, or this one when the model has arrived.

        Args:
            model: its name.
            version: as the caller gave it.
            ask: passes the call on; None when no worker that was asked has the model or can be reached.
            wait: for a model that is on its way; calls that wait are bounded in number and time.
            left: the engine has just said that the model has left, whatever the catalog says at first.
            remaining: seconds until the call's own deadline.

        Returns:
            What `ask` answered; Here when the call is to be executed on this worker; or why nobody answers.
        """
        limit = self._timeout_seconds if remaining is None else remaining
        until = self._clock() + min(limit, self._patience_seconds)
        while True:
            found = self.find(model, version, forwarded=False)
            if isinstance(found, Elsewhere):
                answer = await ask(found)
                if answer is not None:
                    return answer
            if isinstance(found, Elsewhere) or (left and isinstance(found, Here)):
                found = moving(model)
            left = False
            passing = isinstance(found, Refusal) and found.reason in _ON_ITS_WAY
            if not (wait and passing) or self._clock() >= until or self._waiting[model] >= self._max_waiting:
                return found
            self._waiting[model] += 1
            try:
                await asyncio.sleep(_AGAIN_SECONDS)
            finally:
                self._waiting[model] -= 1
                if not self._waiting[model]:
                    del self._waiting[model]

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
        f"model '{model}' is on its way to a worker, or being prepared there: try again",
        retry_after_seconds=1.0,
    )


def forward_lost(model: str) -> Refusal:
    """Another worker has got a part of the call that cannot be sent twice, or has begun an answer, and ended."""
    return Refusal(
        Reason.WORKER_GONE,
        f"the worker that has model '{model}' ended, or the model left it, while this request was passed on: send it again",
        retry_after_seconds=1.0,
    )


def forward_timeout(model: str, seconds: float) -> Refusal:
    """Another worker took too long."""
    return Refusal(Reason.DEADLINE_EXCEEDED, f"the worker that has model '{model}' did not answer within {seconds:g} s")
