# SPDX-License-Identifier: Apache-2.0
"""Both protocols on one event loop: the way in for clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ballast_contract.config import Serving
from ballast_worker.serving.call import Engine
from ballast_worker.serving.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Ports:
    """Where it listens, after 0 in the configuration was replaced by what the system gave."""

    http: int
    grpc: int


class Frontend:
    """HTTP and gRPC for one engine and one catalog."""

    def __init__(
        self, config: Serving, engine: Engine, catalog: Catalog, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        raise NotImplementedError

    async def start(self) -> Ports:
        """Listen on both ports.

        Raises:
            OSError: a port cannot be had; the message names it.
        """
        raise NotImplementedError

    async def stop(self, *, grace_seconds: float) -> None:
        """Take no new connections, let requests under way end within the grace, then close."""
        raise NotImplementedError


class FrontendThread:
    """A front end that runs in a thread of its own."""

    ports: Ports

    def stop(self, *, grace_seconds: float) -> None:
        """As `Frontend.stop`; returns when the thread has ended. Any thread."""
        raise NotImplementedError


def run_in_thread(frontend: Frontend) -> FrontendThread:
    """Run a front end on a uvloop event loop in a new thread; returns when it listens.

    Raises:
        OSError: a port cannot be had.
    """
    raise NotImplementedError
