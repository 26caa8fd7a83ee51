# SPDX-License-Identifier: Apache-2.0
"""The step before uninstalling: nobody will be left to remove our finalizer, so it is removed now."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from typing import Final

from prometheus_client import CollectorRegistry

from ballast_contract import names
from ballast_operator.cluster import errors
from ballast_operator.cluster.access import Access
from ballast_operator.cluster.client import Client, Object
from ballast_operator.cluster.lease import RENEW_SECONDS, micro_time
from ballast_operator.cluster.limiter import Priority, TokenBucket
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import BUDGETS, LEASES
from ballast_operator.edge.arguments import Arguments
from ballast_operator.reconcile.deletion import set_finalizers

logger = logging.getLogger(__name__)

HOLD_SECONDS: Final = 60
"""How long operators that still run are kept from leading: until they are deleted too."""

_ATTEMPTS: Final = 10


async def strip_finalizers(arguments: Arguments) -> int:
    """Take the Lease away from whoever has it, then remove the finalizer from every WeightBudget.

    Taking the Lease ends the leader's process, and its successor waits. A leader that has not noticed yet writes nothing
    once its own time is over, which is waited for: nobody puts the finalizer back.

    Returns:
        The number of budgets that had it.
    """
    access = await Access.load(arguments.kubeconfig, arguments.context)
    writes = TokenBucket(rate=arguments.writes_per_second, burst=100, clock=time.monotonic)
    client = Client(access, metrics=ClusterMetrics(CollectorRegistry()), writes=writes)
    try:
        if await take_lease(client, arguments):
            await asyncio.sleep(RENEW_SECONDS)
        stripped = 0
        for namespace in arguments.namespaces or (None,):
            for obj in (await client.list(BUDGETS, namespace)).items:
                stripped += await _strip(client, obj)
        return stripped
    finally:
        await client.close()


async def take_lease(client: Client, arguments: Arguments) -> bool:
    """Hold the Lease by force; False when nobody led. Raises ApiError."""
    namespace, name = arguments.lease_namespace, arguments.lease_name
    for attempt in range(_ATTEMPTS):
        try:
            held = await client.get(LEASES, namespace, name)
        except errors.NotFound:
            return False  # an operator that starts now is being deleted
        stamp = micro_time(dt.datetime.now(dt.UTC))
        spec = {
            **held.get("spec", {}),
            "holderIdentity": f"uninstall_{arguments.identity}",
            "leaseDurationSeconds": HOLD_SECONDS,
            "acquireTime": stamp,
            "renewTime": stamp,
            "leaseTransitions": int(held.get("spec", {}).get("leaseTransitions", 0)) + 1,
        }
        try:
            await client.replace(LEASES, {**held, "spec": spec}, priority=Priority.FENCING)
        except errors.Conflict:  # the leader renewed it between the two calls
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            holder = held.get("spec", {}).get("holderIdentity")
            logger.info("took the Lease %s/%s from %s", namespace, name, holder or "nobody")
            return bool(holder)
    raise AssertionError("unreachable")


async def _strip(client: Client, obj: Object) -> int:
    metadata = obj["metadata"]
    if names.FINALIZER not in metadata.get("finalizers", ()):
        return 0
    kept = [finalizer for finalizer in metadata["finalizers"] if finalizer != names.FINALIZER]
    try:
        await set_finalizers(client, obj, kept)
    except errors.NotFound:
        return 0
    except errors.Conflict:
        return await _strip(client, await client.get(BUDGETS, metadata["namespace"], metadata["name"]))
    logger.info("removed the finalizer of WeightBudget %s/%s", metadata["namespace"], metadata["name"])
    return 1
