# SPDX-License-Identifier: Apache-2.0
"""The thread that keeps the Lease: a loop of its own, so that a busy reconcile loop cannot lose it."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable

from ballast_operator.cluster import errors
from ballast_operator.cluster.client import Client
from ballast_operator.cluster.lease import RENEW_SECONDS, RETRY_SECONDS, Elector
from ballast_operator.cluster.limiter import Priority
from ballast_operator.cluster.resources import LEASES

logger = logging.getLogger(__name__)

_CALL_SECONDS = RENEW_SECONDS / 2
_LATE_SECONDS = 1.0
"""A renewal that takes longer finds an API server with more to do than it can: our other writes wait for it then."""


class LeaseKeeper:
    """Acquires a Lease, renews it, and says when it is lost.

    `acquired` is set once we lead. `on_lost` is called from this thread when we led and do no more, or when `alive`
    turns false (the reconcile loop is stuck, and a standby should take over): the process has to end then, there is no
    second election in one process. The API server being away while we do not lead is waited for.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        *,
        identity: str,
        namespace: str,
        name: str,
        on_lost: Callable[[str], None],
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._connect = connect
        self._namespace, self._name = namespace, name
        self._on_lost = on_lost
        self._alive = alive
        self._elector = Elector(
            identity=identity,
            namespace=namespace,
            name=name,
            clock=time.monotonic,
            now=lambda: dt.datetime.now(dt.UTC),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poke: asyncio.Event | None = None
        self._stopping = False
        self._renewing_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self.acquired = threading.Event()

    @property
    def epoch(self) -> int:
        """The epoch of our acquisition; 0 while we do not lead. Any thread may ask."""
        return self._elector.epoch

    def leads(self) -> bool:
        """Whether nobody else can lead now. Any thread may ask, also one that was stopped and finds itself going on."""
        return self._elector.leading and not self._elector.lost()

    @property
    def late(self) -> bool:
        """Whether a renewal is being waited for that should have come by now. Any thread may ask."""
        since = self._renewing_since
        return since is not None and time.monotonic() - since > _LATE_SECONDS

    def start(self) -> None:
        """Begin to compete for the Lease."""
        self._thread.start()

    def raise_above(self, epoch: int) -> bool:
        """Take an epoch above this one, which a worker has seen; from any thread. False: it is too high to be followed."""
        self._call(lambda: self._elector.raise_above(epoch))
        return self._elector.follows(epoch)

    def stop(self, timeout: float = 2 * _CALL_SECONDS) -> None:
        """Give the Lease up, so that a standby leads within seconds, and end the thread."""
        self._stopping = True
        self._call(lambda: None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _call(self, change: Callable[[], None]) -> None:
        loop, poke = self._loop, self._poke
        if loop is None or poke is None or loop.is_closed():
            return

        def act() -> None:
            change()
            poke.set()

        loop.call_soon_threadsafe(act)

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except Exception:
            logger.exception("the thread that keeps the Lease failed")
            if not self._stopping:
                self._on_lost("the thread that keeps the Lease failed")

    async def _keep(self) -> None:
        self._loop, self._poke = asyncio.get_running_loop(), asyncio.Event()
        client = await self._connect()
        try:
            while not self._stopping:
                self._poke.clear()
                await self._step(client)
                if self._elector.leading and not self.acquired.is_set():
                    logger.info("leading with epoch %d", self._elector.epoch)
                    self.acquired.set()
                lost = self.acquired.is_set() and (not self._elector.leading or self._elector.lost())
                if lost or not self._alive():
                    if not self._stopping:
                        self._on_lost("the Lease was lost" if lost else "the reconcile loop is stuck")
                    return
                if self._elector.behind:
                    continue
                pause = RETRY_SECONDS * random.uniform(0.9, 1.1)  # noqa: S311 - jitter
                try:
                    async with asyncio.timeout(pause):
                        await self._poke.wait()
                except TimeoutError:
                    continue
            await self._release(client)
        finally:
            await client.close()

    async def _step(self, client: Client) -> None:
        """One look, and one write when it is our turn. Whatever goes wrong is a turn lost, not an error."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                if not self._elector.leading:
                    await self._look(client)
                write = self._elector.intent()
                if write is None:
                    return
                started = time.monotonic()
                self._renewing_since = started if self._elector.leading else None
                act = client.create if write.create else client.replace
                lease = await act(LEASES, write.body, priority=Priority.FENCING)
        except (errors.Conflict, errors.AlreadyExists, errors.NotFound):
            await self._look_again(client)
        except (errors.ApiError, TimeoutError) as error:
            logger.warning("Lease %s/%s: %s", self._namespace, self._name, error or "no answer")
        else:
            self._elector.written(write, lease, started=started)
        finally:
            self._renewing_since = None

    async def _look(self, client: Client) -> None:
        try:
            self._elector.observe(await client.get(LEASES, self._namespace, self._name))
        except errors.NotFound:
            self._elector.observe(None)

    async def _look_again(self, client: Client) -> None:
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._look(client)
        except (errors.ApiError, TimeoutError) as error:
            logger.warning("Lease %s/%s: %s", self._namespace, self._name, error or "no answer")

    async def _release(self, client: Client) -> None:
        write = self._elector.release()
        if write is None:
            return
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await client.replace(LEASES, write.body, priority=Priority.FENCING)
            logger.info("gave up the Lease")
        except (errors.ApiError, TimeoutError) as error:
            logger.warning("the Lease could not be given up, it runs out by itself: %s", error)
