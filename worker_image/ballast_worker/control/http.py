# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for people and machines that look at a worker: a path, a function, an answer."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from ballast_worker.control.settings import SettingError

_log = logging.getLogger(__name__)

_SOCKET_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """What a page may look at: the query, first value of each name, and the header Accept."""

    query: Mapping[str, str]
    accept: str


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200

    @staticmethod
    def text(text: str, status: int = 200) -> Response:
        """An answer in words."""
        return Response(f"{text}\n".encode(), status=status)

    @staticmethod
    def json(value: Any, status: int = 200) -> Response:
        """An answer as JSON."""
        return Response(json.dumps(value).encode(), "application/json", status)


Page = Callable[[Request], Response]


class PageServer:
    """Serves GET of some pages from construction on, each request on a thread of its own.

    Raises:
        SettingError: the port cannot be had; the message names setting and address.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], *, setting: str) -> None:
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), _handler(pages))
        except OSError as error:
            raise SettingError(f"{setting}: {host}:{port} cannot be listened on: {error.strerror}") from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name=setting, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        error = sys.exception()
        if isinstance(error, OSError):
            _log.debug("%s has left before its answer: %s", client_address[0], error)
        else:
            _log.error("a request of %s could not be answered", client_address[0], exc_info=error)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _handler(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SOCKET_SECONDS
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                parts = urllib.parse.urlsplit(self.path)
            except ValueError as error:
                self._answer(Response.text(f"the address cannot be read: {error}", 400))
                return
            page = pages.get(parts.path)
            if page is None:
                self._answer(Response.text(f"no such page; there are {', '.join(sorted(pages))}", 404))
                return
            query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
            try:
                response = page(Request(query, self.headers.get("Accept", "")))
            except Exception:  # noqa: BLE001 - a page that fails must not look like a worker that is gone
                _log.exception("page %s failed", parts.path)
                response = Response.text("this page failed; the log has the reason", 500)
            self._answer(response)

        def _answer(self, response: Response) -> None:
            self.send_response(response.status)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is inherited
            _log.debug(format, *args)

    return Handler
