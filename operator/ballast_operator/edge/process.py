# SPDX-License-Identifier: Apache-2.0
"""The operator as a whole: wait for the Lease, fill the caches, then watch and reconcile until told to end."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import kopf
from prometheus_client import CollectorRegistry, Gauge

from ballast_operator.cluster import errors
from ballast_operator.cluster.access import Access
from ballast_operator.cluster.client import Client, Object
from ballast_operator.cluster.dispatch import Dispatcher, Key, Reconcile
from ballast_operator.cluster.keeper import LeaseKeeper
from ballast_operator.cluster.limiter import TokenBucket
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import Resource
from ballast_operator.edge import handlers
from ballast_operator.edge.arguments import Arguments
from ballast_operator.edge.health import Health
from ballast_operator.edge.introspection import Introspection
from ballast_operator.edge.preflight import PreflightError, check_definitions, check_rights
from ballast_operator.edge.sweeper import Sweeper
from ballast_operator.fleet.authority import AuthorityError
from ballast_operator.fleet.channel import Dial, channel
from ballast_operator.fleet.fleet import Fleet, Notice
from ballast_operator.reconcile import crew
from ballast_operator.reconcile.budget import BudgetReconciler
from ballast_operator.reconcile.certificates import Certificates
from ballast_operator.reconcile.events import Events
from ballast_operator.reconcile.metrics import ReconcileMetrics
from ballast_operator.reconcile.model import ModelReconciler
from ballast_operator.reconcile.options import Options
from ballast_operator.reconcile.world import World, budgets_by_namespace

logger = logging.getLogger(__name__)

R = TypeVar("R")

_STUCK_SECONDS: Final = 30.0
"""A loop that has not turned for so long gives the Lease away."""

_API_AWAY_SECONDS: Final = 2.0

_DEFINITIONS_SECONDS: Final = 30.0

_SPACING_SECONDS: Final = 0.1
_SPACING_SECONDS_PER_MODEL: Final = 0.0005


class Process:
    """One operator process. `run` returns when `stop` is set, and raises when the process has to be started anew."""

    def __init__(
        self,
        arguments: Arguments,
        *,
        registry: CollectorRegistry,
        health: Health,
        on_lost: Callable[[str], None],
        dial: Dial = channel,
        options: Options | None = None,
        introspection_port: int | None = None,
    ) -> None:
        self._arguments = arguments
        self._health = health
        self._dial = dial
        self._introspection_port = introspection_port
        self._options = options or Options(
            worker_image=arguments.worker_image,
            operator_image=arguments.operator_image,
            namespace=arguments.lease_namespace,
            pull_secrets=arguments.pull_secrets,
        )
        self._cluster_metrics = ClusterMetrics(registry)
        self._reconcile_metrics = ReconcileMetrics(registry)
        self._leader = Gauge("ballast_operator_leader", "1 while this process leads, else 0", registry=registry)
        self._event_age = Gauge(
            "ballast_operator_watch_event_age_seconds", "Time since the last event of any watch", registry=registry
        )
        self._fault = ""
        self._last_event = time.monotonic()
        self._event_age.set_function(lambda: time.monotonic() - self._last_event)
        self._keeper = LeaseKeeper(
            self._connect,
            identity=arguments.identity,
            namespace=arguments.lease_namespace,
            name=arguments.lease_name,
            on_lost=on_lost,
            alive=lambda: health.loop_age() < _STUCK_SECONDS,
        )
        self._leader.set_function(lambda: float(self._keeper.epoch > 0))

    async def run(self, stop: asyncio.Event) -> None:
        """Lead when it is our turn, until `stop` is set.

        Raises:
            PreflightError: rights or definitions are missing.
            Exception: a watch has ended for good; the process has to be started anew.
        """
        async with AsyncExitStack() as stack:
            self._spawn(stack, self._beat(), "heartbeat")
            self._health.stage = "waiting for the Lease"
            self._keeper.start()
            stack.callback(self._keeper.stop)
            if not await self._acquired(stop):
                return
            client = await self._connect(may_write=self._keeper.leads)
            stack.push_async_callback(client.close)
            self._health.stage = "checking definitions and rights"
            await self._definitions(client, stop)
            await self._patiently(
                lambda: check_rights(client, self._arguments.namespaces, self._arguments.lease_namespace), stop
            )
            if not stop.is_set():
                await self._lead(client, stop)

    async def _lead(self, client: Client, stop: asyncio.Event) -> None:
        dispatcher: Dispatcher
        world: World

        def enqueue(key: Key, after: float) -> None:
            dispatcher.queue.add(key, after=after)

        def notify(notice: Notice) -> None:
            world.notice(notice)

        certificates = Certificates(
            client,
            namespace=self._arguments.lease_namespace,
            budgets=lambda: budgets_by_namespace(world),
            seen=lambda authorities: crew.all_trust(world, authorities),
            now=_now,
            period=self._options.certificate_seconds,
        )
        events = Events(
            client,
            instance=self._arguments.identity,
            metrics=self._reconcile_metrics,
            clock=time.monotonic,
            now=_now,
        )
        fleet = Fleet(
            epoch=lambda: self._keeper.epoch,
            identity=lambda: certificates.identity,
            notify=notify,
            on_epoch=self._keeper.raise_above,
            dial=self._dial,
            heartbeat_limit=self._options.heartbeat_seconds,
        )
        world = World(
            client=client,
            fleet=fleet,
            events=events,
            certificates=certificates,
            options=self._options,
            metrics=self._reconcile_metrics,
            enqueue=enqueue,
            epoch=lambda: self._keeper.epoch,
            clock=time.monotonic,
            now=_now,
            rng=random.Random(),  # noqa: S311 - names of pods
        )
        reconcilers: dict[str, Reconcile] = {
            "model": ModelReconciler(world).reconcile,
            "budget": BudgetReconciler(world).reconcile,
        }
        dispatcher = Dispatcher(
            lambda key: reconcilers[key.kind](key),
            metrics=self._cluster_metrics,
            spacing=lambda key: _spacing(world, key),
            lane=lambda key: 0 if key.kind == "budget" else 1,
        )
        self._health.longest_run = dispatcher.longest_run
        sweeper = Sweeper(world, client, self._arguments.namespaces, self._cluster_metrics)
        self._health.deaf = sweeper.deaf
        self._health.stage = "filling the caches"
        await self._patiently(sweeper.fill, stop)
        try:
            await self._patiently(certificates.start, stop)
        except AuthorityError as error:
            raise PreflightError(str(error)) from error
        if stop.is_set():
            return
        edge = kopf.operator(
            registry=handlers.registry(lambda *event: self._observe(world, sweeper, *event), await self._access()),
            settings=handlers.settings(),
            standalone=True,
            clusterwide=not self._arguments.namespaces,
            namespaces=self._arguments.namespaces,
            stop_flag=stop,
        )
        watching = asyncio.create_task(edge, name="kopf")
        async with AsyncExitStack() as working:
            working.push_async_callback(world.close)
            if self._introspection_port is not None:
                introspection = Introspection(world, port=self._introspection_port)
                working.push_async_callback(introspection.stop)
                await introspection.start()
            for work, name in (
                (fleet.run(), "fleet"),
                (certificates.run(), "certificates"),
                (sweeper.run(), "sweeper"),
                (dispatcher.run(), "dispatcher"),
            ):
                self._spawn(working, work, name, fatal=stop)
            self._health.stage = f"leading with epoch {self._keeper.epoch}"
            ending = asyncio.create_task(stop.wait(), name="stop")
            await asyncio.wait((watching, ending), return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            self._health.stage = "ending"
        # Nothing writes any more. kopf takes seconds to end, for which nobody should have to wait for a leader.
        await asyncio.to_thread(self._keeper.stop)
        await watching
        if self._fault:
            raise RuntimeError(f"{self._fault} ended unexpectedly")

    def _observe(self, world: World, sweeper: Sweeper, resource: Resource, type_: str | None, obj: Object) -> None:
        self._last_event = time.monotonic()
        world.observe(resource, type_, obj)
        sweeper.told(resource, type_)

    async def _acquired(self, stop: asyncio.Event) -> bool:
        while not self._keeper.acquired.is_set():
            if stop.is_set():
                return False
            await asyncio.sleep(0.05)
        return True

    async def _definitions(self, client: Client, stop: asyncio.Event) -> None:
        """Wait a while for definitions that are just being installed: they are published some time after they are made."""
        deadline = time.monotonic() + _DEFINITIONS_SECONDS
        while not stop.is_set():
            try:
                stale = await self._patiently(lambda: check_definitions(client), stop)
                self._options = dataclasses.replace(self._options, stale_definitions=tuple(stale or ()))
                return
            except PreflightError:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(0.5)

    async def _patiently(self, work: Callable[[], Coroutine[Any, Any, R]], stop: asyncio.Event) -> R | None:
        """Do something that needs the API server, waiting for it as long as it takes; None when told to stop."""
        while not stop.is_set():
            try:
                return await work()
            except errors.Unavailable as error:
                logger.warning("the API server is waited for: %s", error)
                await asyncio.sleep(_API_AWAY_SECONDS)
        return None

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            await asyncio.sleep(1.0)

    def _spawn(
        self, stack: AsyncExitStack, work: Coroutine[Any, Any, None], name: str, *, fatal: asyncio.Event | None = None
    ) -> None:
        task = asyncio.create_task(work, name=name)

        def ended(done: asyncio.Task[None]) -> None:
            if fatal is not None and not done.cancelled():
                logger.critical("%s ended unexpectedly", name, exc_info=done.exception())
                self._fault = name
                fatal.set()

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        task.add_done_callback(ended)
        stack.push_async_callback(cancel)

    async def _access(self) -> Access:
        return await Access.load(self._arguments.kubeconfig, self._arguments.context)

    async def _connect(self, may_write: Callable[[], bool] = lambda: True) -> Client:
        rate = self._arguments.writes_per_second
        writes = TokenBucket(rate=rate, burst=max(1, int(rate)), clock=time.monotonic, held=lambda: self._keeper.late)
        access = await self._access()
        return Client(access, metrics=self._cluster_metrics, writes=writes, may_write=may_write)


def _spacing(world: World, key: Key) -> float:
    """Bursts of reports are taken together: a pool is looked at the less often the more models it has."""
    pool = world.pool(key.namespace, key.name) if key.kind == "budget" else None
    return 0.0 if pool is None else _SPACING_SECONDS + _SPACING_SECONDS_PER_MODEL * len(pool.holders)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
