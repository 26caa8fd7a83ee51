# SPDX-License-Identifier: Apache-2.0
"""`ballast-operator`: the command line."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

from ballast_contract import names
from ballast_operator.cluster import errors
from ballast_operator.edge.arguments import Arguments, parse, version
from ballast_operator.edge.health import Health, HealthServer
from ballast_operator.edge.logs import configure
from ballast_operator.edge.preflight import PreflightError
from ballast_operator.edge.process import Process
from ballast_operator.edge.uninstall import strip_finalizers

logger = logging.getLogger(__name__)

_COLLECT_AFTER = 50_000, 20, 20
"""Allocations between garbage collections. Caches of thousands of objects are allocations that are no garbage: by default
a sixth of the processor time would go into looking at them, in pauses that hold the thread that keeps the Lease too."""

_SWITCH_SECONDS = 0.001
"""How long a busy thread keeps the others waiting; those of the Lease and of /healthz have turns to take."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command and end the process with 0, or 1 when it has to be started anew."""
    arguments = parse(sys.argv[1:] if argv is None else argv, os.environ)
    configure(arguments.log_level, arguments.log_format)
    try:
        if arguments.command == "strip-finalizers":
            print(f"{asyncio.run(strip_finalizers(arguments))} finalizers removed")
        else:
            _serve(arguments)
    except (PreflightError, errors.ApiError) as error:
        logger.critical("%s", error)
        sys.exit(1)
    except Exception:
        logger.critical("the operator ends and has to be started anew", exc_info=True)
        sys.exit(1)


def _serve(arguments: Arguments) -> None:
    logger.info(
        "Ballast operator %s as %s, watching %s",
        version(),
        arguments.identity,
        ", ".join(arguments.namespaces) or "all namespaces",
    )
    gc.set_threshold(*_COLLECT_AFTER)
    sys.setswitchinterval(_SWITCH_SECONDS)
    registry = CollectorRegistry()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    health = Health()
    server = HealthServer(health, registry, host=arguments.host, port=arguments.port)
    server.start()
    try:
        process = Process(
            arguments,
            registry=registry,
            health=health,
            on_lost=_lost,
            introspection_port=names.INTROSPECTION_PORT,
        )
        asyncio.run(_until_signal(process))
    finally:
        server.stop()


async def _until_signal(process: Process) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await process.run(stop)


def _lost(why: str) -> None:
    """Another process may lead from now on: nothing of this one may write any more, not even in its clean-up."""
    logger.critical("%s: this process ends", why)
    logging.shutdown()
    os._exit(1)


if __name__ == "__main__":
    main()
