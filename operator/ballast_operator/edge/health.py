# SPDX-License-Identifier: Apache-2.0
"""The metrics and health server: a thread of its own, so that it answers, and tells the truth, when the loop is stuck."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

logger = logging.getLogger(__name__)

LOOP_SECONDS: Final = 10.0
"""How old the loop's last heartbeat may be."""

RUN_SECONDS: Final = 300.0
"""How long one reconciliation may take."""


class Health:
    """Progress of loop, queue and watches; nothing of it depends on the API server being reachable. Any thread may ask."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat = clock()
        self.longest_run: Callable[[], float] = lambda: 0.0
        """Seconds of the oldest reconciliation in flight."""
        self.deaf: Callable[[], list[str]] = list
        """Watches that tell nothing any more, in words."""
        self.stage = "starting"
        """What the process is at, for a person."""

    def beat(self) -> None:
        """The loop turns."""
        self._beat = self._clock()

    def loop_age(self) -> float:
        """Seconds since the loop last turned."""
        return self._clock() - self._beat

    def faults(self) -> list[str]:
        """What is wrong; nothing when the process is healthy."""
        found = []
        if self.loop_age() > LOOP_SECONDS:
            found.append(f"the event loop has not turned for {self.loop_age():.0f} s (limit {LOOP_SECONDS:.0f})")
        longest = self.longest_run()
        if longest > RUN_SECONDS:
            found.append(f"a reconciliation has been running for {longest:.0f} s (limit {RUN_SECONDS:.0f})")
        return [*found, *self.deaf()]


class HealthServer:
    """Serves /metrics, /healthz and /readyz. Ready means healthy: a standby is as ready as the leader."""

    def __init__(self, health: Health, registry: CollectorRegistry, *, host: str, port: int) -> None:
        self._server = ThreadingHTTPServer((host, port), _handler(health, registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(5)
        self._server.server_close()


def _handler(health: Health, registry: CollectorRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif path in ("/healthz", "/readyz"):
                faults = health.faults()
                body = json.dumps({"ok": not faults, "stage": health.stage, "faults": faults}).encode()
                self._answer(503 if faults else 200, "application/json", body)
            else:
                self._answer(404, "text/plain", b"/metrics, /healthz or /readyz\n")

        def _answer(self, status: int, content: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            logger.debug(format, *args)

    return Handler
